"""Published weights: files written here in the layouts of their sources, and the lengths that they give."""

import sys

import numpy as np
import pytest
import torch

import torchcaps as tc
from torchcaps.cli.main import main
from torchcaps.errors import RunError
from torchcaps.training import import_weights

# Names as Keras and PyTorch write them, and shapes; amplitudes of those that are not filled with 0.05.
KERAS = {
    "conv1/conv1/kernel:0": (9, 9, 1, 256), "conv1/conv1/bias:0": (256,),
    "primarycap_conv2d/primarycap_conv2d/kernel:0": (9, 9, 256, 256), "primarycap_conv2d/primarycap_conv2d/bias:0": (256,),
    "digitcaps/digitcaps/W:0": (10, 1152, 16, 8),
    "decoder/dense_1/kernel:0": (160, 512), "decoder/dense_1/bias:0": (512,),
    "decoder/dense_2/kernel:0": (512, 1024), "decoder/dense_2/bias:0": (1024,),
    "decoder/dense_3/kernel:0": (1024, 784), "decoder/dense_3/bias:0": (784,),
}  # fmt: skip
DECODER = {
    f"{part}.{kind}": shape
    for part, out, into in (("decoder.0", 512, 160), ("decoder.2", 1024, 512), ("decoder.4", 784, 1024))
    for kind, shape in (("weight", (out, into)), ("bias", (out,)))
}
PYTORCH = {
    "conv1.weight": (256, 1, 9, 9), "conv1.bias": (256,), "primarycaps.conv2d.weight": (256, 256, 9, 9),
    "primarycaps.conv2d.bias": (256,), "digitcaps.weight": (10, 1152, 16, 8), **DECODER,
}  # fmt: skip
GRAM = {
    "conv1.weight": (256, 1, 9, 9), "conv1.bias": (256,),
    **{
        f"primary_capsules.capsules.{d}.{kind}": shape
        for d in range(8) for kind, shape in (("weight", (32, 256, 9, 9)), ("bias", (32,)))
    },
    "digit_capsules.route_weights": (10, 1152, 8, 16), **DECODER,
}  # fmt: skip
PORT = {}
for _n, (_below, _above) in enumerate(((1, 32), (32, 64), (64, 64), (64, 128)), start=1):
    _k = 5 if _n == 1 else 3
    PORT |= {
        f"efficient_capsnet.conv{_n}.weight": (_above, _below, _k, _k),
        f"efficient_capsnet.conv{_n}.bias": (_above,),
    }
    PORT |= {
        f"efficient_capsnet.bn{_n}.{kind}": (_above,) for kind in ("weight", "bias", "running_mean", "running_var")
    } | {f"efficient_capsnet.bn{_n}.num_batches_tracked": ()}
PORT |= {
    "efficient_capsnet.primary_caps.dw_conv2d.weight": (128, 1, 9, 9),
    "efficient_capsnet.primary_caps.dw_conv2d.bias": (128,),
    "efficient_capsnet.routing_caps.W": (10, 16, 8, 16), "efficient_capsnet.routing_caps.b": (10, 16, 1),
    **{name.replace("decoder.", "generator.fc"): shape for name, shape in DECODER.items()},
}  # fmt: skip


def filled(shapes, amplitudes=None):
    """Numbers that come from their places alone."""
    found = {}
    for t, (name, shape) in enumerate(shapes.items()):
        j = np.arange(int(np.prod(shape)), dtype=np.int64)
        value = (((j * j + 31 * j + 17 * t) % 65521) / 32760.5 - 1) * (amplitudes or {}).get(
            name.rpartition(".")[2], 0.05
        )
        if name.endswith(("running_var", "bn1.weight", "bn2.weight", "bn3.weight", "bn4.weight")):
            value += 1
        found[name] = value.astype(np.float32).reshape(shape)
        if name.endswith("num_batches_tracked"):
            found[name] = np.asarray(7)
    return found


def digit():
    h, w = np.mgrid[:28, :28]
    return torch.tensor((7 * h + 3 * w + h * w) % 16 / 15, dtype=torch.float32)[None, None]


def saved(path, tensors, **more):
    torch.save({name: torch.tensor(value) for name, value in tensors.items()} | more, path)
    return path


def saved_by_keras(path, tensors, layers=("input_1", "mask")):
    """As `save_weights` writes it: layers without weights have a group too, and names hold the layer once more."""
    h5py = pytest.importorskip("h5py")
    by_layer = {layer: [] for layer in layers}
    for name in tensors:
        layer, _, weight = name.partition("/")
        by_layer.setdefault(layer, []).append(weight)
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [layer.encode() for layer in by_layer]
        for layer, weights in by_layer.items():
            group = file.create_group(layer)
            group.attrs["weight_names"] = [name.encode() for name in weights]
            for weight in weights:
                group.create_dataset(weight, data=tensors[f"{layer}/{weight}"])
    return path


def lengths(path, images):
    written, _ = import_weights(path)
    return tc.load(written)(images).detach()


def test_capsnet_of_keras(tmp_path):
    shapes = {name: shape for name, shape in KERAS.items()}
    found = lengths(
        saved_by_keras(tmp_path / "w.h5", filled(shapes, {KEY: 0.2 for KEY in ["digitcaps/digitcaps/W:0"]})), digit()
    )
    expected = [0.31141, 0.56665, 0.30734, 0.39682, 0.40573, 0.45391, 0.47193, 0.35118, 0.56829, 0.55093]
    torch.testing.assert_close(found, torch.tensor([expected]), atol=1e-5, rtol=0)


def test_capsnet_of_pytorch(tmp_path):
    numbers = filled(PYTORCH)
    numbers["digitcaps.weight"] *= 4
    found = lengths(saved(tmp_path / "w.pkl", numbers), digit())
    expected = [0.46758, 0.42278, 0.64500, 0.25243, 0.43273, 0.44191, 0.74303, 0.35321, 0.43562, 0.34022]
    torch.testing.assert_close(found, torch.tensor([expected]), atol=1e-5, rtol=0)


def test_gram_ai(tmp_path):
    found = lengths(saved(tmp_path / "w.pt", filled(GRAM, {"route_weights": 5})), torch.cat([digit(), digit().flip(3)]))
    expected = [0.13836, 0.09796, 0.07434, 0.14486, 0.13655, 0.10992, 0.07390, 0.15356, 0.09014, 0.09393]
    torch.testing.assert_close(found[:1], torch.tensor([expected]), atol=1e-5, rtol=0)


def test_port_of_efficient_capsnet(tmp_path):
    numbers = filled(PORT, {"W": 2})
    found = lengths(saved(tmp_path / "w.pt", {}, state_dict={k: torch.tensor(v) for k, v in numbers.items()}), digit())
    expected = [0.30961, 0.06117, 0.10436, 0.06914, 0.05585, 0.05701, 0.09121, 0.12142, 0.10911, 0.10160]
    torch.testing.assert_close(found, torch.tensor([expected]), atol=1e-5, rtol=0)
