"""The commands of a first hour, as typed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from PIL import Image

from torchcaps.data import load_dataset
from training.makers import leftovers

from .commands import ENVIRONMENT, PLAIN, SMALL, TORCHCAPS, run_command

NO_TORCH = """
import sys
from torchcaps.cli.main import main
for words, expected in ((["--help"], 0), (["trian"], 2)):
    try:
        status = main(words)
    except SystemExit as stop:
        status = stop.code
    assert status == expected, (words, status)
print(sorted(name for name in ("torch", "numpy", "matplotlib", "PIL") if name in sys.modules))
"""


def test_help_and_a_wrong_command_line_do_not_wait_for_torch(tmp_path):
    line = [sys.executable, "-c", NO_TORCH]
    process = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert process.stdout.splitlines()[-1] == "[]"


def test_train_and_predict(bars, tmp_path):
    words = ("train", "capsnet", "--data", bars, "--epochs", 3, "--batch-size", 8)
    trained = run_command(words, SMALL, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout.endswith("run folder: runs/capsnet-bars\n")
    first_words = [line.split()[0] for line in trained.stderr.splitlines()]
    assert first_words == ["training", "epoch", "epoch", "epoch"]
    run = tmp_path / "runs" / "capsnet-bars"
    assert len(list((run / "plots").glob("*.png"))) == 6
    assert leftovers(run) == []

    images = load_dataset(bars, "test")
    Image.fromarray(images.images[0, 0].numpy()).save(tmp_path / "own.png")
    predicted = run_command("predict", "runs/capsnet-bars", "own.png", "--json", cwd=tmp_path)
    assert (predicted.returncode, predicted.stderr) == (0, "")
    [one] = json.loads(predicted.stdout)
    assert one["path"] == "own.png"
    assert one["label"] in images.classes


def test_a_plot_without_matplotlib_says_how_to_get_it(tmp_path):
    process = run_command("perturb", "runs/x", cwd=tmp_path, program=PLAIN)
    assert process.returncode == 1
    assert process.stderr.count("\n") == 1
    assert "pip install 'torchcaps[plots]'" in process.stderr


@pytest.mark.parametrize("reader", ["full", "gone"])
def test_output_that_nobody_takes_ends_without_a_traceback(reader, tmp_path):
    line = [*TORCHCAPS, "recipes", "--json"]
    if reader == "full":
        with open("/dev/full", "w") as full:
            process = subprocess.run(
                line, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=ENVIRONMENT
            )
        assert (process.returncode, process.stderr) == (
            1,
            "torchcaps: error: output: No space left on device\n",
        )
    else:
        with subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
        ) as process:
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 1
