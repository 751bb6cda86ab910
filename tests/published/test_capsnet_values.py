"""CapsNet equals three published codes: golden/capsnet_*.npz."""

import pytest
import torch

import torchcaps as tc
from published.golden_file import GoldenFile, carry_over, difference, renamed

SIZES = {"channels": 8, "primary_types": 2, "num_classes": 4, "impl": "reference"}


def test_keras():
    """XifengGuo/CapsNet-Keras, the whole network with its decoder."""
    golden = GoldenFile("capsnet_keras")
    names = {"conv1": "conv", "primarycap_conv2d": "primary.conv"}
    names |= {f"dense_{k + 1}": f"decoder.layers.{2 * k}" for k in range(3)}
    weights = {}
    for name, tensor in golden.weights.items():
        layer, part = name.split("/")
        if part == "W":
            weights["class_capsules.votes.weight"] = tensor.permute(1, 0, 2, 3)
        elif part == "bias":
            weights[names[layer] + ".bias"] = tensor
        else:
            order = (3, 2, 0, 1) if tensor.dim() == 4 else (1, 0)
            weights[names[layer] + ".weight"] = tensor.permute(order)
    model = tc.create_model("capsnet", img_size=20, decoder=(6, 10), **SIZES)
    carry_over(model, weights)
    capsules = model.capsules(golden.inputs["images"].movedim(-1, 1))
    lengths = capsules.activation
    assert difference(lengths, golden.outputs["exact/lengths"]) < 1e-14
    assert difference(lengths, golden.outputs["lengths"]) < 2e-7  # Keras' epsilon is 1e-7
    drawings = model.draw(capsules).movedim(1, -1)
    assert difference(drawings, golden.outputs["exact/drawings"]) < 1e-14
    lengths[:, 0].sum().backward()
    gradient = model.conv.weight.grad.permute(2, 3, 1, 0)
    assert difference(gradient, golden.gradients["conv1/kernel"]) < 1e-14


def ours_xifeng_guo(golden):
    weights = renamed(golden, "conv1.", "conv.") | renamed(
        golden, "primary.conv2d.", "primary.conv."
    )
    W = golden.weights["classes.weight"]  # [parents, children, dim, in_dim]
    weights["class_capsules.votes.weight"] = W.permute(1, 0, 2, 3)
    return weights


def ours_gram_ai(golden):
    """Convolution d makes dimension d of every type; children are type after type."""
    weights = renamed(golden, "conv1.", "conv.")
    for part in ("weight", "bias"):
        parts = [golden.weights[f"primary.capsules.{d}.{part}"] for d in range(8)]
        weights["primary.conv." + part] = torch.stack(parts, dim=1).flatten(0, 1)
    W = golden.weights["classes.route_weights"]  # [parents, children, in_dim, dim]
    by_type = W.permute(1, 0, 3, 2).unflatten(0, (2, -1))
    weights["class_capsules.votes.weight"] = by_type.transpose(0, 1).flatten(0, 1)
    return weights


# Our weights, our options, and the difference: Guo's squash adds 1e-8 to the norm.
TORCH_CODES = {
    "xifeng_guo": (ours_xifeng_guo, {"grouping": "flat", "detach": True}, 2e-8),
    "gram_ai": (ours_gram_ai, {"over": "children"}, 1e-14),
}


@pytest.mark.parametrize("code", TORCH_CODES)
def test_torch(code):
    golden = GoldenFile(f"capsnet_{code}")
    library_state, options, tolerance = TORCH_CODES[code]
    model = tc.create_model("capsnet", img_size=21, decoder=False, **SIZES, **options)
    carry_over(model, library_state(golden))
    lengths = model(golden.inputs["images"])
    assert difference(lengths, golden.outputs["lengths"]) < tolerance
    lengths[:, 0].sum().backward()
    assert difference(model.conv.weight.grad, golden.gradients["conv1.weight"]) < tolerance
