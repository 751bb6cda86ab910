"""Golden file of SegCaps: `python tools/golden/segcaps.py CLONE`.

With Keras 2.2.4 on TensorFlow 1.15: the whole network R3 with capsules of a quarter of their
dimensions and without its decoder, on one image, because their code mixes the images of a batch.
Sizes and types that its functions fix are replaced from outside.
"""

import sys
from functools import partial

import keras.backend as K
import tensorflow as tf
from common import Numbers, Patched, fill_keras_model, save

sys.path.insert(0, sys.argv[1])
K.set_floatx("float64")
import capsnet
import capsule_layers


def fill(shape, number):
    return tf.cast(tf.fill(shape, number), tf.float64)


def quarter(function, *names):
    """A function whose arguments of these names become a quarter."""

    def build(**options):
        for name in names:
            options[name] = options[name] // 4
        return function(**options)

    return build


length = partial(capsule_layers.deconv_length, output_padding=None)  # a later argument
capsule_layers.deconv_length = length
capsule_layers.tf = Patched(tf, float32=tf.float64, fill=fill)
capsule_layers.K = Patched(K, cast=lambda x, dtype: x)
for name in ("ConvCapsuleLayer", "DeconvCapsuleLayer"):
    setattr(capsnet, name, quarter(getattr(capsnet, name), "num_atoms"))
convolution = capsnet.layers.Conv2D
sizes = {16: 4, 64: 16, 128: 32}
capsnet.layers = Patched(
    capsnet.layers,
    Conv2D=lambda filters, **options: convolution(sizes.get(filters, filters), **options),
)
numbers = Numbers()
_, model, _ = capsnet.CapsNetR3((16, 24, 1))
weights = fill_keras_model(model, K, numbers, gain=2.0)
images = numbers.between((1, 16, 24, 1), 0, 1)
lengths, _ = model.predict(images)
first = K.sum(model.outputs[0][:, :8])
kernel = next(v for v in model.weights if v.name.startswith("conv1/kernel"))
gradient = K.function(model.inputs, K.gradients(first, [kernel]))([images])[0]
weights = {name: array for name, array in weights.items() if "recon" not in name}
save("segcaps", {"images": images}, weights, {"lengths": lengths}, {"conv1/kernel": gradient})
