"""Runs as a notebook shows them."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

from torchcaps.errors import RunError
from torchcaps.reporting import api, evaluate
from torchcaps.training import Run


class Page(HTMLParser):
    """The text of a fragment, and its attributes by tag."""

    def __init__(self, html):
        super().__init__()
        self.text = ""
        self.open = []
        self.tags = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag != "img":
            self.open.append(tag)
        self.tags.append((tag, dict(attrs)))

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def pictures(self):
        return [attrs for tag, attrs in self.tags if tag == "img"]


def edit(file, change):
    """Rewrite the rows of a file of JSON lines."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in change(rows)))


@pytest.fixture
def evaluated(run, monkeypatch):
    monkeypatch.setattr(api, "can_plot", lambda: False)
    evaluate(run, output=run)
    return run


def test_a_finished_run_says_all_in_one_line(evaluated):
    run = Run(evaluated)
    accuracy = json.loads((evaluated / "evaluation.json").read_text())["accuracy"]
    best = max(row["val_accuracy"] for row in run.epochs)
    text = repr(run)
    assert text.startswith(
        f"Run('{evaluated}': capsnet on {run.config.data.name}, finished after epoch 3 of 3 in "
    )
    assert f"accuracy {100 * best:.2f} % at epoch {run.best_epoch}, " in text
    assert f"accuracy {100 * accuracy:.2f} %" in text
    assert text.endswith(" of 12 test images)")
    assert "\n" not in text


def test_a_finished_run_is_a_card_with_its_curve(evaluated):
    page = Page(Run(evaluated)._repr_html_())
    assert page.text.strip().startswith("run")
    assert "training: finished after epoch 3 of 3" in page.text
    [picture] = page.pictures()
    assert picture["src"].startswith("data:image/svg+xml;base64,")
    assert picture["alt"] == "Curves of loss and accuracy over 3 epochs."
    assert not {"script", "link", "style"} & {tag for tag, _ in page.tags}


def test_a_run_that_is_not_finished_says_how_far_it_is(run):
    edit(run / "metrics.jsonl", lambda rows: [row for row in rows if row["step"] <= 3])
    assert "epoch 1 of 3 in " in repr(Run(run))
    assert "finished" not in repr(Run(run))
    page = Page(Run(run)._repr_html_())
    assert "training: epoch 1 of 3" in page.text
    assert "test images" not in page.text
    assert len(page.pictures()) == 1


def test_a_run_without_an_epoch_is_shown_too(run):
    (run / "metrics.jsonl").unlink()
    run_folder = Run(run)
    assert (
        run_folder.is_finished,
        run_folder.best_epoch,
        run_folder.seconds,
        run_folder.figures,
    ) == (
        False,
        None,
        None,
        None,
    )
    assert repr(run_folder).endswith("no epoch of 3)")
    page = Page(run_folder._repr_html_())
    assert "no epoch of 3" in page.text
    assert page.pictures() == []


def test_a_folder_without_a_run_is_named(tmp_path):
    assert repr(Run(tmp_path)) == f"Run('{tmp_path}': no run)"


def test_names_are_escaped(run):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"data": '<b>&"data"</b>'}))
    html = Run(run)._repr_html_()
    assert "<b>" not in html
    assert '<b>&"data"</b>' in Page(html).text


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_evaluation_is_named(run, content):
    (run / "evaluation.json").write_text(content)
    with pytest.raises(RunError, match=r"evaluation\.json: is no"):
        repr(Run(run))


def test_a_run_of_another_task_is_shown_by_its_score_and_figures(run):
    edit(
        run / "metrics.jsonl",
        lambda rows: [
            row | {"score": "correlation", "val_correlation": 0.1 * row["step"]}
            for row in rows
            if row["kind"] == "epoch"
        ],
    )
    (run / "evaluation.json").write_text(
        json.dumps({"correlation": {"dx": 0.91, "dy": 0.5}, "num_samples": 20})
    )
    assert "correlation dx 0.91, correlation dy 0.5 of 20 test images" in repr(Run(run))
    assert "validation: correlation 0.9 at epoch" in Page(Run(run)._repr_html_()).text


def test_time_is_that_of_the_images_of_all_epochs(run):
    rows = [
        {"images": 64, "images_per_second": 8.0},
        {"images": 20, "images_per_second": 10.0},
    ]
    edit(
        run / "metrics.jsonl",
        lambda old: [
            row | speed
            for row, speed in zip([r for r in old if r["kind"] == "epoch"], rows, strict=False)
        ],
    )
    assert Run(run).seconds == 64 / 8 + 20 / 10
    edit(run / "metrics.jsonl", lambda old: [row | {"images_per_second": 0.0} for row in old])
    assert Run(run).seconds is None
