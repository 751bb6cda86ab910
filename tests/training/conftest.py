from __future__ import annotations

import pytest
import torch

from .makers import write_bars


@pytest.fixture(scope="session")
def bars(tmp_path_factory):
    return write_bars(tmp_path_factory.mktemp("bars") / "bars.npz")


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny steps on several threads cost more than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
