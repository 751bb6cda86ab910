"""Runs as a notebook shows them."""

from __future__ import annotations

import json

import pytest

from checks import column
from torchcaps.reporting import evaluate
from torchcaps.training import Run
from training.makers import edit_config

from .pages import Page


def write_metrics(run, rows):
    lines = map(json.dumps, rows)
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def evaluated(run, no_plots):
    evaluate(run, output=run)
    return run


def test_a_finished_run_says_all_in_one_line(evaluated):
    run = Run(evaluated)
    test_accuracy = json.loads((evaluated / "evaluation.json").read_text())["accuracy"]
    best_accuracy = max(column(run.epochs, "val_accuracy"))
    text = repr(run)
    assert text.startswith(
        f"Run('{evaluated}': capsnet on {run.config.data.name}, finished after epoch 3 of 3 in "
    )
    assert f"accuracy {100 * best_accuracy:.2f} % at epoch {run.best_epoch}, " in text
    assert f"accuracy {100 * test_accuracy:.2f} %" in text
    assert text.endswith(" of 12 test images)")
    assert "\n" not in text


def test_a_finished_run_is_a_card_with_its_curve(evaluated):
    page = Page(Run(evaluated)._repr_html_())
    assert page.text.strip().startswith("run")
    assert "training: finished after epoch 3 of 3" in page.text
    [picture] = page.elements("img")
    assert picture["src"].startswith("data:image/svg+xml;base64,")
    assert picture["alt"] == "Curves of loss and accuracy over 3 epochs."
    for tag in ("script", "link", "style"):
        assert page.elements(tag) == []


def test_a_run_that_is_not_finished_says_how_far_it_is(run):
    write_metrics(run, [row for row in Run(run).rows if row["step"] <= 3])
    assert "epoch 1 of 3 in " in repr(Run(run))
    assert "finished" not in repr(Run(run))
    page = Page(Run(run)._repr_html_())
    assert "training: epoch 1 of 3" in page.text
    assert "test images" not in page.text
    assert len(page.elements("img")) == 1


def test_a_run_without_an_epoch_says_so(run):
    (run / "metrics.jsonl").unlink()
    run_folder = Run(run)
    assert run_folder.is_finished is False
    assert run_folder.best_epoch is run_folder.seconds is run_folder.figures is None
    assert repr(run_folder).endswith("no epoch of 3)")
    page = Page(run_folder._repr_html_())
    assert "no epoch of 3" in page.text
    assert page.elements("img") == []


def test_names_are_escaped(run):
    edit_config(run, data='<b>&"data"</b>')
    html = Run(run)._repr_html_()
    assert "<b>" not in html
    assert '<b>&"data"</b>' in Page(html).text


def test_a_run_of_another_task_is_shown_by_its_score_and_figures(run):
    rows = Run(run).epochs
    for row in rows:
        row |= {"score": "correlation", "val_correlation": 0.1 * row["step"]}
    write_metrics(run, rows)
    figures = {"correlation": {"dx": 0.91, "dy": 0.5}, "num_samples": 20}
    (run / "evaluation.json").write_text(json.dumps(figures))
    assert "correlation dx 0.91, correlation dy 0.5 of 20 test images" in repr(Run(run))
    assert "validation: correlation 0.9 at epoch" in Page(Run(run)._repr_html_()).text
