"""Predictions by Ray Data and by Spark: what a lost worker had begun is neither lost nor doubled.

`make test-engines` installs both; elsewhere these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from PIL import Image
from pyarrow import parquet

import torchcaps
from torchcaps.data import load_dataset
from torchcaps.errors import ArgumentError, DataError
from torchcaps.reporting import Predictor
from torchcaps.reporting.prediction import open_row_file
from torchcaps.reporting.ray import stream

EXAMPLE = Path(__file__).parents[2] / "examples" / "predict_spark.py"
COUNT = 20_000
MEMORY = 1.1  # times as much for ten times as many pictures, at most
needs_processes = pytest.mark.skipif(sys.platform != "linux", reason="kills processes by /proc")
# Those of the engines themselves.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def photos(bars, tmp_path_factory):
    """A function that makes a folder with this many names of 12 pictures."""
    folder = tmp_path_factory.mktemp("photos")
    pictures = load_dataset(bars, "test").images[:, 0].numpy()

    def make(count):
        names = folder / str(count)
        if not names.exists():
            names.mkdir()
            for index, pixels in enumerate(pictures):
                Image.fromarray(pixels).save(names / f"{index:05}.png")
            for index in range(len(pictures), count):
                os.link(names / f"{index % len(pictures):05}.png", names / f"{index:05}.png")
        return names

    return make


def expected_rows(run, folder, path):
    with open_row_file(path) as write:
        for row in Predictor(run).stream([folder]):
            write(row)
    return parquet.read_table(path)


def children():
    """For each process id those of its children."""
    pids = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(file.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it ended
            continue
        pids.setdefault(parent, []).append(int(file.parent.name))
    return pids


def descendants(pid, word):
    """Processes below one whose command lines have this word, and their peak memory in kB."""
    pids = children()
    peaks = {}
    pending = [pid]
    while pending:
        for child in pids.get(pending.pop(), ()):
            pending.append(child)
            try:
                if word in Path(f"/proc/{child}/cmdline").read_text():
                    peaks[child] = peak_memory(child)
            except (OSError, ValueError):
                continue
    return peaks


def peak_memory(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def predict_by_ray(run, folder, path, kills=False):
    """Write predictions; the peak memory of this process and the workers, and how many there were.

    One worker is killed after a quarter of the predictions.
    """
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins now
    peaks = {}
    with open_row_file(path) as write:
        for count, row in enumerate(stream(Predictor(run), [folder], workers=2), 1):
            write(row)
            if count % 500 == 0:
                workers = descendants(os.getpid(), "MapWorker")
                peaks |= workers
                if kills and count == COUNT // 4:
                    os.kill(min(workers), signal.SIGKILL)
    return peak_memory("self") + sum(sorted(peaks.values())[-2:]), len(peaks)


@pytest.fixture(autouse=True)
def package(monkeypatch):
    """Workers, which have folders of their own, import what is tested here."""
    monkeypatch.setenv("PYTHONPATH", str(Path(torchcaps.__file__).parents[1]))


@pytest.fixture
def ray(monkeypatch):
    # Else its processes wait for all others of a busy machine.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    return pytest.importorskip("ray", reason="ray is not installed")


@needs_processes
@pytest.mark.slow
def test_ray_loses_and_doubles_nothing_when_a_worker_is_killed(ray, run, photos, tmp_path):
    base, _ = predict_by_ray(run, photos(COUNT // 10), tmp_path / "few.parquet")
    peak, workers = predict_by_ray(run, photos(COUNT), tmp_path / "many.parquet", kills=True)
    assert workers == 3
    table = parquet.read_table(tmp_path / "many.parquet")
    assert len(table) == COUNT
    assert table.equals(expected_rows(run, photos(COUNT), tmp_path / "one.parquet"))
    print(f"memory of 20,000 pictures / of 2,000: {peak / base:.3f}")
    assert peak <= MEMORY * base


def test_ray_takes_runs_and_files(ray, run, photos, tmp_path, monkeypatch):
    """Options, calibration, errors and their order are those of `Predictor`."""
    folder = shutil.copytree(photos(12), tmp_path / "photos")
    (folder / "0000x.png").write_text("no picture")
    monkeypatch.chdir(tmp_path)
    predictor = Predictor(run, batch_size=5, top_k=2, unknown_below="auto")
    outcomes = []
    for rows in (predictor.stream, partial(stream, predictor, workers=1)):
        errors = []
        outcomes.append((list(rows(["photos", "absent.png"], errors.append)), map(str, errors)))
    assert outcomes[0][0] == outcomes[1][0]
    assert list(outcomes[0][1]) == list(outcomes[1][1])
    with pytest.raises(DataError, match=r"0000x\.png"):
        list(stream(predictor, ["photos"], workers=1))


def test_what_ray_does_not_take(ray, run, tmp_path):
    from torchcaps import load

    with pytest.raises(ArgumentError, match="engine: ray takes a run"):
        next(stream(Predictor(load(run)), ["a.png"]))
    with pytest.raises(ArgumentError, match="engine: ray takes a run"):
        next(stream(Predictor(run, output=tmp_path), ["a.png"]))
    with pytest.raises(ArgumentError, match="inputs: expected files for ray, got a picture"):
        next(stream(Predictor(run), Image.new("L", (20, 18))))


def predict_by_spark(run, folder, output, kills=False):
    """Run the example; the peak memory of its workers, and how many there were."""
    environment = os.environ | {
        "PYSPARK_SUBMIT_ARGS": "--master local[2,4] pyspark-shell",
        "PYSPARK_PYTHON": sys.executable,
    }
    words = [sys.executable, str(EXAMPLE), str(run), str(folder), str(output)]
    peaks = {}
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            daemons = descendants(process.pid, "pyspark.daemon")
            pids = children()
            workers = {}
            for pid in daemons:
                if daemons.keys() & set(pids.get(pid, ())):
                    continue
                workers[pid] = daemons[pid]
            peaks |= workers
            if kills and workers and next(output.glob("_temporary/0/task_*"), None):
                os.kill(min(workers), signal.SIGKILL)
                kills = False
            time.sleep(0.2)
        assert process.returncode == 0, process.stderr.read()[-2000:]
    return sum(sorted(peaks.values())[-2:]), len(peaks)


@needs_processes
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
def test_spark_loses_and_doubles_nothing_when_a_worker_is_killed(run, photos, tmp_path):
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    assert len(EXAMPLE.read_text().splitlines()) <= 40
    base, _ = predict_by_spark(run, photos(COUNT // 10), tmp_path / "few")
    peak, workers = predict_by_spark(run, photos(COUNT), tmp_path / "many", kills=True)
    assert workers >= 3
    table = parquet.read_table(tmp_path / "many").sort_by("path")
    expected = expected_rows(run, photos(COUNT), tmp_path / "one.parquet")
    assert table["path"].to_pylist() == expected["path"].to_pylist()
    assert table["label"].to_pylist() == expected["label"].to_pylist()
    assert table["activation"].to_numpy() == pytest.approx(
        expected["activation"].to_numpy(), abs=1e-6
    )
    print(f"memory of 20,000 pictures / of 2,000: {peak / base:.3f}")
    assert peak <= MEMORY * base
