from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import stat
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import torchcaps as tc
from torchcaps.data import Preprocess
from torchcaps.errors import ArgumentError, RunError, TrainingError
from torchcaps.training import OptionError, load
from torchcaps.training.checkpoint import build_model, describe_model
from torchcaps.training.files import FORMAT, atomic, load_tensors, save_tensors, write_json

from .makers import TINY

DESCRIPTION = describe_model(
    "capsnet", TINY | {"decoder": False}, ("cat", "dog"), Preprocess((20, 18), 3)
)


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "model.safetensors"
    save_tensors(path, build_model(DESCRIPTION).state_dict(), DESCRIPTION)
    return path


def test_a_model_comes_back_with_its_classes_preprocessing_and_outputs(tmp_path):
    model = build_model(DESCRIPTION).eval()
    save_tensors(tmp_path / "model.safetensors", model.state_dict(), DESCRIPTION)
    for place in (tmp_path, tmp_path / "model.safetensors", str(tmp_path)):
        loaded = load(place)
        assert not loaded.training
        assert loaded.classes == ("cat", "dog")
        assert loaded.preprocess == Preprocess((20, 18), 3)
        images = torch.rand(2, 3, 20, 18)
        assert torch.equal(loaded(images), model(images))


def test_equal_content_gives_equal_bytes(tmp_path):
    tensors = {"b": torch.arange(6.0).view(2, 3), "a": torch.ones(3)}
    save_tensors(tmp_path / "one", tensors, {"x": 1, "y": 2})
    save_tensors(tmp_path / "two", dict(reversed(tensors.items())), {"y": 2, "x": 1})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WHOLE_NUMBERS = (torch.bool, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def test_tensors_of_every_kind_and_shape_come_back(tmp_path):
    weight = torch.arange(48.0).view(2, 3, 2, 4).contiguous(memory_format=torch.channels_last)
    # The last two share memory.
    tensors = {"none": torch.zeros(0, 4), "number": torch.tensor(1), "w": weight, "x": weight[1:]}
    for dtype in FLOATS + WHOLE_NUMBERS:
        tensors[str(dtype)] = torch.arange(6).view(2, 3).to(dtype)
    save_tensors(tmp_path / "x", tensors, {"é": ["ü", 1.5, None]})
    loaded, description = load_tensors(tmp_path / "x")
    assert description == {"é": ["ü", 1.5, None]}
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)


def test_a_kind_of_tensor_that_a_checkpoint_does_not_hold_is_named(tmp_path):
    with pytest.raises(TrainingError, match=r"x: cannot be written \(.*complex128"):
        save_tensors(tmp_path / "x", {"a": torch.ones(1, dtype=torch.complex128)}, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "version",
    [
        None,
        2,
    ],
)
def test_another_format_is_refused(model_file, version):
    tensors, description = load_tensors(model_file)
    save_tensors(model_file, tensors, description | {"format": version})
    for read in (load, load_tensors):
        with pytest.raises(RunError, match=f"expected a checkpoint of format 1, got {version}"):
            read(model_file)


def test_every_bit_that_flips_is_noticed(tmp_path):
    path = tmp_path / "x.safetensors"
    save_tensors(path, {"w": torch.randn(16, 12), "b": torch.zeros(12)}, {"model": "capsnet"})
    content = path.read_bytes()
    random = Random(7)
    header_bits = 8 * (8 + int.from_bytes(content[:8], "little"))
    bits = random.sample(range(header_bits), 150)
    bits += random.sample(range(header_bits, 8 * len(content)), 50)
    for bit in bits:
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(RunError):
            load_tensors(path)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_files_have_the_permissions_of_the_mask(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_json(tmp_path / "x.json", {})
        save_tensors(tmp_path / "x.safetensors", {"a": torch.ones(1)}, {})
    finally:
        os.umask(before)
    for name in ("x.json", "x.safetensors"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o666 & ~mask


def test_two_writers_of_one_file_do_not_share_a_partial_one(tmp_path):
    with atomic(tmp_path / "x") as first, atomic(tmp_path / "x") as second:
        first.write_text("first")
        second.write_text("second")
    assert (tmp_path / "x").read_text() == "first"  # the last to end
    assert os.listdir(tmp_path) == ["x"]


def number_in(file):
    tensors, _ = load_tensors(file)
    return int(tensors["a"])


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_killed_at_any_rename_one_of_two_generations_is_complete(tmp_path, monkeypatch, renames):
    last = tmp_path / "last"
    previous = tmp_path / "previous"
    for number in range(2):
        save_tensors(last, {"a": torch.tensor(number)}, {}, previous=previous)
    replace = os.replace
    targets = []

    def killed(source, target):
        if len(targets) == renames:
            raise KeyboardInterrupt
        targets.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt) if renames < 2 else contextlib.nullcontext():
        save_tensors(last, {"a": torch.tensor(2)}, {}, previous=previous)
    numbers = map(number_in, filter(Path.exists, (last, previous)))
    assert list(numbers) == [[1, 0], [1], [2, 1]][renames]


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"old": 1})
    with pytest.raises(TrainingError) as raised, atomic(path) as partial:
        partial.write_text("half of")
        raise OSError(errno.ENOSPC, "No space left on device")
    reason = "cannot be written (No space left on device)"
    assert str(raised.value) == f"{path}: {reason}; what was there before is unchanged"
    assert json.loads(path.read_text()) == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_truncated_file_is_named(model_file):
    content = model_file.read_bytes()
    for length in (0, 4, 100, len(content) // 2, len(content) - 1):
        model_file.write_bytes(content[:length])
        with pytest.raises(RunError, match=f"^{model_file}: is no readable checkpoint "):
            load(model_file)


def test_a_pickle_is_refused_and_not_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (tmp_path.joinpath("ran").touch, ())

    path = tmp_path / "model.safetensors"
    for write in (lambda: path.write_bytes(pickle.dumps(Bomb())), lambda: torch.save(Bomb(), path)):
        write()
        with pytest.raises(RunError, match="is no readable checkpoint"):
            load(path)
    assert not (tmp_path / "ran").exists()


def test_a_stored_model_is_tensors_and_json(model_file):
    with safe_open(model_file, "pt") as file:
        content = json.loads(file.metadata()["torchcaps"])
    assert content == DESCRIPTION | {"format": FORMAT, "crc32": content["crc32"]}


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {"format": "pt"},
    ],
)
def test_a_safetensors_file_of_another_library_is_refused(tmp_path, metadata):
    path = tmp_path / "other.safetensors"
    save_file({"weight": torch.ones(2)}, path, metadata=metadata)
    with pytest.raises(RunError, match="was not written by torchcaps"):
        load(path)


def test_a_description_without_classes_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    description = dict(DESCRIPTION)
    del description["classes"]
    save_tensors(path, {}, description)
    with pytest.raises(RunError, match="'classes' is missing"):
        load(path)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(
        RunError,
        match="there is no trained model here; was training stopped before its first epoch",
    ):
        load(tmp_path)
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(RunError, match="is no readable checkpoint"):
        load(tmp_path)


@pytest.mark.parametrize("options", [{"itertions": 2}, {"channels": "many"}])
def test_an_option_that_a_model_does_not_take_is_named(options):
    [(name, value)] = options.items()
    with pytest.raises(OptionError, match=f"^capsnet takes no {name}={value!r} "):
        build_model(DESCRIPTION | {"options": options})


def test_a_model_that_cannot_be_built_again_is_not_saved(tmp_path):
    changed = tc.create_model("capsnet", **TINY)
    changed.conv = torch.nn.Conv2d(1, 4, 9)
    for model in (torch.nn.Linear(2, 2), changed):
        with pytest.raises(ArgumentError) as raised:
            tc.save(model, tmp_path / "model")
        assert raised.value.argument == "model"
    assert list(tmp_path.iterdir()) == []
