"""Homogeneous vector capsules equal the author's whole network: golden/hvc.npz."""

import torchcaps as tc
from published.golden_file import GoldenFile, carry_over, difference

PARTS = {"bn_beta": "bias", "bn_mean": "running_mean", "bn_variance": "running_var"}


def library_state(golden):
    """Weights by our names; children are pixel after pixel in both."""
    weights = {}
    for name, tensor in golden.weights.items():
        layer, part = name.split("/")[-2:]
        number = int(layer[-1]) if layer[-1].isdigit() else 0
        if layer.startswith("W_conv"):
            module = f"convolutions.{number}"
            target = f"{module}.1.{PARTS[part]}" if part in PARTS else f"{module}.0.weight"
        elif layer.startswith("W_ocap"):
            module = f"class_capsules.{number - 1}"
            target = f"{module}.norm.{PARTS[part]}" if part in PARTS else f"{module}.weight"
        else:
            target = f"norm.{PARTS[part]}" if part in PARTS else "weights"
        weights[target] = tensor.permute(3, 2, 0, 1) if tensor.dim() == 4 else tensor
    return weights


def test_network():
    golden = GoldenFile("hvc")
    model = tc.create_model(
        "hvc", num_classes=4, img_size=11, convolutions=3, branches=(2, 3), merge="ones"
    )
    carry_over(model, library_state(golden))
    logits = model.logits(golden.inputs["images"].movedim(-1, 1))
    assert difference(logits, golden.outputs["logits"]) < 1e-12
    logits[:, 0].sum().backward()
    gradient = model.convolutions[0][0].weight.grad.permute(2, 3, 1, 0)
    assert difference(gradient, golden.gradients["W_conv0/variable"]) < 1e-12
