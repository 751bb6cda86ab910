from __future__ import annotations

import pytest

from torchcaps.reporting import html

from .conftest import assert_fails


def test_report_prints_the_page_it_wrote(command, run, monkeypatch):
    monkeypatch.setattr(html, "render_runs", lambda runs: "")
    outcome = command("report", run)
    assert (outcome.status, outcome.out) == (0, f"{run / 'report.html'}\n")
    outcome = command("report", run, "--output", "deep/page.html")
    assert (outcome.status, outcome.out) == (0, "deep/page.html\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "runs: expected one run folder or more, got none"),
        (("run", "--images", 0), "--images: expected at least 1, got 0"),
        (("run", "--diagnose", 1), "--diagnose: expected 0 or at least 2, got 1"),
    ],
)
def test_a_wrong_command_line_is_2(command, run, words, sentence):
    assert_fails(command("report", words), 2, sentence)
