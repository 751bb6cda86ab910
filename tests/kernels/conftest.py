"""Uninitialized memory is NaN, so that a cell that a kernel leaves unwritten shows."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _uninitialized_memory_is_nan():
    # Products of matrices on a GPU refuse this mode unless the environment is prepared for it.
    # `use_deterministic_algorithms` would import torch's compiler.
    torch.set_deterministic_debug_mode("default" if torch.cuda.is_available() else "error")
    yield
    torch.set_deterministic_debug_mode("default")
