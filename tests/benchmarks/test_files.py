"""The benchmark of many files, with a few of them."""

import argparse
import sys

import pytest

files = pytest.importorskip("benchmarks.files", reason="needs a checkout")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_workers_train_to_the_same_weights_in_bounded_memory(tmp_path):
    assert files.write_files(tmp_path / "images", 300, 96) > 300_000
    options = argparse.Namespace(steps=8)
    runs = {}
    for workers in (0, 2):
        run = tmp_path / f"run-{workers}"
        runs[workers] = files.measure(tmp_path / "images", run, options, workers=workers)
    assert files.largest_difference(tmp_path / "run-0", tmp_path / "run-2") == 0
    assert 100 < runs[0]["peak_mb"] < runs[2]["peak_mb"] < 2000
