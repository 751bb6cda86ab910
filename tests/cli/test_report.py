from __future__ import annotations

import shutil

import pytest

from torchcaps.reporting import html, sections
from training.makers import edit_config

from .conftest import the_sentence


def test_report_prints_the_page_it_wrote(command, run, monkeypatch):
    monkeypatch.setattr(sections, "sections_of", lambda run: [])
    outcome = command("report", run)
    assert (outcome.status, outcome.out) == (0, f"{run / 'report.html'}\n")
    outcome = command("report", run, "--output", "deep/page.html")
    assert (outcome.status, outcome.out) == (0, "deep/page.html\n")


def test_the_flags_reach_the_report(command, run, monkeypatch):
    calls = []
    monkeypatch.setattr(
        "torchcaps.reporting.report",
        lambda *args, **named: calls.append((args, named)) or "x",
    )
    assert (
        command(
            "report", run, "--images", 5, "--diagnose", 0, "--root", "r", "--device", "cpu"
        ).status
        == 0
    )
    [(args, named)] = calls
    named.pop("progress")(1, 2)
    assert args == ((run,), None)
    assert named == {"root": "r", "device": "cpu", "images": 5, "diagnose": 0}


def test_several_runs_are_compared(command, run, tmp_path):
    shutil.copytree(run, tmp_path / "other")
    outcome = command("report", run, "other", "--output", "both.html")
    assert (outcome.status, outcome.out) == (0, "both.html\n")
    assert "Comparison of 2 runs" in (tmp_path / "both.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "runs: expected one run folder or more, got none"),
        (("run", "./run"), "runs: expected different run folders, got one of them twice"),
        (("run", "--images", 0), "--images: expected at least 1, got 0"),
        (("run", "--diagnose", 1), "--diagnose: expected 0 or at least 2, got 1"),
        (("run", "--diagnose", -1), "--diagnose: expected at least 0, got -1"),
    ],
)
def test_a_wrong_command_line_is_2(command, run, words, sentence):
    outcome = command("report", words)
    assert outcome.status == 2
    assert the_sentence(outcome) == sentence


def test_a_run_that_is_not_finished_is_1(command, run):
    edit_config(run, epochs=9)
    outcome = command("report", "run")
    assert outcome.status == 1
    assert the_sentence(outcome) == (
        "run: this run is not finished, it has done 3 of 9 epochs; "
        "continue it with: torchcaps train capsnet --output run --resume"
    )


def test_without_matplotlib_is_1(command, run, monkeypatch):
    monkeypatch.setattr(html, "can_plot", lambda: False)
    outcome = command("report", run)
    assert outcome.status == 1
    assert the_sentence(outcome).endswith("install it with: pip install 'torchcaps[plots]'")
