"""Golden file of CapsNet-Keras: `python tools/golden/capsnet_keras.py CLONE`.

With Keras 2.2.4 on TensorFlow 1.15: the whole network with 8 channels, 2 types of primary capsules
and a decoder of 6 and 10 units. The sizes that its function fixes are replaced from outside, and so
are types that are float32 there. Lengths are also made with Keras' setting epsilon near 0 ("exact"),
which its squash and its lengths add to squares, 1e-7 by default.
"""

import sys
import types
from functools import partial

import keras.backend as K
import tensorflow as tf
from common import Numbers, save, weights_of
from keras import layers

sys.path.insert(0, sys.argv[1])
for missing in ("matplotlib", "matplotlib.pyplot", "PIL", "PIL.Image", "utils"):
    sys.modules[missing] = types.ModuleType(missing)
sys.modules["matplotlib"].pyplot = sys.modules["matplotlib.pyplot"]
sys.modules["PIL"].Image = sys.modules["PIL.Image"]
sys.modules["utils"].combine_images = None
K.set_floatx("float64")


def one_hot(function, indices, num_classes):
    return K.cast(function(indices, num_classes), "float64")


import capsulelayers
import capsulenet

capsulelayers.tf = types.SimpleNamespace(zeros=partial(tf.zeros, dtype=tf.float64), nn=tf.nn)
capsulelayers.K.one_hot = partial(one_hot, capsulelayers.K.one_hot)


UNITS = {512: 6, 1024: 10}
Dense = layers.Dense
Conv2D = layers.Conv2D
layers.Dense = lambda units, **options: Dense(UNITS.get(units, units), **options)
layers.Conv2D = lambda filters, **options: Conv2D(8 if filters == 256 else filters, **options)
primary = capsulenet.PrimaryCap
capsulenet.PrimaryCap = lambda inputs, **options: primary(inputs, **dict(options, n_channels=2))

outputs = {}
for name, epsilon in (("", 1e-7), ("exact/", 1e-60)):
    K.clear_session()
    K.set_epsilon(epsilon)
    numbers = Numbers()
    _, model, _ = capsulenet.CapsNet((20, 20, 1), 4, 3)
    weights = {}
    for variable in model.weights:
        key = variable.name.replace(":0", "")
        shape = K.int_shape(variable)
        order = shape if key.endswith("W") else shape[::-1]
        weights[key] = weights_of([(key, order)], numbers)[key].reshape(shape)
        if key.endswith("W"):
            weights[key] = numbers.weights(shape, 0.5)
        K.set_value(variable, weights[key])
    images = numbers.between((2, 20, 20, 1), 0, 1)
    outputs[name + "lengths"], outputs[name + "drawings"] = model.predict(images)
    first = K.sum(model.outputs[0][:, 0])
    kernel = next(v for v in model.weights if v.name.startswith("conv1/kernel"))
    gradient = K.function(model.inputs, K.gradients(first, [kernel]))([images])[0]
del outputs["drawings"]
save("capsnet_keras", {"images": images}, weights, outputs, {"conv1/kernel": gradient})
