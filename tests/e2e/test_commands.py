"""The commands of a first hour, as typed."""

from __future__ import annotations

import subprocess
import sys

from training.makers import leftovers

from .commands import SMALL, run_command

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


def test_train(bars, tmp_path):
    words = ("train capsnet --epochs 1 --batch-size 8 --data", bars)
    trained = run_command(words, SMALL, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout.endswith("run folder: runs/capsnet-bars\n")
    lines = [line for line in trained.stderr.splitlines() if not line.endswith(" ...")]
    assert [line.split()[0] for line in lines] == [
        "training",
        "epoch",
        "next:",
        "torchcaps",
        "torchcaps",
        "torchcaps",
    ]
    run = tmp_path / "runs" / "capsnet-bars"
    assert len(list((run / "plots").glob("*.png"))) == 6
    assert leftovers(run) == []
    modes = {path.stat().st_mode & 0o777 for path in run.rglob("*") if path.is_file()}
    assert len(modes) == 1  # the same people may read all of them
