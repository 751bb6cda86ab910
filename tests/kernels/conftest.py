"""Kernels run where uninitialized memory is NaN: a cell that they leave unwritten then shows."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _uninitialized_memory_is_nan():
    # Products of matrices on a GPU refuse this mode unless the environment is prepared for it.
    torch.use_deterministic_algorithms(not torch.cuda.is_available())
    yield
    torch.use_deterministic_algorithms(False)
