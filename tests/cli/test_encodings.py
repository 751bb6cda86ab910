"""Every command in a terminal of another encoding: nothing fails, and all it prints is of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from torchcaps.cli.main import COMMANDS

# Command lines one after another in one process; a status and a word for each.
PROGRAM = """
import json, sys
from torchcaps.cli.main import main
for line in json.loads(sys.argv[1]):
    try:
        status = main(line.split(" "))
    except SystemExit as stop:
        status = stop.code
    print("status", status or 0, line.split(" ")[0])
"""
WITHOUT_PLOTS = "import sys; sys.modules['matplotlib'] = None"
TRAIN = (
    "train capsnet --data pictures --img-size 20 --epochs 1 --batch-size 8 --holdout 4 --threads 1 "
    "--option channels=8 --option primary_types=2 --seed"
)
# A line for each command; what is read has accents and more in its names.
LINES = {
    "train": f"{TRAIN} 0 --output runs/é",
    "train again": f"{TRAIN} 1 --output runs/b",
    "evaluate": "evaluate runs/é",
    "predict": "predict runs/é pictures/test",
    "compare": "compare runs/é runs/b",
    "diagnose": "diagnose runs/é",
    "export": "export runs/é --output é.pt2",
    "models": "models",
    "recipes": "recipes",
    "data": "data list",
    "check": "check torchcaps.nn:DynamicRouting",
    "doctor": "doctor",
}
DRAWING = {
    "reconstruct": "reconstruct runs/é",
    "perturb": "perturb runs/é",
    "animate": "animate runs/é",
    "report": "report runs/é",
}
# Only their help is printed here: they serve, need another extra or take minutes.
HELP_ALONE = {"audit", "explore", "import", "reproduce"}


def run(program, lines, folder, **environment):
    """The finished process, with its output as bytes."""
    return subprocess.run(
        [sys.executable, "-c", program, json.dumps(lines)],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        check=False,
    )


@pytest.fixture
def pictures(tmp_path):
    """A folder of class folders, whose names neither encoding has."""
    pixels = np.random.default_rng(0).integers(0, 80, (12, 20, 20), dtype=np.uint8)
    for split in ("train", "test"):
        for column, name in enumerate(("café", "東京 ±")):
            folder = tmp_path / "pictures" / split / name
            folder.mkdir(parents=True)
            for number, image in enumerate(pixels.copy()):
                image[:, 10 * column : 10 * column + 5] = 255
                Image.fromarray(image).save(folder / f"é{number}.png")
    return tmp_path


def test_every_command_is_tried():
    assert LINES.keys() | DRAWING.keys() | HELP_ALONE >= COMMANDS.keys()


@pytest.mark.parametrize(
    ("encoding", "draws", "expected"),
    [
        ("ascii", False, ["1x28x28", r"caf\xe9", r"\u6771\u4eac +-"]),
        # Plots take most of the time.
        pytest.param(
            "cp1252", True, ["1×28×28", "café", r"\u6771\u4eac ±"], marks=pytest.mark.slow
        ),
    ],
)
def test_commands_print_in_an_encoding_that_lacks_characters(pictures, encoding, draws, expected):
    lines = [f"{name} --help" for name in COMMANDS]
    lines += LINES.values()
    lines += DRAWING.values() if draws else ()
    lines += ["evaluate runs/ü", "train 東京"]
    program = PROGRAM if draws else WITHOUT_PLOTS + PROGRAM
    process = run(program, lines, pictures, PYTHONIOENCODING=encoding)

    out = process.stdout.decode(encoding)
    err = process.stderr.decode(encoding)
    assert process.returncode == 0, err
    statuses = [line for line in out.splitlines() if line.startswith("status ")]
    names = [line.split(" ")[0] for line in lines]
    assert statuses[:-2] == [f"status 0 {name}" for name in names[:-2]], err
    assert statuses[-2:] == ["status 1 evaluate", "status 2 train"]
    for text in expected:
        assert text in out


@pytest.mark.skipif(os.name == "nt", reason="closes a stream as a POSIX shell does")
def test_a_closed_stream_takes_every_character_whatever_the_locale(tmp_path):
    # Python would take ASCII for a file that is opened without an encoding.
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    process = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -m torchcaps data list >&-"],
        cwd=tmp_path,
        env=os.environ | locale,
        capture_output=True,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, b"")
