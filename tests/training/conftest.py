from __future__ import annotations

import pytest

from .makers import write_bars


@pytest.fixture(scope="session")
def bars(tmp_path_factory):
    return write_bars(tmp_path_factory.mktemp("bars") / "bars.npz")
