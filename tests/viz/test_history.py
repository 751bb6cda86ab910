import math

import pytest

from torchcaps.errors import ArgumentError
from torchcaps.viz import curves, overlaid_curves

from .drawing import assert_nothing_cut, numbered, texts, titles, words

ROWS = [
    {"epoch": 1, "train_loss": 0.3, "val_loss": 0.2, "train_accuracy": 0.9, "val_accuracy": 0.92},
    {"epoch": 2, "train_loss": 0.1, "val_loss": 0.15, "train_accuracy": 0.95, "val_accuracy": 0.97},
    {
        "epoch": 3,
        "train_loss": 0.05,
        "val_loss": 0.16,
        "train_accuracy": 0.98,
        "val_accuracy": 0.96,
    },
]


DRAWINGS = [curves, lambda rows: overlaid_curves({"a": rows})]


def rows(*losses):
    return [{"val_loss": loss, "val_accuracy": 1 - loss} for loss in losses]


def test_both_panels_hold_the_recorded_figures_and_name_the_best_epochs():
    figure = curves(ROWS)
    loss, accuracy = figure.axes
    assert titles(figure) == ["loss", "accuracy (%)"]
    assert list(loss.lines[0].get_xdata()) == [1, 2, 3]
    assert list(loss.lines[0].get_ydata()) == [0.3, 0.1, 0.05]
    assert accuracy.lines[1].get_ydata() == pytest.approx([92, 97, 96])
    assert words(loss.get_legend().get_texts()) == [
        "training: lowest 0.05 at epoch 3",
        "validation: lowest 0.15 at epoch 2",
    ]
    assert words(accuracy.get_legend().get_texts()) == [
        "training: highest 98.00 % at epoch 3",
        "validation: highest 97.00 % at epoch 2",
    ]
    assert_nothing_cut(figure)


def test_absent_keys_leave_a_note_and_none_is_passed_over():
    figure = curves([{"val_loss": 0.4}, {"val_loss": None}, {"val_loss": 0.2}])
    assert list(figure.axes[0].lines[0].get_xdata()) == [1, 3]
    assert not figure.axes[1].lines
    assert "not recorded" in words(texts(figure))
    assert_nothing_cut(figure)


@pytest.mark.parametrize("draw", DRAWINGS)
def test_losses_that_are_not_finite_leave_a_gap(draw):
    [line] = draw(rows(0.4, math.inf, 0.2)).axes[0].lines
    assert list(line.get_ydata()) == pytest.approx([0.4, math.nan, 0.2], nan_ok=True)


@pytest.mark.parametrize("draw", DRAWINGS)
@pytest.mark.parametrize(("last", "scale"), [(0.01, "log"), (0.1, "linear"), (0.0, "linear")])
def test_a_loss_that_falls_far_is_on_a_logarithmic_axis(draw, last, scale):
    assert draw(rows(1.0, last)).axes[0].get_yscale() == scale


def test_every_run_has_a_line_in_both_panels_and_its_name_below():
    runs = {"a run": rows(0.5, 0.4), "$another": rows(0.5, 0.3, 0.2), "_third": rows(0.1)}
    figure = overlaid_curves(runs)
    loss, accuracy = figure.axes
    first, second, third = loss.lines
    assert list(first.get_ydata()) == [0.5, 0.4]
    assert list(second.get_ydata()) == [0.5, 0.3, 0.2]
    assert list(third.get_ydata()) == [0.1]
    assert list(accuracy.lines[2].get_ydata()) == [90]
    assert {"a run", r"\$another", "_third"} <= set(words(texts(figure)))


def test_24_runs_are_distinguished_and_more_refused():
    runs = dict.fromkeys(numbered(24, "a run with a long name, number {}"), ROWS)
    figure = overlaid_curves(runs)
    styles = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}
    assert len(styles) == 24
    assert_nothing_cut(figure)
    with pytest.raises(ArgumentError, match="number of runs: expected between 1 and 24, got 25"):
        overlaid_curves(runs | {"one more": rows(0.1)})


def test_any_loss_and_score_go_by_their_names():
    metrics = [
        {"train_loss": 3.0, "val_sharp_edges": -2.0},
        {"train_loss": 2.0, "val_sharp_edges": -0.5},
    ]
    figure = curves(metrics, loss="squared_error", score="sharp_edges")
    assert titles(figure) == ["squared error loss", "sharp edges"]
    _, score = figure.axes
    assert list(score.lines[0].get_ydata()) == [-2.0, -0.5]
    assert words(score.get_legend().get_texts()) == ["validation: highest -0.5 at epoch 2"]
