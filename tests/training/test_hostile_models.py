"""Model files of unknown origin: bad ones are refused before memory is allocated for them."""

from __future__ import annotations

import json
import os
import resource
import struct

import pytest
import torch
from safetensors.torch import save_file

from torchcaps.data import Preprocess
from torchcaps.errors import RunError
from torchcaps.training import load
from torchcaps.training.checkpoint import build_model, describe_model
from torchcaps.training.files import save_tensors

from .makers import TINY

OPTIONS = TINY | {"decoder": False}
DESCRIPTION = describe_model("capsnet", OPTIONS, ("cat", "dog"), Preprocess((20, 18), 3))
MATRIX = {"channels": 2, "primary_types": 2, "types": [2, 2]}
HUGE = 2**31


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.fixture
def state():
    return build_model(DESCRIPTION).state_dict()


NO_FILE = "expected a regular file, got a FIFO or a device"


def refused(path, read=load):
    """The sentence with which a file is refused, without the file's name; it took little memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RunError) as raised:
        read(path)
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert growth < 150 << 10, f"{growth} KiB"
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"options": 5}, "options: expected dict, got 5"),
        (
            {"options": OPTIONS | {"channels": 80_000}},
            "size mismatch for conv.weight: [8, 3, 9, 9] in the file, ",
        ),
        ({"options": OPTIONS | {"channels": HUGE**3}}, "its weights do not fit"),
        ({"options": OPTIONS | {"channels": "8" * 100_000}}, " … "),
        (
            {"options": OPTIONS | {"iterations": HUGE}},
            "iterations: expected at most 100, got 2147483648",
        ),
        ({"options": OPTIONS | {"num_classes": 3}}, "multiple values"),
        ({"model": "cnn_matched", "options": {"channels": HUGE}}, "its weights do not fit"),
        (
            {"model": "matrix_caps", "options": MATRIX | {"types": [HUGE, HUGE]}},
            "its weights do not fit",
        ),
        (
            {"model": "matrix_caps", "options": MATRIX | {"pose_size": 10_000}},
            "its weights do not fit",
        ),
        ({"classes": "cat"}, "classes: expected list, got 'cat'"),
        ({"classes": ["cat"] * 100_000}, "missing weights: class_capsules.votes.bias"),
        ({"classes": ["cat"] * 3_000_000}, "expected a header of at most"),
        ({"preprocess": 5}, "preprocess: expected img_size [height, width] and in_chans, got 5"),
        ({"preprocess": {"img_size": [20, 18], "in_chans": True}}, "preprocess: expected"),
        ({"preprocess": {"img_size": [8000, 8000], "in_chans": 3}}, "size mismatch"),
        (
            {"preprocess": {"img_size": [HUGE, HUGE], "in_chans": 3}},
            "img_size: expected at most 8192 pixels a side",
        ),
        (
            {"model": "cnn_smallnorb", "options": {"hidden": [1] * 200_000}},
            "layers: expected at most 100, got 200002",
        ),
    ],
)
def test_a_description_is_checked_before_it_is_built(path, state, change, complaint):
    save_tensors(path, state, DESCRIPTION | change)
    assert complaint in refused(path)


@pytest.mark.parametrize("depth", [500, 100_000])
def test_a_description_of_nested_brackets_is_refused(path, state, depth):
    brackets = "[" * depth + "]" * depth
    text = json.dumps(DESCRIPTION | {"format": 1, "options": "BRACKETS"})
    text = text.replace('"BRACKETS"', brackets)
    save_file(state, path, metadata={"torchcaps": text})
    complaint = refused(path)
    assert "nested too deep" in complaint or "options: expected dict" in complaint


@pytest.mark.parametrize("text", ["", "[", "{}", '{"format": 1, "model": 1e999999}', "[]"])
def test_a_header_without_a_description_is_refused(path, state, text):
    save_file(state, path, metadata={"torchcaps": text})
    refused(path)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
    ],
)
def test_weights_that_are_not_finite_are_refused(path, state, value):
    state["class_capsules.votes.weight"][3, 1, 2, 0] = value
    save_tensors(path, state, DESCRIPTION)
    assert "class_capsules.votes.weight holds infinite numbers or NaN" in refused(path)


def test_weights_of_other_names_and_types_are_refused(path, state):
    incomplete = dict(state)
    weight = incomplete.pop("conv.weight")
    for tensors, complaint in (
        (incomplete, "missing weights: conv.weight"),
        (incomplete | {"conv.weights": weight}, "missing weights: conv.weight"),
        (state | {"more": weight.clone()}, "unexpected weights: more"),
        (
            state | {"conv.weight": weight.long()},
            "conv.weight: expected torch.float32, got torch.int64",
        ),
        (state | {"conv.weight": weight.flatten()}, "size mismatch for conv.weight"),
    ):
        save_tensors(path, tensors, DESCRIPTION)
        assert complaint in refused(path)


def test_weights_of_less_precision_are_converted(path):
    rounded = build_model(DESCRIPTION).bfloat16().state_dict()
    save_tensors(path, rounded, DESCRIPTION)
    weight = load(path).conv.weight
    assert weight.dtype == torch.float32
    assert torch.equal(weight, rounded["conv.weight"].float())


def test_a_file_of_more_bytes_than_its_description_needs_is_refused(path):
    """Sparse gigabytes behind a description of something small are compared, and never read."""
    header = {"conv.weight": {"dtype": "F32", "shape": [1 << 29], "data_offsets": [0, 1 << 31]}}
    header["__metadata__"] = {"torchcaps": json.dumps(DESCRIPTION | {"format": 1})}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + (1 << 31))
    assert "missing weights" in refused(path)


def test_a_path_that_is_no_regular_file_is_refused(path, tmp_path):
    os.mkfifo(path)
    assert NO_FILE in refused(path)
    for special in ("/dev/zero", "/dev/null"):
        link = tmp_path / f"link{special[-4:]}"
        link.symlink_to(special)
        assert NO_FILE in refused(link)


def test_loading_draws_nothing_from_the_global_generator(path, state):
    save_tensors(path, state, DESCRIPTION)
    before = torch.get_rng_state()
    load(path)
    assert torch.equal(torch.get_rng_state(), before)
