from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

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
    order, told = [], []
    work = {name: lambda name=name: order.append(name) for name in "ab"}
    found = timing.alternate(work, 2, warm_up=1, clock=ticking(), log=told.append)
    assert "".join(order) == "ababab"
    assert found == {"a": [1.0, 1.0], "b": [1.0, 1.0]}
    assert told[-1] == "b: run 2 of 2"


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


def test_processor_time_is_for_one_thread():
    threads = torch.get_num_threads()
    try:
        with pytest.raises(ValueError, match="--clock cpu: expected --threads 1, got 2"):
            timing.use_clock("cpu", 2)
        timing.use_clock("cpu", 1)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.skipif(not timing.can_measure_memory(), reason="no /proc here")
def test_the_peak_of_a_large_tensor_is_its_size():
    # In a process of its own: here tests before it have left freed memory, which a tensor takes without a new page.
    code = "import json, torch; from torchcaps.bench import timing; "
    code += "print(json.dumps(timing.peak_of(lambda: torch.ones(64 << 18))))"
    found = json.loads(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
    )
    assert 60 < found["peak_mib"] - found["before_mib"] < 80


@pytest.mark.skipif(not timing.can_measure_memory(), reason="no /proc here")
def test_a_fresh_process_measures_from_any_folder_and_says_why_it_cannot(
    monkeypatch, tmp_path, sizes
):
    from dataclasses import asdict

    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch.py").write_text("raise RuntimeError('not this one')")
    found = timing.in_fresh_process("layer", variant="blocked", sizes=asdict(sizes))
    assert found["peak_mib"] >= found["before_mib"] - 1 > 0


def test_a_fresh_process_that_fails_says_its_last_line(monkeypatch):
    failed = subprocess.CompletedProcess(
        [], 1, stdout="", stderr="Traceback ...\nValueError: too large\n"
    )
    monkeypatch.setattr(timing.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(
        TorchcapsError, match=r"memory of layer \{'sizes': 3\}: .* failed: ValueError: too large"
    ):
        timing.in_fresh_process("layer", sizes=3)


def test_the_machine_is_json():
    assert {"processor", "threads", "torch", "date"} <= json.loads(
        json.dumps(timing.machine())
    ).keys()
