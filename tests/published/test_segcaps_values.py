"""SegCaps equals the authors' network, in a mirror: golden/segcaps.npz."""

import torchcaps as tc
from published.golden_file import GoldenFile, carry_over, difference
from torchcaps.nn.map_routing import MapRouting

NAMES = {"primarycaps": "primary", "seg_caps": "seg_caps", "conv1": "conv1"}
NAMES |= {f"conv_cap_{level}": f"caps{level}" for level in ("2_1", "2_2", "3_1", "3_2", "4_1")}
NAMES |= {f"deconv_cap_{level}": f"up{level}" for level in ("1_1", "1_2", "2_1", "2_2", "3_1")}


def library_state(golden):
    """Weights by our names, mirrored.

    Where the map is halved, Keras adds one row before and two after; we add two before and use
    one after. So our windows are theirs in a mirror.
    """
    weights = {}
    for name, tensor in golden.weights.items():
        layer, part = name.split("/")
        target = NAMES[layer] if layer == "conv1" else NAMES[layer] + ".votes"
        if part in ("kernel", "W"):
            weights[target + ".weight"] = tensor.permute(3, 2, 0, 1).flip(2, 3)
        elif part == "b":
            weights[target + ".bias"] = tensor[0, 0]
        else:
            weights[target + ".bias"] = tensor
    return weights


def test_network():
    golden = GoldenFile("segcaps")
    model = tc.create_model("segcaps", img_size=(16, 24), dim=4, decoder=False)
    carry_over(model, library_state(golden))
    for module in model.modules():
        if isinstance(module, MapRouting):
            module.impl = "reference"
    images = golden.inputs["images"].movedim(-1, 1).flip(2, 3)
    lengths = model(images).flip(2, 3).movedim(1, -1)
    assert difference(lengths, golden.outputs["lengths"]) < 1e-14
    lengths[:, :8].sum().backward()
    gradient = model.conv1.weight.grad.flip(2, 3).permute(2, 3, 1, 0)
    assert difference(gradient, golden.gradients["conv1/kernel"]) < 1e-13
