import gzip
import threading

import pytest
import torch
from scipy.io import loadmat

from torchcaps.data import Dataset, DatasetInfo, _registry, mat

from .web import CONTENT, DIGESTS, Server


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        for name, data in CONTENT.items():
            running.files[f"/{name}.gz"] = gzip.compress(data, 1, mtime=0)
        yield running
        running.shutdown()
        thread.join()


def read_toy(folder, _request):
    if not (folder / "big").exists():
        return None
    count = len((folder / "big").read_bytes()) // 1_000_000
    return Dataset(
        torch.zeros(count, 1, 2, 2),
        {"label": torch.zeros(count, dtype=torch.int64)},
        ("a", "b"),
        "toy",
    )


@pytest.fixture
def register(restore):
    restore(_registry.DATASETS)

    def add(*sources, sha256=DIGESTS):
        info = DatasetInfo(
            name="toy",
            title="Toy",
            classes=("a", "b"),
            image_shape=(1, 2, 2),
            train=3,
            test=3,
            license="none",
            source="none",
            sha256=sha256,
            sources=sources,
        )
        _registry.register_dataset(info, replace=True)(read_toy)

    return add


@pytest.fixture
def mat_in_process(monkeypatch):
    """MATLAB files are read here: starting a process for each takes more than a second."""

    def load_in_process(_, path, **options):
        return loadmat(path, mat_dtype=True, simplify_cells=options["simplify_cells"])

    monkeypatch.setattr(mat, "call_isolated", load_in_process)
