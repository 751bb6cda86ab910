"""The whole network of inverted attention equals the authors': golden/inverted_attention.npz."""

import pytest

import torchcaps as tc
from published.golden_file import GoldenFile, carry_over, difference, renamed

TYPES = 4
HIDDEN = 6


def library_state(golden):
    """Weights by our names; matrices follow children and parents."""
    weights = renamed(golden, "pre_caps.pre_caps.0.", "backbone.0.")
    weights |= renamed(golden, "pc_layer.", "primary.") | renamed(golden, "nonlinear_act.", "norm.")
    weights |= renamed(golden, "final_fc.", "classes_layer.")
    for layer in range(4):
        name = f"capsule_layers.layers.{layer}."
        weights |= renamed(golden, f"capsule_layers.{layer}.nonlinear_act.", name + "router.norm.")
        weights[name + "votes.weight"] = matrices(golden.weights[f"capsule_layers.{layer}.w"])
    return weights


def matrices(w):
    """Ours, `[children, parents, rows, columns]`, of theirs, `[..., children, x, d, parents]`.

    Windows are `[rows, columns, types]` in both.
    """
    return w.flatten(0, -4).permute(0, 3, 1, 2)


@pytest.mark.parametrize("schedule", ["concurrent", "sequential"])
def test_logits(schedule):
    golden = GoldenFile("inverted_attention")
    model = tc.create_model(
        "inverted_attention",
        num_classes=5,
        img_size=16,
        backbone="simple",
        types=TYPES,
        hidden=(HIDDEN,),
        iterations=3,
        sequential=schedule == "sequential",
    )
    carry_over(model, library_state(golden))
    logits = model.logits_of(model.capsules(golden.inputs["images"]))
    assert difference(logits, golden.outputs[schedule]) < 1e-12

    if schedule == "concurrent":
        logits[:, 0].sum().backward()
        for layer in (2, 3):
            gradient = model.capsule_layers.layers[layer].votes.weight.grad
            expected = matrices(golden.gradients[f"capsule_layers.{layer}.w"])
            assert difference(gradient, expected) < 1e-11
