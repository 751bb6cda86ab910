from __future__ import annotations

import math

import pytest

from torchcaps.viz import overlaid_curves

from .drawing import assert_nothing_cut, texts


def rows(*losses):
    return [{"epoch": epoch, "val_loss": loss, "val_accuracy": 1 - loss} for epoch, loss in enumerate(losses, start=1)]


def test_every_run_has_a_line_in_both_panels_and_its_name_below():
    figure = overlaid_curves({"a run": rows(0.5, 0.4), "$another": rows(0.5, 0.3, 0.2), "_third": rows(0.1)})
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
