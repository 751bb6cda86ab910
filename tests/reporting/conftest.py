from __future__ import annotations

import shutil

import pytest

from torchcaps.training import train
from training.makers import tiny, write_bars


@pytest.fixture(scope="session")
def bars(tmp_path_factory):
    return write_bars(tmp_path_factory.mktemp("bars") / "bars.npz")


@pytest.fixture(scope="session")
def trained(bars, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(tiny(bars, epochs=3, lr=0.01), folder)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of a trained run, to write into."""
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def blind(bars, tmp_path):
    """A run whose model has no decoder."""
    options = {"channels": 8, "primary_types": 2, "decoder": False}
    config = tiny(bars, epochs=1, reconstruction=0.0).updated(model_options=options)
    return train(config, tmp_path / "blind").path
