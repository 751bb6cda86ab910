"""Golden files of Efficient-CapsNet: `python tools/golden/efficient_capsnet.py CLONE`.

With TensorFlow 2.8 and tensorflow-addons 0.16: the authors' networks for MNIST and smallNORB at
their full size, without decoders. Their code casts to float32 in one place; from outside, the name
`float32` is made to mean float64.
"""

import sys
import types

import numpy as np
import tensorflow as tf
from common import Numbers, save, weights_of

sys.path.insert(0, sys.argv[1])
tf.keras.backend.set_floatx("float64")
tf.float32 = tf.float64
layers_only = types.ModuleType("utils")  # without drawing and training
layers_only.__path__ = [sys.argv[1] + "/utils"]
sys.modules["utils"] = layers_only
graphs_only = types.ModuleType("models")
graphs_only.__path__ = [sys.argv[1] + "/models"]
sys.modules["models"] = graphs_only
from models import efficient_capsnet_graph_mnist, efficient_capsnet_graph_smallnorb

LAYERS = {
    "Conv2D": "conv",
    "BatchNormalization": "norm",
    "InstanceNormalization": "norm",
    "PrimaryCaps": "primary",
    "FCCaps": "classes",
}


def name_weights(model):
    """Names such as conv2/kernel of the model's variables."""
    names = []
    counts = {}
    for layer in model.layers:
        if not layer.weights:
            continue
        kind = LAYERS[type(layer).__name__]
        counts[kind] = counts.get(kind, 0) + 1
        for variable in layer.weights:
            part = variable.name.split("/")[-1].split(":")[0]
            names.append((kind + str(counts[kind]) + "/" + part, variable))
    return names


for name, module, shape in (
    ("mnist", efficient_capsnet_graph_mnist, (28, 28, 1)),
    ("smallnorb", efficient_capsnet_graph_smallnorb, (48, 48, 2)),
):
    numbers = Numbers()
    model = module.efficient_capsnet_graph(shape)
    weights = {}
    for key, variable in name_weights(model):
        # Output axis first, as `weights_of` sizes them.
        is_kernel = len(variable.shape) == 4 and "kernel" in key
        order = variable.shape[::-1] if is_kernel else tuple(variable.shape)
        array = weights_of([(key, order)], numbers)[key].reshape(tuple(variable.shape))
        if key == "classes1/W":
            array = numbers.weights(array.shape, 0.25)
        weights[key] = array
        variable.assign(array)
    images = numbers.between((2, *shape), 0, 1)
    prior = dict(name_weights(model))["classes1/b"]
    # Not of weights below: TensorFlow has no gradient of grouped convolutions on a CPU.
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(prior)
        pose, lengths = model(tf.constant(images), training=False)
        first = tf.reduce_sum(lengths[:, 0])
    gradient = tape.gradient(first, prior)
    save(
        "efficient_capsnet_" + name,
        {"images": images},
        weights,
        {"pose": pose.numpy(), "lengths": lengths.numpy()},
        {"classes1/b": np.asarray(gradient)},
    )
