from __future__ import annotations

import math

import pytest

from torchcaps.viz import curves, overlaid_curves

from .drawing import assert_nothing_cut, texts

ROWS = [
    {
        "epoch": 1,
        "train_loss": 0.3,
        "val_loss": 0.2,
        "train_accuracy": 0.9,
        "val_accuracy": 0.92,
        "lr": 1e-3,
    },
    {
        "epoch": 2,
        "train_loss": 0.1,
        "val_loss": 0.15,
        "train_accuracy": 0.95,
        "val_accuracy": 0.97,
        "lr": 1e-3,
    },
    {
        "epoch": 3,
        "train_loss": 0.05,
        "val_loss": 0.16,
        "train_accuracy": 0.98,
        "val_accuracy": 0.96,
        "lr": 1e-3,
    },
]


def test_both_panels_hold_the_recorded_figures() -> None:
    figure = curves(ROWS)
    loss, accuracy = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["loss", "accuracy (%)"]
    assert list(loss.lines[0].get_xdata()) == [1, 2, 3]
    assert list(loss.lines[0].get_ydata()) == [0.3, 0.1, 0.05]
    assert accuracy.lines[1].get_ydata() == pytest.approx([92, 97, 96])
    assert_nothing_cut(figure)


def test_the_legend_names_the_best_epochs() -> None:
    entries = [
        text.get_text() for axes in curves(ROWS).axes for text in axes.get_legend().get_texts()
    ]
    assert entries == [
        "training: lowest 0.05 at epoch 3",
        "validation: lowest 0.15 at epoch 2",
        "training: highest 98.00 % at epoch 3",
        "validation: highest 97.00 % at epoch 2",
    ]


def test_one_epoch_is_a_visible_point() -> None:
    figure = curves(ROWS[:1])
    assert figure.axes[0].lines[0].get_marker() == "o"
    low, high = figure.axes[0].get_xlim()
    assert low < 1 < high
    assert_nothing_cut(figure)


def test_absent_keys_leave_a_note_and_none_is_passed_over() -> None:
    figure = curves([{"val_loss": 0.4}, {"val_loss": None}, {"val_loss": 0.2}])
    assert list(figure.axes[0].lines[0].get_xdata()) == [1, 3]
    assert not figure.axes[1].lines
    assert "not recorded" in [text.get_text() for text in texts(figure)]
    assert_nothing_cut(figure)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_leaves_a_gap(value: float) -> None:
    figure = curves([{"train_loss": 0.4}, {"train_loss": value}, {"train_loss": 0.2}])
    values = figure.axes[0].lines[0].get_ydata()
    assert math.isnan(values[1])
    assert "lowest 0.2 at epoch 3" in figure.axes[0].get_legend().get_texts()[0].get_text()
    assert_nothing_cut(figure)


def test_only_nan_is_not_recorded() -> None:
    assert not curves([{"train_loss": math.nan}]).axes[0].lines


def test_a_loss_that_falls_far_is_on_a_logarithmic_axis() -> None:
    far = curves([{"val_loss": 1.0}, {"val_loss": 0.01}])
    assert far.axes[0].get_yscale() == "log"
    assert curves(ROWS).axes[0].get_yscale() == "linear"
    assert curves([{"val_loss": 1.0}, {"val_loss": 0.0}]).axes[0].get_yscale() == "linear"
    assert_nothing_cut(far)


def test_no_rows() -> None:
    with pytest.raises(ValueError, match="metrics: expected at least one row, got none"):
        curves([])


def rows(*losses):
    return [
        {"epoch": epoch, "val_loss": loss, "val_accuracy": 1 - loss}
        for epoch, loss in enumerate(losses, start=1)
    ]


def test_every_run_has_a_line_in_both_panels_and_its_name_below():
    figure = overlaid_curves(
        {"a run": rows(0.5, 0.4), "$another": rows(0.5, 0.3, 0.2), "_third": rows(0.1)}
    )
    loss, accuracy = figure.axes
    assert [list(line.get_ydata()) for line in loss.lines] == [[0.5, 0.4], [0.5, 0.3, 0.2], [0.1]]
    assert list(accuracy.lines[2].get_ydata()) == [90]
    assert len({line.get_color() for line in loss.lines}) == 3
    assert {"a run", r"\$another", "_third"} <= {text.get_text() for text in texts(figure)}
    assert_nothing_cut(figure)


def test_values_that_are_not_finite_leave_a_gap():
    figure = overlaid_curves({"a": rows(0.5, math.inf, 0.3)})
    values = figure.axes[0].lines[0].get_ydata()
    assert math.isnan(values[1]) and values[2] == 0.3


def test_a_loss_that_falls_far_is_drawn_on_a_logarithmic_axis():
    assert overlaid_curves({"a": rows(0.5, 0.01)}).axes[0].get_yscale() == "log"
    assert overlaid_curves({"a": rows(0.5, 0.1)}).axes[0].get_yscale() == "linear"


def test_many_runs_are_told_apart_and_too_many_refused():
    many = {f"a run with a long name, number {k}": rows(0.1 * (k % 7 + 1), 0.1) for k in range(24)}
    figure = overlaid_curves(many)
    styles = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}
    assert len(styles) == 24
    assert_nothing_cut(figure)
    with pytest.raises(ValueError, match="number of runs: expected between 1 and 24, got 25"):
        overlaid_curves(many | {"one more": rows(0.1)})


def test_any_loss_and_score_go_by_their_names() -> None:
    rows = [
        {"train_loss": 3.0, "val_sharp_edges": -2.0},
        {"train_loss": 2.0, "val_sharp_edges": -0.5},
    ]
    figure = curves(rows, loss="squared_error", score="sharp_edges")
    _, score = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "squared error loss",
        "sharp edges",
    ]
    assert list(score.lines[0].get_ydata()) == [-2.0, -0.5]
    assert score.get_legend().get_texts()[0].get_text() == "validation: highest -0.5 at epoch 2"
    assert_nothing_cut(figure)
