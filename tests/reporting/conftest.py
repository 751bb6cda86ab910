from __future__ import annotations

import pytest

from torchcaps.training import train
from training.fixtures import bars as bars, run as run, trained as trained
from training.makers import tiny


@pytest.fixture
def blind(bars, tmp_path):
    """A run whose model has no decoder."""
    options = {"channels": 8, "primary_types": 2, "decoder": False}
    config = tiny(bars, epochs=1, reconstruction=0.0).updated(model_options=options)
    return train(config, tmp_path / "blind").path
