import pytest

from torchcaps.errors import ArgumentError
from torchcaps.viz import calibration

from .drawing import assert_nothing_cut, heights

TABLE = {
    "error": 0.125,
    "edges": [0.0, 0.25, 0.5, 0.75, 1.0],
    "count": [0, 4, 0, 4],
    "confidence": [None, 0.5, None, 0.75],
    "accuracy": [None, 0.5, None, 1.0],
}


def test_bars_stand_where_samples_are():
    upper, lower = calibration({"length": TABLE}).axes
    assert heights(upper) == [0.5, 1.0]
    assert [bar.get_x() for bar in upper.patches] == [0.25, 0.75]
    assert upper.lines[1].get_xdata()[[1, 3]].tolist() == [0.5, 0.75]
    assert heights(lower) == [0, 4, 0, 4]
    assert "calibration error 12.50 %" in upper.get_title()
    assert upper.get_xlim() == (0, 1)
    assert upper.get_ylim() == (0, 1.02)


def test_one_diagram_for_each_reading():
    figure = calibration({"normalized": TABLE, "length": TABLE})
    normalized, length, *_ = figure.axes
    assert normalized.get_title().startswith("activations divided by their sum")
    assert length.get_title().startswith("longest capsule")
    assert_nothing_cut(figure)


def test_other_numbers_of_tables_are_refused():
    with pytest.raises(ArgumentError, match="number of tables: expected between 1 and 3"):
        calibration({})
