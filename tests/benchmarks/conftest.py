from __future__ import annotations

import pytest

from torchcaps.bench import Sizes, Workload

SMALL = {"channels": 16, "primary_types": 4}


@pytest.fixture(scope="session")
def small():
    """The network of 2017, thin, and four images."""
    return Workload("capsnet", SMALL, batch=4)


@pytest.fixture(scope="session")
def sizes():
    return Sizes(batch=3, children=12, parents=4, dim=5, in_dim=3)
