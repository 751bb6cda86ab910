"""Published weights: files in the layouts of their sources, and the lengths that they give."""

import resource
import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

import torchcaps as tc
from torchcaps.cli.main import main
from torchcaps.errors import RunError
from torchcaps.training import import_weights, imported
from torchcaps.weight_files import read_tensors

# Names as Keras and PyTorch write them, and shapes.
KERAS = {
    "conv1/conv1/kernel:0": (9, 9, 1, 256),
    "conv1/conv1/bias:0": (256,),
    "primarycap_conv2d/primarycap_conv2d/kernel:0": (9, 9, 256, 256),
    "primarycap_conv2d/primarycap_conv2d/bias:0": (256,),
    "digitcaps/digitcaps/W:0": (10, 1152, 16, 8),
    "decoder/dense_1/kernel:0": (160, 512),
    "decoder/dense_1/bias:0": (512,),
    "decoder/dense_2/kernel:0": (512, 1024),
    "decoder/dense_2/bias:0": (1024,),
    "decoder/dense_3/kernel:0": (1024, 784),
    "decoder/dense_3/bias:0": (784,),
}
DECODER = {
    "decoder.0.weight": (512, 160),
    "decoder.0.bias": (512,),
    "decoder.2.weight": (1024, 512),
    "decoder.2.bias": (1024,),
    "decoder.4.weight": (784, 1024),
    "decoder.4.bias": (784,),
}
PYTORCH = {
    "conv1.weight": (256, 1, 9, 9),
    "conv1.bias": (256,),
    "primarycaps.conv2d.weight": (256, 256, 9, 9),
    "primarycaps.conv2d.bias": (256,),
    "digitcaps.weight": (10, 1152, 16, 8),
    **DECODER,
}


def gram_shapes():
    """Shapes of the weights of gram-ai/capsule-networks."""
    shapes = {"conv1.weight": (256, 1, 9, 9), "conv1.bias": (256,)}
    for number in range(8):
        capsule = f"primary_capsules.capsules.{number}"
        shapes |= {f"{capsule}.weight": (32, 256, 9, 9), f"{capsule}.bias": (32,)}
    shapes["digit_capsules.route_weights"] = (10, 1152, 8, 16)
    return shapes | DECODER


def port_shapes():
    """Shapes of the weights of the port of Efficient-CapsNet to PyTorch."""
    shapes = {}
    convolutions = ((32, 1, 5, 5), (64, 32, 3, 3), (64, 64, 3, 3), (128, 64, 3, 3))
    for number, kernel in enumerate(convolutions, start=1):
        conv = f"efficient_capsnet.conv{number}"
        norm = f"efficient_capsnet.bn{number}"
        out_channels = kernel[:1]
        shapes |= {f"{conv}.weight": kernel, f"{conv}.bias": out_channels}
        for name in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{norm}.{name}"] = out_channels
        shapes[f"{norm}.num_batches_tracked"] = ()
    shapes |= {
        "efficient_capsnet.primary_caps.dw_conv2d.weight": (128, 1, 9, 9),
        "efficient_capsnet.primary_caps.dw_conv2d.bias": (128,),
        "efficient_capsnet.routing_caps.W": (10, 16, 8, 16),
        "efficient_capsnet.routing_caps.b": (10, 16, 1),
    }
    for name, shape in DECODER.items():
        shapes[name.replace("decoder.", "generator.fc")] = shape
    return shapes


def filled(shapes, amplitudes=None):
    """Arrays of numbers that depend on their places alone."""
    arrays = {}
    for t, (name, shape) in enumerate(shapes.items()):
        j = np.arange(int(np.prod(shape)), dtype=np.int64)
        amplitude = (amplitudes or {}).get(name.rpartition(".")[2], 0.05)
        numbers = (((j * j + 31 * j + 17 * t) % 65521) / 32760.5 - 1) * amplitude
        if name.endswith(("running_var", "bn1.weight", "bn2.weight", "bn3.weight", "bn4.weight")):
            numbers += 1
        arrays[name] = numbers.astype(np.float32).reshape(shape)
        if name.endswith("num_batches_tracked"):
            arrays[name] = np.asarray(7)
    return arrays


@pytest.fixture(autouse=True)
def in_this_process(request, monkeypatch):
    """Read files in this process, which saves seconds, unless a test asks for `isolated`."""
    if "isolated" not in request.fixturenames:
        monkeypatch.setattr(imported, "call_isolated", lambda _, path, **limits: read_tensors(path))


@pytest.fixture
def isolated():
    """A file is read in a process of its own."""


def digit():
    h, w = np.mgrid[:28, :28]
    return torch.tensor((7 * h + 3 * w + h * w) % 16 / 15, dtype=torch.float32)[None, None]


def as_tensors(arrays):
    return {name: torch.tensor(array) for name, array in arrays.items()}


def saved(path, arrays):
    torch.save(as_tensors(arrays), path)
    return path


def saved_by_keras(path, tensors, layers=("input_1", "mask")):
    """As `save_weights` writes it.

    Layers without weights have a group too, and names hold the layer once more.
    """
    h5py = pytest.importorskip("h5py")
    by_layer = {layer: [] for layer in layers}
    for name in tensors:
        layer, _, weight = name.partition("/")
        by_layer.setdefault(layer, []).append(weight)
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = list(map(str.encode, by_layer))
        for layer, weights in by_layer.items():
            group = file.create_group(layer)
            group.attrs["weight_names"] = list(map(str.encode, weights))
            for weight in weights:
                group.create_dataset(weight, data=tensors[f"{layer}/{weight}"])
    return path


def import_model(path):
    model_file, _ = import_weights(path)
    return tc.load(model_file)


@torch.no_grad()
def check_lengths(path, images, *expected):
    """Compare the lengths of the first classes of the imported model, for the first image."""
    lengths = import_model(path)(images)[0, : len(expected)]
    torch.testing.assert_close(lengths, torch.tensor(expected), atol=1e-5, rtol=0)


def test_capsnet_of_keras(tmp_path, isolated):
    numbers = filled(KERAS, {"digitcaps/digitcaps/W:0": 0.2})
    file = saved_by_keras(tmp_path / "w.h5", numbers)
    check_lengths(file, digit(), 0.31141, 0.56665, 0.30734, 0.39682, 0.40573)


def test_capsnet_of_pytorch(tmp_path):
    numbers = filled(PYTORCH)
    numbers["digitcaps.weight"] *= 4
    file = saved(tmp_path / "w.pkl", numbers)
    check_lengths(file, digit(), 0.46758, 0.42278, 0.64500, 0.25243, 0.43273)


def test_gram_ai(tmp_path):
    """Its routing is over all images of a batch together."""
    file = saved(tmp_path / "w.pt", filled(gram_shapes(), {"route_weights": 5}))
    images = torch.cat([digit(), digit().flip(3)])
    check_lengths(file, images, 0.13836, 0.09796, 0.07434, 0.14486, 0.13655)


def test_port_of_efficient_capsnet(tmp_path):
    file = tmp_path / "w.pt"
    torch.save({"state_dict": as_tensors(filled(port_shapes(), {"W": 2}))}, file)
    check_lengths(file, digit(), 0.30961, 0.06117, 0.10436, 0.06914, 0.05585)


def keras_layout(tensor):
    """Kernels with their channels last, and matrices with their inputs first."""
    array = tensor.numpy()
    if array.ndim == 4 and array.shape[-1] < 16:
        return array.transpose(2, 3, 1, 0)
    return array.T if array.ndim == 2 else array


def as_keras(model):
    """The state of an Efficient-CapsNet in the order and layout of the authors' files."""
    state = model.state_dict()
    tensors = []
    for number in (0, 2, 3, 5, 6, 8, 9, 11):
        tensors += [state[f"stem.{number}.weight"], state[f"stem.{number}.bias"]]
    tensors += [
        state["primary.weight"],
        state["primary.bias"],
        state["class_capsules.votes.weight"].permute(1, 0, 3, 2),
        state["class_capsules.router.prior"].T[..., None],
    ]
    if model.stem[2].track_running_stats:
        for norm in (2, 5, 8, 11):
            tensors += [state[f"stem.{norm}.running_mean"], state[f"stem.{norm}.running_var"]]

    arrays = {}
    for tensor in tensors:
        arrays[f"CapsNet/layer_{len(arrays)}/kernel:0"] = keras_layout(tensor)
    for weight in model.decoder.state_dict().values():
        arrays[f"Generator/layer_{len(arrays)}/kernel:0"] = keras_layout(weight)
    return arrays


@pytest.mark.parametrize("name", ["efficient_capsnet_smallnorb", "efficient_capsnet_multimnist"])
def test_efficient_capsnet(tmp_path, name):
    model = tc.create_model(name).eval()
    for key, x in model.state_dict().items():
        if "running" in key:
            x.uniform_(0.5, 1.5)
        elif "prior" in key:
            x.normal_()
    imported_model = import_model(saved_by_keras(tmp_path / "w.h5", as_keras(model)))
    images = torch.rand(2, model.in_chans, *model.img_size)
    torch.testing.assert_close(imported_model(images), model(images))
    torch.testing.assert_close(
        imported_model.reconstruct(imported_model.capsules(images)),
        model.reconstruct(model.capsules(images)),
    )
    assert imported_model.classes == tuple(map(str, range(model.num_classes)))


def test_a_decoder_with_channels_last(tmp_path):
    sizes = {
        "conv1/kernel:0": (9, 9, 3, 4),
        "conv1/bias:0": (4,),
        "p/kernel:0": (9, 9, 4, 8),
        "p/bias:0": (8,),
        "d/W:0": (12, 8, 3, 4),
        "g/a:0": (36, 512),
        "g/b:0": (512,),
        "g/c:0": (512, 1024),
        "g/d:0": (1024,),
        "g/e:0": (1024, 3 * 19 * 19),
        "g/f:0": (3 * 19 * 19,),
    }
    numbers = filled(sizes)
    model = import_model(saved_by_keras(tmp_path / "w.h5", numbers))
    assert model.img_size == (19, 19)
    assert model.class_capsules.bias is None
    capsules = model.capsules(torch.rand(1, 3, 19, 19))
    x = tc.nn.mask_capsules(capsules).flatten(1)
    for weight, bias in ("ab", "cd"):
        x = torch.relu(
            x @ torch.tensor(numbers[f"g/{weight}:0"]) + torch.tensor(numbers[f"g/{bias}:0"])
        )
    logits = x @ torch.tensor(numbers["g/e:0"]) + torch.tensor(numbers["g/f:0"])
    pixels = logits.sigmoid().reshape(19, 19, 3)
    torch.testing.assert_close(model.reconstruct(capsules)[0], pixels.permute(2, 0, 1))


TINY = {
    "conv1.weight": (4, 1, 9, 9),
    "conv1.bias": (4,),
    "p.weight": (8, 4, 9, 9),
    "p.bias": (8,),
    "w": (3, 8, 5, 4),
    "a": (512, 15),
    "b": (512,),
    "c": (1024, 512),
    "d": (1024,),
    "e": (361, 1024),
    "f": (361,),
}


def test_the_command_line_makes_a_model_file_of_weights(tmp_path, capsys):
    path = saved(tmp_path / "w.pkl", filled(TINY))
    assert main(["import", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == str(tmp_path / "w.safetensors")
    assert err == "the weights are of XifengGuo/CapsNet-Pytorch\n"
    Image.fromarray(np.zeros((19, 19), np.uint8)).save(tmp_path / "a.png")
    assert main(["predict", str(tmp_path / "w.safetensors"), str(tmp_path / "a.png")]) == 0
    assert main(["import", str(path)]) == 1
    assert "w.safetensors: is there already; name another --output" in capsys.readouterr().err
    assert main(["import", str(path), "--output", str(tmp_path / "other.safetensors")]) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"g": (3,)}, "XifengGuo/CapsNet-Pytorch: expected 11 tensors, got 12"),
        ({"d": (1023,)}, r"d: expected \[1024\], for decoder.layers.2.bias, got \[1023\]"),
        (
            {"w": (3, 9, 5, 4)},
            r"do not fit .* \(size mismatch for class_capsules.votes.weight: \[9, 3, 5, 4\] in",
        ),
        ({"e": (0, 1024), "f": (0,)}, "expected tensors with numbers in them, got one of "),
        (
            {"conv1.weight": (4, 1, 5)},
            "holds the weights of no known source .*conv1.weight: expected",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path, change, message):
    with pytest.raises(RunError, match=message):
        import_weights(saved(tmp_path / "w.pkl", filled(TINY | change)))
    assert not (tmp_path / "w.safetensors").exists()


class Harmful:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            as_tensors(filled(TINY)) | {"f": Harmful()},
            "holds no weights that can be read without running code",
        ),
        ({"f": 1}, "expected tensors by name"),
        (
            as_tensors(filled(TINY)) | {"f": torch.full((361,), torch.nan)},
            "decoder.layers.4.bias holds infinite numbers or NaN",
        ),
    ],
)
def test_files_that_hold_no_weights_are_refused(tmp_path, capsys, content, message):
    path = tmp_path / "w.pt"
    torch.save(content, path)
    with pytest.raises(RunError, match=message):
        import_weights(path)
    assert capsys.readouterr().out == ""


def test_files_that_cannot_be_read_are_named(tmp_path):
    path = tmp_path / "w.pt"
    path.write_bytes(b"nothing")
    with pytest.raises(RunError, match="holds no weights that can be read"):
        import_weights(path)
    with pytest.raises(RunError, match="none.h5: cannot be read \\(No such file"):
        import_weights(tmp_path / "none.h5")


def test_damaged_files_of_keras_are_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "w.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(3)
    with pytest.raises(RunError, match="holds no readable weights of Keras"):
        import_weights(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunError, match="w.h5: "):
        import_weights(path)
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = ["a"]
        file.create_group("a").attrs["weight_names"] = ["b"]
        file["a"].create_dataset(
            "b", (1 << 30, 1 << 10), "f4", chunks=(1024, 1024)
        )  # no numbers are stored
    with pytest.raises(RunError, match="expected at most 67,108,864 numbers"):
        import_weights(path)


def test_references_to_another_file_are_not_read(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "w.h5"
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["b"] = np.zeros(3)

    def virtual(group):
        layout = h5py.VirtualLayout((3,), "f4")
        layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "b", (3,))
        group.create_virtual_dataset("b", layout)

    def linked(group):
        group["b"] = h5py.ExternalLink(tmp_path / "secret.h5", "b")

    def external(group):
        group.create_dataset("b", (3,), "f4", external=[("/dev/zero", 0, h5py.h5f.UNLIMITED)])

    for make, message in (
        (external, "b is kept in another file"),
        (virtual, "b is kept in another file"),
        (linked, "b is a link"),
    ):
        with h5py.File(path, "w") as file:
            file.attrs["layer_names"] = ["a"]
            file.create_group("a").attrs["weight_names"] = ["b"]
            make(file["a"])
        with pytest.raises(RunError, match=message):
            import_weights(path)


def deflated(path, mebibytes):
    """Zeros in a small file."""
    torch.save({"a": torch.zeros(1)}, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            with archive.open(name, "w", force_zip64=True) as member:
                if name.endswith("data/0"):
                    for _ in range(mebibytes):
                        member.write(bytes(1 << 20))
                member.write(content)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_files_of_too_many_numbers_are_refused(tmp_path):
    path = tmp_path / "w.pt"
    torch.save({"a": torch.zeros(1).expand(1 << 16, 1 << 17)}, path)
    with pytest.raises(RunError, match="expected at most 67,108,864 numbers, got 8,589,934,592"):
        import_weights(path)
    torch.save({"a": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])}, path)
    with pytest.raises(RunError, match=r"w\.pt: "):
        import_weights(path)


@pytest.mark.slow
def test_files_that_expand_are_refused(tmp_path, isolated):
    path = tmp_path / "w.pt"
    deflated(path, mebibytes=2200)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RunError, match=r"w\.pt: "):
        import_weights(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


def test_without_h5py_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    path = tmp_path / "w.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n")
    sentence = "reading Keras' weights needs h5py; install it with: pip install 'torchcaps[h5]'"
    assert read_tensors(str(path)) == sentence
