"""Efficient-CapsNet equals the authors' networks: golden/efficient_capsnet_*.npz."""

import numpy as np
import pytest

import torchcaps as tc
from published.golden_file import GoldenFile, carry_over, difference

NORM = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


def library_state(golden):
    """Weights by our names."""
    weights = {}
    for name, tensor in golden.weights.items():
        layer, part = name.split("/")
        kind = layer[:-1]
        number = int(layer[-1]) - 1
        if part == "kernel":
            tensor = tensor.permute(3, 2, 0, 1)
            part = "weight"
        if kind == "conv":
            weights[f"stem.{3 * number}.{part}"] = tensor
        elif kind == "norm":
            weights[f"stem.{3 * number + 2}.{NORM[part]}"] = tensor
        elif kind == "primary":
            weights[f"primary.{part}"] = tensor
        elif part == "W":
            weights["class_capsules.votes.weight"] = tensor.permute(1, 0, 3, 2)
        else:
            weights["class_capsules.router.prior"] = tensor[..., 0].T
    return weights


# TensorFlow holds the slope 0.3 in single precision.
NETWORKS = {
    "mnist": ("efficient_capsnet", {}),
    "smallnorb": ("efficient_capsnet_smallnorb", {"slope": np.float32(0.3).item()}),
}


@pytest.mark.parametrize("data", NETWORKS)
def test_network(data):
    golden = GoldenFile(f"efficient_capsnet_{data}")
    name, options = NETWORKS[data]
    model = carry_over(tc.create_model(name, decoder=None, **options), library_state(golden))
    pose, lengths = model.capsules(golden.inputs["images"].movedim(-1, 1))
    assert difference(pose, golden.outputs["pose"]) < 1e-14
    # Their lengths add Keras' epsilon to the square.
    their_lengths = (pose.square().sum(dim=-1) + 1e-7).sqrt()
    assert difference(their_lengths, golden.outputs["lengths"]) < 1e-14
    assert difference(lengths, golden.outputs["lengths"]) < 2e-7

    their_lengths[:, 0].sum().backward()
    gradient = model.class_capsules.router.prior.grad.T
    assert difference(gradient, golden.gradients["classes1/b"][..., 0]) < 1e-14
