from __future__ import annotations

import json
import mmap
import subprocess
from dataclasses import asdict

import pytest

from torchcaps.bench import timing
from torchcaps.errors import TorchcapsError


def ticking(step=1.0):
    """A clock that moves by a step each time it is read."""
    now = 0.0

    def clock():
        nonlocal now
        now += step
        return now

    return clock


def test_work_takes_turns_after_a_warm_up():
    order = []
    lines = []
    work = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    seconds = timing.alternate(work, 2, warm_up=1, clock=ticking(), log=lines.append)
    assert "".join(order) == "ababab"
    assert seconds == {"a": [1.0, 1.0], "b": [1.0, 1.0]}
    assert lines[-1] == "b: run 2 of 2"


def test_the_spread_of_five_and_of_one():
    assert timing.spread("ms", [5.0, 1.0, 3.0, 2.0, 4.0]) == {"ms": 3000, "q1": 1500, "q3": 4500}
    assert timing.spread("ms", [2.0]) == {"ms": 2000, "q1": 2000, "q3": 2000}


def test_cells_are_figures_of_three_digits_or_a_dash():
    rows = [
        {"name": "a", "ms": 1.23456, "MiB": None},
        {"name": "b", "ms": 1234.56, "list": [1, 2.5]},
    ]
    assert timing.cells(rows) == [
        ["name", "ms", "MiB", "list"],
        ["a", "1.23", "-", "-"],
        ["b", "1235", "-", "1 2.5"],
    ]


@pytest.mark.skipif(not timing.can_measure_memory(), reason="no /proc here")
def test_the_peak_is_what_was_written_to_meanwhile():
    def fill_64_mib():
        with mmap.mmap(-1, 64 << 20) as memory:
            memory[::4096] = bytes(len(memory) // 4096)

    marks = timing.peak_of(fill_64_mib)
    assert 60 < marks["peak_mib"] - marks["before_mib"] < 80


@pytest.mark.skipif(not timing.can_measure_memory(), reason="no /proc here")
def test_a_fresh_process_measures_from_any_folder(monkeypatch, tmp_path, sizes):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch.py").write_text("raise RuntimeError('not this one')")
    marks = timing.in_fresh_process("layer", variant="limit", sizes=asdict(sizes))
    assert marks["peak_mib"] >= marks["before_mib"] - 1 > 0


def test_a_fresh_process_that_fails_says_its_last_line(monkeypatch):
    failed = subprocess.CompletedProcess(
        [], 1, stdout="", stderr="Traceback ...\nValueError: too large\n"
    )
    monkeypatch.setattr(timing.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(TorchcapsError, match=r"memory of layer .*'sizes': 3.*: too large"):
        timing.in_fresh_process("layer", sizes=3)


def test_the_machine_is_json():
    facts = json.loads(json.dumps(timing.machine()))
    assert facts.keys() >= {"processor", "threads", "torch", "date"}
