import pytest

from torchcaps.errors import ArgumentError
from torchcaps.viz import affine_curves

from .drawing import assert_nothing_cut, long_names, numbered, panels, texts, words

CURVE = ([20, 0, 10], [0.2, 0.9, 0.5])


def legend(figure):
    return words(figure.legends[0].get_texts())


def test_lines_ascend_and_percent_are_percent():
    figure = affine_curves({"capsules": {"eps": CURVE}}, units={}, chance=0.1)
    line, chance = figure.axes[0].lines
    assert line.get_xdata().tolist() == [0, 10, 20]
    assert line.get_ydata().tolist() == pytest.approx([90, 50, 20])
    assert set(chance.get_ydata()) == {10}
    assert legend(figure) == ["capsules", "chance"]


@pytest.mark.parametrize(("num_models", "num_kinds"), [(6, 1), (2, 5)])
def test_a_panel_a_transformation_and_a_line_a_model(num_models, num_kinds):
    kinds = numbered(num_kinds, "turn {}")
    models = dict.fromkeys(long_names(num_models), dict.fromkeys(kinds, CURVE))
    figure = affine_curves(
        models,
        units=dict.fromkeys(kinds, "degrees"),
        chance=0.1,
    )
    assert len(panels(figure)) == num_kinds
    assert len(panels(figure)[-1].lines) == num_models + 1
    assert "turn 0 (degrees)" in words(texts(figure))
    assert legend(figure).count("chance") == 1
    assert len(legend(figure)) == num_models + 1
    assert_nothing_cut(figure)


def test_a_model_keeps_its_color_where_another_is_missing():
    figure = affine_curves({"a": {"shift": CURVE}, "b": {"shift": CURVE, "scale": CURVE}}, units={})
    shift, scale = figure.axes
    assert shift.lines[1].get_color() == scale.lines[0].get_color()
    assert legend(figure) == ["a", "b"]


def test_a_model_may_be_called_chance():
    figure = affine_curves({"chance": {"eps": CURVE}}, units={}, chance=0.1)
    model, guess = figure.legends[0].get_lines()
    assert (model.get_linestyle(), guess.get_linestyle()) == ("-", "--")


def test_arguments_that_do_not_fit():
    with pytest.raises(ArgumentError, match="number of models: expected between 1 and 6, got 0"):
        affine_curves({}, units={})
    with pytest.raises(
        ArgumentError, match="number of transformations: expected between 1 and 8, got 0"
    ):
        affine_curves({"a": {}}, units={})
