"""Golden file of EM routing: `python tools/golden/em_ibm.py CLONE`, with TensorFlow 1.15.

IBM's layers of convolutional and of class capsules, one above the other, on drawn capsules, with
the setting `epsilon` at 0. Their code names float32; from outside, that name is made to mean
float64. Their logger is left out.
"""

import sys
import types

import numpy as np
import tensorflow as tf
from common import Numbers, save

sys.path.insert(0, sys.argv[1])
sys.argv = sys.argv[:1]
logger = types.SimpleNamespace(info=lambda *_: None, setLevel=lambda *_: None)
daiquiri = types.ModuleType("daiquiri")
daiquiri.getLogger = lambda *_, **__: logger
daiquiri.setup = lambda *_, **__: None
sys.modules["daiquiri"] = daiquiri
tf.float32 = tf.float64
original_pow = tf.pow
tf.pow = lambda base, exponent: original_pow(tf.constant(base, tf.float64), exponent)
import layers
from config import FLAGS

original_init = layers.em.utl.init_rr


def init_rr(*arguments):
    """First couplings, one over a number of parents, in double precision."""
    couplings = original_init(*arguments).astype(np.float64)
    counts = np.round(1 / np.where(couplings > 0, couplings, 1))
    return np.where(couplings > 0, 1 / counts, 0)


layers.em.utl.init_rr = init_rr
FLAGS([""])
FLAGS.epsilon = 0.0  # their setting, added to sums and activations; 1e-9 by default
numbers = Numbers()
pose = numbers.weights((2, 5, 5, 2, 16), 0.5)
activation = numbers.between((2, 5, 5, 2, 1), 0, 1)
a, m = tf.constant(activation), tf.constant(pose)
outputs = {}
outputs["conv/activation"], outputs["conv/pose"] = layers.conv_caps(a, m, 3, 1, 3)
outputs["class/activation"], outputs["class/pose"] = layers.fc_caps(
    outputs["conv/activation"], outputs["conv/pose"], 4
)
weights = {}
with tf.Session() as session:
    for variable in tf.global_variables():
        key = variable.name.replace(":0", "")
        shape = tuple(variable.shape.as_list())
        # Costs of parents around those at which half of them are active.
        drawn = numbers.weights(shape, 0.5)
        weights[key] = 32 * drawn if key.endswith("beta_a") else drawn
        variable.load(weights[key], session)
    kernel = next(v for v in tf.global_variables() if v.name == "conv_caps/votes/w:0")
    gradient = tf.gradients(tf.reduce_sum(outputs["class/activation"][:, 0]), kernel)
    values, gradient = session.run((outputs, gradient))
save(
    "em_ibm",
    {"pose": pose, "activation": activation},
    weights,
    values,
    {"conv_caps/votes/w": np.asarray(gradient[0])},
)
