"""Hostile files: refused in one line, for little memory and time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from . import hostile
from .hostile import FILES

ROOT = Path(hostile.__file__).parents[2]
MAX_GROWTH = 150  # MiB


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The outcome of each file, by name; one process reads them one after another."""
    folder = tmp_path_factory.mktemp("hostile")
    paths = []
    for name, make in FILES.items():
        (folder / name).mkdir()
        paths.append(str(make(folder / name)))
    process = subprocess.run(
        [sys.executable, "-m", "tests.data.hostile", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    lines = [json.loads(line) for line in process.stdout.splitlines()]
    assert len(lines) == len(paths), f"ended at {paths[len(lines)]}: {process.stderr[-2000:]}"
    return dict(zip(FILES, lines, strict=True))


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_costs_little_and_gets_one_line(outcomes, name):
    kind, message, growth = outcomes[name]
    assert kind == "DataError", message
    assert message.isprintable()
    assert len(message) <= 2_000
    assert growth <= MAX_GROWTH, f"{growth:.0f} MiB by now"
