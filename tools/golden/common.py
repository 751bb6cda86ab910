"""What all scripts of this folder share: numbers for weights, and how a golden file is written.

Runs on Python 3.6 and numpy alone, because some of the published code needs old frameworks.
"""

import json
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "published" / "golden"
LARGE = 2000  # numbers of a tensor that gets three values, so that its file is small


class Numbers:
    """Numbers on a coarse grid, which half precision holds exactly and a zip file packs well.

    Args:
        seed: of all tensors, which are drawn in the order of the calls.
    """

    def __init__(self, seed=0):
        self.random = np.random.RandomState(seed)

    def weights(self, shape, std):
        """Numbers around 0 of about this standard deviation, times a power of two."""
        levels = 1 if np.prod(shape) > LARGE else 7
        steps = self.random.randint(-levels, levels + 1, size=shape)
        spread = np.sqrt(levels * (levels + 1) / 3)
        unit = 2.0 ** np.round(np.log2(std / spread))
        return steps * unit

    def between(self, shape, low, high):
        """Numbers between two, in steps of 1/64."""
        steps = self.random.randint(int(low * 64), int(high * 64) + 1, size=shape)
        return steps / 64.0


def weights_of(named_shapes, numbers, gain=1.0):
    """A number for each weight: by name and shape, as an initialization would size it.

    Args:
        named_shapes: pairs of a name and a shape with the output axis first; norms are recognized
            by the shape of one axis and their names.
        numbers: `Numbers`.
        gain: factor of all standard deviations.
    """
    weights = {}
    for name, shape in named_shapes:
        shape = tuple(shape)
        if "running_var" in name or "moving_variance" in name or "gamma" in name:
            weights[name] = numbers.between(shape, 0.5, 1.5)
        elif len(shape) <= 1:
            weights[name] = numbers.weights(shape, 0.2)
        else:
            fan_in = np.prod(shape[1:])
            weights[name] = numbers.weights(shape, gain / np.sqrt(fan_in))
    return weights


def fill_torch_model(model, numbers, gain=1.0, skip=()):
    """Give every parameter and running statistic of a torch model numbers; returns them by name."""
    import torch

    norms = {
        name + ".weight" for name, part in model.named_modules() if "Norm" in type(part).__name__
    }
    state = model.state_dict()
    weights = {}
    for name, tensor in state.items():
        is_constant = not tensor.is_floating_point() or any(part in name for part in skip)
        if is_constant:
            continue
        if name in norms:
            weights[name] = numbers.between(tuple(tensor.shape), 0.5, 1.5)
        else:
            weights.update(weights_of([(name, tensor.shape)], numbers, gain))
        state[name] = torch.from_numpy(weights[name])
    model.load_state_dict(state)
    return weights


def gradients_of(model, loss, names):
    """Gradients of a scalar for the parameters of these names."""
    loss.backward()
    parameters = dict(model.named_parameters())
    return {name: parameters[name].grad.numpy() for name in names}


def save(name, inputs, weights, outputs, gradients=None):
    """Write a golden file: inputs and weights in half precision, which holds them exactly.

    Args:
        name: of the file in tests/published/golden.
        inputs: arrays by name.
        weights: arrays by name.
        outputs: arrays by name, float64.
        gradients: arrays by name of a weight, float64.
    """
    arrays = {}
    for kind, group in (("input", inputs), ("weight", weights)):
        for key, array in group.items():
            half = np.asarray(array, np.float16)
            assert np.array_equal(half.astype(np.float64), np.asarray(array, np.float64)), key
            arrays[kind + "/" + key] = half
    for kind, group in (("output", outputs), ("gradient", gradients or {})):
        for key, array in group.items():
            assert np.isfinite(array).all(), key
            arrays[kind + "/" + key] = np.asarray(array, np.float64)
    path = FOLDER / (name + ".npz")
    np.savez_compressed(str(path), **arrays)
    sizes = {key: list(array.shape) for key, array in arrays.items() if "output" in key}
    print(path.name, path.stat().st_size, json.dumps(sizes))


class Patched:
    """A module with other attributes in place of some of its own.

    Args:
        module: that is used for all other names.
        attributes: those that replace it.
    """

    def __init__(self, module, **attributes):
        self.module = module
        self.__dict__.update(attributes)

    def __getattr__(self, name):
        return getattr(self.module, name)


def fill_keras_model(model, backend, numbers, gain=1.0):
    """Give every weight of a Keras model numbers; returns them by name.

    Names are those of the layers in their order of creation, and of their parts.
    """
    weights = {}
    for variable in model.weights:
        key = variable.name.replace(":0", "")
        shape = backend.int_shape(variable)
        is_kernel = len(shape) > 2 and not key.endswith("b")
        order = shape[::-1] if is_kernel else shape
        weights[key] = weights_of([(key, order)], numbers, gain)[key].reshape(shape)
        if not is_kernel and len(shape) > 1:
            weights[key] = numbers.weights(shape, 0.2)
        backend.set_value(variable, weights[key])
    return weights
