"""Uninitialized memory is NaN, so that a cell that a kernel leaves unwritten shows."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _uninitialized_memory_is_nan():
    # `use_deterministic_algorithms` would import torch's compiler.
    torch.set_deterministic_debug_mode("error")
    assert torch.empty(3).isnan().all()
    yield
    torch.set_deterministic_debug_mode("default")
