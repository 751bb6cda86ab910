"""Golden files: inputs, weights and outputs of published code, in `golden/`; see its README."""

from pathlib import Path

import numpy as np
import torch

FOLDER = Path(__file__).parent / "golden"


class GoldenFile:
    """The tensors of one file, in float64.

    Args:
        name: of the file, without its suffix.

    Attributes:
        inputs, weights, outputs, gradients: tensors by the name that the published code has;
            gradients are by the name of their weight.
    """

    def __init__(self, name):
        groups = {"input": {}, "weight": {}, "output": {}, "gradient": {}}
        with np.load(FOLDER / f"{name}.npz") as arrays:
            for key, array in arrays.items():
                kind, _, name_of_tensor = key.partition("/")
                groups[kind][name_of_tensor] = torch.from_numpy(array.astype(np.float64))
        self.inputs = groups["input"]
        self.weights = groups["weight"]
        self.outputs = groups["output"]
        self.gradients = groups["gradient"]

    def of(self, prefix):
        """The weights whose names begin so, by the rest of their names."""
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in self.weights.items()
            if name.startswith(prefix)
        }


def carry_over(model, weights):
    """Give a model weights by its own names, and expect one for each; returns it for evaluation.

    Counters of batches are not weights.
    """
    model = model.double().eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    assert (missing, unexpected) == ([], [])
    return model


def renamed(weights, before, after):
    """Weights whose names begin with `after` where they began with `before`."""
    return {after + name: tensor for name, tensor in weights.of(before).items()}


def difference(tensor, expected):
    """Largest absolute difference; shapes must be the same."""
    assert tensor.shape == expected.shape
    return (tensor.detach() - expected).abs().max().item()
