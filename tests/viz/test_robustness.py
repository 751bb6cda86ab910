from __future__ import annotations

import numpy as np
import pytest

from torchcaps.viz import accuracy_curves, affine_curves

from .drawing import assert_nothing_cut, long_names, texts

CURVE = ([20, 0, 10], [0.2, 0.9, 0.5])


def test_lines_ascend_and_percent_are_percent() -> None:
    figure = accuracy_curves({"capsules": CURVE}, xlabel="eps", chance=0.1, title="an attack")
    line, chance = figure.axes[0].lines
    assert line.get_xdata().tolist() == [0, 10, 20]
    assert line.get_ydata().tolist() == pytest.approx([90, 50, 20])
    assert set(chance.get_ydata()) == {10}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["capsules", "chance"]
    assert_nothing_cut(figure)


@pytest.mark.parametrize(("models", "kinds"), [(6, 1), (3, 2), (1, 5)])
def test_a_panel_a_transformation_and_a_line_a_model(models: int, kinds: int) -> None:
    names = [f"turn {k}" for k in range(kinds)]
    curves = {name: dict.fromkeys(names, CURVE) for name in long_names(models)}
    figure = affine_curves(curves, units=dict.fromkeys(names, "degrees"), chance=0.1)
    panels = [axes for axes in figure.axes if axes.axison]
    assert len(panels) == kinds
    assert all(len(axes.lines) == models + 1 for axes in panels)
    assert "turn 0 (degrees)" in {text.get_text() for text in texts(figure)}
    assert [text.get_text() for text in figure.legends[0].get_texts()].count("chance") == 1
    assert len(figure.legends[0].get_texts()) == models + 1
    assert_nothing_cut(figure)


def test_a_model_keeps_its_color_where_another_is_missing() -> None:
    figure = affine_curves({"a": {"shift": CURVE}, "b": {"shift": CURVE, "scale": CURVE}}, units={})
    shift, scale = figure.axes
    assert shift.lines[1].get_color() == scale.lines[0].get_color()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


def test_arguments_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="number of curves: expected between 1 and 6, got 0"):
        accuracy_curves({}, xlabel="eps")
    with pytest.raises(ValueError, match="expected as many amounts as accuracies for 'a'"):
        accuracy_curves({"a": (np.arange(3), np.arange(2))}, xlabel="eps")
    with pytest.raises(
        ValueError, match="number of transformations: expected between 1 and 8, got 0"
    ):
        affine_curves({"a": {}}, units={})
