"""DeepCaps equals the authors' network, in a mirror: golden/deepcaps.npz."""

import torch

import torchcaps as tc
from published.golden_file import GoldenFile, carry_over, difference

TYPES = 4
KERAS_EPSILON = 1e-3  # of batch norms
# For each cell the numbers of their layers: first, skip, second, third.
CELLS = [("first", "skip", "second", "third")] * 3 + [("first", "second", "third")]
SIDES = (4, 8)  # of the maps of the fourth and the third cell, which vote for the classes


def mirrored(kernel):
    """Theirs, `[rows, columns, in types, in dims, types, dims]`, as a convolution in a mirror."""
    return kernel.flatten(4).flatten(2, 3).permute(3, 2, 0, 1).flip(2, 3)


def class_weights(W):
    """Ours, `[children, classes, dim, in_dim]`, of theirs, whose children are pixel after pixel."""
    children = W.permute(1, 0, 2, 3).split([TYPES * side**2 for side in SIDES])
    parts = []
    for part, side in zip(children, SIDES, strict=True):
        map_of_types = part.unflatten(0, (side, side, TYPES)).flip(0, 1)
        parts.append(map_of_types.movedim(2, 0).flatten(0, 2))
    return torch.cat(parts)


def library_state(golden):
    """Weights by our names. Keras adds a row after a map that it halves; we add one before."""
    norm = golden.of("batch_normalization_1/")
    weights = {
        "stem.0.weight": golden.weights["conv2d_1/kernel"].permute(3, 2, 0, 1).flip(2, 3),
        "stem.0.bias": golden.weights["conv2d_1/bias"],
        "stem.2.weight": norm["gamma"],
        "stem.2.bias": norm["beta"],
        "stem.2.running_mean": norm["moving_mean"],
        "stem.2.running_var": norm["moving_variance"],
    }
    number = 0
    for cell, layers in enumerate(CELLS):
        for layer in layers:
            number += 1
            kernel = golden.weights[f"conv2d_caps_{number}/kernel"]
            weights[f"cells.{cell}.{layer}.weight"] = mirrored(kernel)
    routed = golden.of("conv_capsule_layer3d_1/")
    kernel = routed["W"][:, :, :, 0].permute(3, 0, 1, 2).flip(2, 3)
    weights["cells.3.skip.votes.weight"] = kernel
    weights["cells.3.skip.votes.bias"] = routed["b"][..., 0, 0]
    weights["class_capsules.votes.weight"] = class_weights(golden.weights["digit_caps/W"])
    weights["class_capsules.votes.bias"] = golden.weights["digit_caps/B"]
    return weights


def as_theirs(route_map):
    """The routed skip as their code has it: numbers of a map are read in another order."""

    def route_mixed_map(x):
        upright = x.flip(2, 3)
        mixed = upright.movedim(1, -1).reshape(x.shape)
        return route_map(mixed.flip(2, 3))

    return route_mixed_map


def test_network():
    golden = GoldenFile("deepcaps")
    model = tc.create_model("deepcaps", channels=8, types=TYPES, num_classes=3, decoder=False)
    carry_over(model, library_state(golden))
    model.stem[2].eps = KERAS_EPSILON
    skip = model.cells[3].skip
    skip.route_map = as_theirs(skip.route_map)
    lengths = model(golden.inputs["images"].movedim(-1, 1).flip(2, 3))
    assert difference(lengths, golden.outputs["lengths"]) < 1e-14
    lengths[:, 0].sum().backward()
    gradient = model.stem[0].weight.grad.flip(2, 3).permute(2, 3, 1, 0)
    assert difference(gradient, golden.gradients["conv2d_1/kernel"]) < 1e-13
