"""Golden file of homogeneous vector capsules: `python tools/golden/hvc.py CLONE`.

With TensorFlow 2.8: the author's whole network with 3 convolutions and capsules after the last two,
for images of 11x11 pixels, in evaluation. Its variables are replaced by ones in float64.
"""

import sys

import numpy as np
import tensorflow as tf
from common import Numbers, save, weights_of

sys.path.insert(0, sys.argv[1])
from python.models.SmallImageBranchingMerging import SmallImageBranchingMerging

numbers = Numbers()
model = SmallImageBranchingMerging(
    count_classes=4,
    image_size=11,
    image_channels=1,
    merge_strategy=2,
    use_hvcs=True,
    hvc_type=2,
    initial_filters=32,
    filter_growth=16,
    hvc_dims=[48, 64],
    total_convolutions=3,
    branches_after=[1, 2],
    reconstruct_from_hvcs=False,
)
PARTS = {"variable": "kernel", "bn_beta": "beta", "bn_mean": "mean", "bn_variance": "gamma"}
weights = {}
for holder in [*model.vars, model.branch_weights]:
    name = holder.variable.name.replace(":0", "")
    for part, kind in PARTS.items():
        shape = tuple(getattr(holder, part).shape)
        if part == "variable" and len(shape) == 1:
            array = numbers.between(shape, 0.5, 1.5)
        else:
            # The sizes of an initialization follow an output axis that is first.
            array = weights_of([(kind, shape[::-1])], numbers, gain=1.4)[kind].reshape(shape)
        weights[name + "/" + part] = array
        setattr(holder, part, tf.Variable(array))
images = numbers.between((2, 11, 11, 1), 0, 1)
with tf.GradientTape() as tape:
    logits, _ = model.forward(tf.constant(2 * images - 1), None, False)
    first = tf.reduce_sum(logits[:, 0])
kernel = model.vars[0].variable
gradient = np.asarray(tape.gradient(first, kernel))
save(
    "hvc",
    {"images": images},
    weights,
    {"logits": logits.numpy()},
    {"W_conv0/variable": gradient},
)
