import hashlib
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from torchcaps.data import dataset_info, load_dataset
from torchcaps.data.reading import read_bytes
from torchcaps.data.sets.mnist import FOLDER

from ..makers import SHARED, needs_shared

TOOL = Path(__file__).parents[3] / "tools" / "make_digits.py"


def run_tool(monkeypatch, source, output):
    monkeypatch.setattr(sys, "argv", [str(TOOL), "--source", str(source), "--output", str(output)])
    runpy.run_path(str(TOOL), run_name="__main__")


@pytest.mark.parametrize(("split", "count"), [("train", 6000), ("test", 1000)])
def test_balanced_and_whole(split, count):
    digits = load_dataset("digits", split)
    assert (digits.images.shape, digits.images.dtype) == ((count, 1, 28, 28), torch.uint8)
    assert digits.labels.bincount().tolist() == [count // 10] * 10
    assert len(np.unique(digits.images.flatten(1), axis=0)) == count


def test_small_enough_with_its_notice():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 1_500_000
    notice = (FOLDER / "NOTICE").read_text()
    for words in ("Yann LeCun", "Corinna Cortes", "Burges", "ShareAlike 3.0", "Special Database 1"):
        assert words in notice


def test_the_info_has_the_digests_of_these_bytes():
    for name, digest in dataset_info("digits").sha256.items():
        assert hashlib.sha256(read_bytes(FOLDER / f"{name}.gz")).hexdigest() == digest


@settings(deadline=None, max_examples=30)
@given(labels=st.lists(st.integers(0, 3), min_size=40, max_size=200), per_class=st.integers(1, 4))
def test_digits_are_chosen_at_equal_steps_of_each_class(labels, per_class):
    choose_digits = runpy.run_path(str(TOOL))["choose_digits"]
    expected = []
    for label in set(labels):
        places = np.flatnonzero(np.array(labels) == label)
        steps = np.arange(per_class) * len(places) // per_class
        expected += places[steps].tolist()
    assert choose_digits(torch.tensor(labels), per_class).tolist() == sorted(expected)


@needs_shared("mnist")
def test_the_tool_rebuilds_the_embedded_bytes(tmp_path, monkeypatch):
    run_tool(monkeypatch, SHARED / "mnist", tmp_path)
    for path in FOLDER.glob("*.gz"):
        assert read_bytes(tmp_path / path.name) == read_bytes(path)


def test_the_tool_refuses_another_source(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="train-images-idx3-ubyte is not there, or is not MNIST's"):
        run_tool(monkeypatch, FOLDER, tmp_path)
    assert list(tmp_path.iterdir()) == []
