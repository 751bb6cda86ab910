"""A small data set and a run on it, for the tests of several packages."""

from __future__ import annotations

import shutil

import pytest
import torch

from torchcaps.data import load_dataset
from torchcaps.training import train

from .makers import tiny, write_bars


@pytest.fixture(scope="session")
def bars(tmp_path_factory):
    return write_bars(tmp_path_factory.mktemp("bars") / "bars.npz")


@pytest.fixture(scope="session")
def images(bars):
    """The images to train with."""
    return load_dataset(bars, "train")


@pytest.fixture(scope="session")
def trained(bars, tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(tiny(bars, epochs=3, lr=0.01), folder)
    return folder


@pytest.fixture(scope="session")
def finished(bars, tmp_path_factory):
    """The folder of a run of two epochs of three steps, to be read."""
    torch.set_num_threads(1)
    return train(tiny(bars), tmp_path_factory.mktemp("finished") / "run").path


@pytest.fixture
def run(trained, tmp_path):
    """A copy of a trained run, to write into."""
    return shutil.copytree(trained, tmp_path / "run")
