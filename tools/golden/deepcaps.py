"""Golden file of DeepCaps: `python tools/golden/deepcaps.py CLONE`.

With Keras 2.2.4 on TensorFlow 1.15: the whole network for images of 64x64 pixels, without its
decoder, with 4 types of capsules in place of 32, and Keras' setting epsilon near 0. Sizes and types
that its functions fix are replaced from outside.
"""

import sys
import types
from functools import partial

import keras.backend as K
import tensorflow as tf
from common import Numbers, Patched, fill_keras_model, save

for missing in ("PIL", "PIL.Image"):
    sys.modules.setdefault(missing, types.ModuleType(missing))
sys.modules["PIL"].Image = sys.modules["PIL.Image"]
sys.path.insert(0, sys.argv[1])
K.set_floatx("float64")
K.set_epsilon(1e-60)
import capslayers
import deepcaps


def fill(shape, number):
    return tf.cast(tf.fill(shape, number), tf.float64)


def batch_normalization(x, mean, var, beta, gamma, axis=-1, epsilon=1e-3):
    return tf.nn.batch_normalization(x, mean, var, beta, gamma, epsilon)


# Fused batch norms have no double precision.
K.normalize_batch_in_training = lambda x, gamma, beta, axes, epsilon: (x, gamma, beta)
K.batch_normalization = batch_normalization
capslayers.tf = Patched(
    tf, float32=tf.float64, fill=fill, zeros=partial(tf.zeros, dtype=tf.float64)
)
capslayers.K = Patched(K, cast=lambda x, dtype: x)
few = {32: 4}
convolution = deepcaps.Conv2D
capsules = deepcaps.Conv2DCaps
routed = deepcaps.ConvCapsuleLayer3D
deepcaps.Conv2D = lambda filters, *sizes, **options: convolution(8, *sizes, **options)
deepcaps.Conv2DCaps = lambda count, *sizes, **options: capsules(few[count], *sizes, **options)
deepcaps.ConvCapsuleLayer3D = lambda num_capsule, **options: routed(
    num_capsule=few[num_capsule], **options
)
numbers = Numbers()
train_model, _ = deepcaps.DeepCapsNet((64, 64, 3), 3, 3)
model = deepcaps.models.Model(train_model.inputs[0], train_model.outputs[0])
weights = fill_keras_model(model, K, numbers, gain=5.0)
for variable in model.layers[-2].weights:  # of the class capsules
    key = variable.name.replace(":0", "")
    weights[key] = numbers.weights(weights[key].shape, 0.02)
    K.set_value(variable, weights[key])
images = numbers.between((2, 64, 64, 3), 0, 1)
lengths = model.predict(images)
first = K.sum(model.outputs[0][:, 0])
kernel = next(v for v in model.weights if v.name.startswith("conv2d_1/kernel"))
gradient = K.function(model.inputs, K.gradients(first, [kernel]))([images])[0]
save("deepcaps", {"images": images}, weights, {"lengths": lengths}, {"conv2d_1/kernel": gradient})
