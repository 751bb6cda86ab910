"""Whole networks with VB routing equal the authors' code: golden/vb_caps*.npz."""

import pytest
import torch

import torchcaps as tc
from published.golden_file import GoldenFile, carry_over, difference, renamed

POSE = 16
TYPES = 4
THEIR_COORDINATE = 0.1  # of each vote for the classes, at every position


def matrices(W):
    """Ours, `[children, parents, P, P]`, of theirs, `[1, B, C, 1, P, P, 1, 1, K, K]`."""
    return W.squeeze((0, 3, 6, 7)).permute(4, 5, 0, 1, 2, 3).flatten(0, 2)


def network_weights(golden, primary_types, layers):
    """Weights by our names.

    The costs beta, which we leave out, move the mean that the batch norm after them subtracts.
    """
    weights = renamed(golden, "Conv_1.", "stem.0.") | renamed(golden, "BN_1.", "stem.1.")
    both = golden.weights["PrimaryCaps.weight"]
    weights["primary.pose.weight"], weights["primary.activation.weight"] = both.split(
        [primary_types * POSE, primary_types]
    )
    weights |= renamed(golden, "PrimaryCaps.BN_p.", "primary.pose_norm.")
    weights |= renamed(golden, "PrimaryCaps.BN_a.", "primary.activation_norm.")
    for caps, routing, target in layers:
        weights[target + "votes.weight"] = matrices(golden.weights[caps + ".W_ij"])
        weights |= renamed(golden, routing + ".BN_v.", target + "router.norms.0.")
        weights |= renamed(golden, routing + ".BN_a.", target + "router.norms.1.")
        beta = golden.weights[routing + ".beta_a"] - golden.weights[routing + ".beta_u"]
        weights[target + "router.norms.1.running_mean"] -= beta.flatten()
    return weights


CLASSES = ("ClassCaps", "ClassRouting", "class_capsules.")
CONVOLUTIONS = tuple(
    (f"ConvCaps_{k + 1}", f"ConvRouting_{k + 1}", f"conv_capsules.{k}.") for k in range(2)
)
# Primary types, types of the convolutions, and the layers.
NETWORKS = {
    "vb_caps": (3, (TYPES, TYPES), [*CONVOLUTIONS, CLASSES]),
    "vb_caps_tiny": (TYPES, (), [CLASSES]),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_activations(name):
    golden = GoldenFile(name)
    primary_types, types, layers = NETWORKS[name]
    model = tc.create_model(
        "vb_caps",
        channels=8,
        primary_types=primary_types,
        types=types,
        local_start=True,
    )
    carry_over(model, network_weights(golden, primary_types, layers))
    if types:
        zeros = torch.zeros_like(model.class_capsules.centers)
        model.class_capsules.votes.places = zeros
        places = model.class_capsules.votes.places
        places[..., [3, 7]] = THEIR_COORDINATE
    normed = []
    model.stem[1].register_forward_hook(lambda *call: normed.append(call[2]))
    activation = model.capsules(golden.inputs["images"]).activation
    assert difference(activation, golden.outputs["activation"]) < 1e-12
    activation[:, 0].sum().backward()
    # Where a pixel of a channel is zero but for rounding, rounding decides the slope of the ReLU.
    is_sure = normed[0].abs().amin(dim=(0, 2, 3)) > 1e-9
    assert is_sure.sum() >= 6
    gradient = model.stem[0].weight.grad[is_sure]
    assert difference(gradient, golden.gradients["Conv_1.weight"][is_sure]) < 1e-12
