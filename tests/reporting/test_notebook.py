"""Runs as a notebook shows them."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import numpy as np
import pytest

from torchcaps.errors import RunError
from torchcaps.reporting import Run, finish_run
from torchcaps.reporting import run as run_module
from torchcaps.reporting.epochs import training_seconds
from torchcaps.reporting.notebook import curve
from torchcaps.training import RunFolder


class Page(HTMLParser):
    """The text of a fragment, and its attributes by tag."""

    def __init__(self, html):
        super().__init__()
        self.text, self.texts, self.open, self.tags = "", [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append((tag, dict(attrs)))

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        self.texts.append(data)

    def points(self):
        line = next(attrs["points"] for tag, attrs in self.tags if tag == "polyline")
        return [tuple(map(float, point.split(","))) for point in line.split()]


def edit(file, change):
    """Rewrite the rows of a file of JSON lines."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in change(rows)))


@pytest.fixture
def evaluated(run, monkeypatch):
    monkeypatch.setattr(run_module, "can_plot", lambda: False)
    finish_run(RunFolder.open(run))
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
    assert page.text.startswith(f"run · capsnet on {found.config.data.name}")
    assert f"{100 * max(accuracies):.2f} % at the best epoch, {found.best_epoch}" in page.text
    assert f"training: best epoch {found.best_epoch} of 3, " in page.text
    assert " done" not in page.text
    across, down = zip(*page.points(), strict=True)
    assert list(across) == sorted(across)
    assert (
        np.argsort(np.negative(down), kind="stable").tolist()
        == np.argsort(accuracies, kind="stable").tolist()
    )
    assert not {"script", "img", "link", "style"} & {tag for tag, _ in page.tags}


def test_a_run_that_is_not_finished_says_how_far_it_is(run):
    edit(run / "metrics.jsonl", lambda rows: [row for row in rows if row["step"] <= 3])
    found = Run(run)
    assert not found.finished
    assert "not evaluated yet, epoch 1 of 3 done, best epoch 1 of 3" in repr(found)
    page = Page(found._repr_html_())
    assert "training: epoch 1 of 3 done" in page.text
    assert "test images" not in page.text
    assert len(page.points()) == 1


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
    assert "svg" not in [tag for tag, _ in page.tags]


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
    assert "validation correlation by epoch" in page.text
    assert (
        f"validation correlation: 0.9 at the best epoch, {Run(run).best_epoch}; 0.9 after the last"
        in page.text
    )


def test_a_run_of_an_early_version_without_validation_is_shown_by_its_loss(run):
    edit(
        run / "metrics.jsonl",
        lambda rows: [
            {key: row[key] for key in ("kind", "step", "epoch", "train_loss")}
            for row in rows
            if row["kind"] == "epoch"
        ],
    )
    found = Run(run)
    assert found.finished
    assert found.best_epoch == 3
    assert "best epoch" not in repr(found)
    assert "training loss by epoch" in Page(found._repr_html_()).text


def test_a_curve_leaves_out_what_is_no_number_and_marks_the_best():
    rows = [
        {"epoch": k, "val_accuracy": v}
        for k, v in ((1, 0.5), (2, float("nan")), (3, 0.75), (4, 0.75))
    ]
    page = Page(curve([*rows, {"epoch": 5}], "val_accuracy", "a < b", best=3))
    assert len(page.points()) == 3
    assert page.points()[1][1] == page.points()[2][1] < page.points()[0][1]
    radii = [float(attrs["r"]) for tag, attrs in page.tags if tag == "circle"]
    assert max(radii) == radii[1] > radii[0] == radii[2]
    assert [page.texts.count(word) for word in ("50", "75", "1", "4", "a < b (%) by epoch")] == [
        1
    ] * 5
    assert curve([{"epoch": 1, "val_accuracy": float("inf")}], "val_accuracy", "x") == ""
    assert curve([], "val_accuracy", "x") == ""


def test_training_time_is_images_by_speed():
    rows = [
        {"step": 10, "images_per_second": 64.0},  # 10 steps of 32
        {"step": 15, "images": 100, "images_per_second": 50.0},
    ]
    assert training_seconds(rows, 32) == pytest.approx(5.0 + 2.0)
    assert training_seconds([*rows, {"step": 20}], 32) is None
    assert training_seconds([], 32) is None
