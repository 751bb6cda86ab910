import pytest
from scipy.io import loadmat

from torchcaps.data import mat


@pytest.fixture
def mat_in_process(monkeypatch):
    """MATLAB files are read here: starting a process for each takes more than a second."""

    def load_in_process(_, path, **options):
        return loadmat(path, mat_dtype=options["mat_dtype"])

    monkeypatch.setattr(mat, "call_isolated", load_in_process)
