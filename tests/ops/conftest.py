"""Uninitialized memory is NaN, so that a cell that a kernel leaves unwritten shows."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _uninitialized_memory_is_nan():
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
