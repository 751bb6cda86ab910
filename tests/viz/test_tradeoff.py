import pytest

from torchcaps import viz

from .drawing import assert_nothing_cut


def test_equal_times_look_equal():
    digits = {"one": (0.90, [0.99, 0.98]), "two": (0.92, [0.97])}
    slow = {"one": (1.0, [0.9]), "two": (100.0, [1.0])}
    figure = viz.accuracy_against_time({"digits": digits, "slow": slow})
    assert_nothing_cut(figure)
    digits_axes, slow_axes = figure.axes
    low, high = digits_axes.get_xlim()
    assert high / low == pytest.approx(4)
    assert 100 < slow_axes.get_xlim()[1] < 400
