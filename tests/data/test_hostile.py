"""Hostile files: refused in one line, for little memory and time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from . import hostile
from .hostile import FILES

ROOT = Path(hostile.__file__).parents[2]
LOADED = {"csv_of_5000_digits", "tar_names_of_5000_digits"}  # long names are no fault
MOST_MIB = 700


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What one process made of them all, one after another."""
    folder = tmp_path_factory.mktemp("hostile")
    paths = []
    for name, make in FILES.items():
        (folder / name).mkdir()
        paths.append(str(make(folder / name)))
    done = subprocess.run(
        [sys.executable, "-m", "tests.data.hostile", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(paths), f"it ended at {paths[len(lines)]}: {done.stderr[-2000:]}"
    return dict(zip(FILES, lines, strict=True))


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_costs_little_and_gets_one_line(results, name):
    kind, words, grown, _ = results[name]
    assert kind == ("set" if name in LOADED else "DataError"), words
    assert words.isprintable()
    assert len(words) <= 2_000 or name in LOADED
    assert grown <= MOST_MIB, f"{grown:.0f} MiB by now"
