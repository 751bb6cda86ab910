"""Runs as a notebook shows them."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

from torchcaps import training
from torchcaps.errors import RunError
from torchcaps.reporting import Run, finish_run
from torchcaps.reporting import run as run_module


class Page(HTMLParser):
    """The text of a fragment, and its attributes by tag."""

    def __init__(self, html):
        super().__init__()
        self.text, self.texts, self.open, self.tags = "", [], [], []
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
        self.texts.append(data)

    def pictures(self):
        return [attrs for tag, attrs in self.tags if tag == "img"]


def edit(file, change):
    """Rewrite the rows of a file of JSON lines."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in change(rows)))


@pytest.fixture
def evaluated(run, monkeypatch):
    monkeypatch.setattr(run_module, "can_plot", lambda: False)
    finish_run(training.Run.open(run))
    return run


def test_a_finished_run_says_all_in_one_line(evaluated):
    found = Run(evaluated)
    accuracy = json.loads((evaluated / "evaluation.json").read_text())["accuracy"]
    assert found.finished
    assert repr(found).startswith(
        f"Run('{evaluated}': capsnet on {found.config.data.name}, {100 * accuracy:.2f} % of 12 test images right, "
        f"best epoch {found.best_epoch} of 3, "
    )
    assert "\n" not in repr(found)


def test_a_finished_run_is_a_card_with_its_curve(evaluated):
    found = Run(evaluated)
    page = Page(found._repr_html_())
    rows = found.epochs
    accuracies = [row["val_accuracy"] for row in rows]
    assert page.text.strip().startswith(f"run · capsnet on {found.config.data.name}")
    assert f"{100 * max(accuracies):.2f} % at the best epoch, {found.best_epoch}" in page.text
    assert f"training: best epoch {found.best_epoch} of 3, " in page.text
    assert " done" not in page.text
    [picture] = page.pictures()
    assert picture["src"].startswith("data:image/svg+xml;base64,")
    assert picture["alt"] == "Curves of loss and accuracy over 3 epochs."
    assert not {"script", "link", "style"} & {tag for tag, _ in page.tags}


def test_a_run_that_is_not_finished_says_how_far_it_is(run):
    edit(run / "metrics.jsonl", lambda rows: [row for row in rows if row["step"] <= 3])
    found = Run(run)
    assert not found.finished
    assert "not evaluated yet, epoch 1 of 3 done, best epoch 1 of 3" in repr(found)
    page = Page(found._repr_html_())
    assert "training: epoch 1 of 3 done" in page.text
    assert "test images" not in page.text
    assert len(page.pictures()) == 1


def test_a_run_without_an_epoch_is_shown_too(run):
    (run / "metrics.jsonl").unlink()
    found = Run(run)
    assert (found.finished, found.best_epoch, found.seconds, found.figures) == (
        False,
        None,
        None,
        None,
    )
    assert repr(found).endswith("not evaluated yet, no epoch of 3 done)")
    page = Page(found._repr_html_())
    assert "no epoch of 3 done" in page.text
    assert page.pictures() == []


def test_the_same_object_follows_a_training(run):
    kept = (run / "metrics.jsonl").read_text()
    edit(run / "metrics.jsonl", lambda rows: [row for row in rows if row["step"] <= 3])
    found = Run(run)
    assert len(found.epochs) == 1
    (run / "metrics.jsonl").write_text(kept)
    assert len(found.epochs) == 3


def test_an_accuracy_that_ends_the_training_makes_it_finished(run):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"epochs": 9, "stop_at": 0.001}))
    assert Run(run).finished
    (run / "config.json").write_text(json.dumps(config | {"epochs": 9, "stop_at": None}))
    assert not Run(run).finished


def test_several_labels_count_as_all_or_nothing(run):
    (run / "evaluation.json").write_text(json.dumps({"exact": 0.831, "num_samples": 2000}))
    assert "83.10 % of 2,000 test images with all their classes found" in repr(Run(run))


def test_names_are_escaped(run):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"data": '<b>&"data"</b>'}))
    html = Run(run)._repr_html_()
    assert "<b>" not in html
    assert '<b>&"data"</b>' in Page(html).text


def test_the_model_comes_with_it(run):
    model = Run(run).load()
    assert model.classes == ("0", "1", "2")
    assert not model.training


def test_what_is_no_run_is_refused(run, tmp_path):
    with pytest.raises(RunError, match="no run folder"):
        Run(tmp_path / "nothing")
    (run / "config.json").write_text("{")
    with pytest.raises(RunError, match=r"config\.json: is no readable configuration \("):
        Run(run)


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
    page = Page(Run(run)._repr_html_())
    assert page.pictures()[0]["alt"] == "Curves of loss and correlation over 3 epochs."
    assert (
        f"validation correlation: 0.9 at the best epoch, {Run(run).best_epoch}; 0.9 after the last"
        in page.text
    )
