from __future__ import annotations

import pytest
from matplotlib.axes import Axes

from torchcaps.viz import calibration

from .drawing import assert_nothing_cut, texts

TABLE = {
    "error": 0.125,
    "edges": [0.0, 0.25, 0.5, 0.75, 1.0],
    "count": [0, 4, 0, 4],
    "confidence": [None, 0.5, None, 0.75],
    "accuracy": [None, 0.5, None, 1.0],
}


def test_bars_stand_where_samples_are() -> None:
    figure = calibration({"length": TABLE})
    agreement, counts = figure.axes
    assert [(bar.get_x(), bar.get_height()) for bar in agreement.patches] == [
        (0.25, 0.5),
        (0.75, 1.0),
    ]
    assert agreement.lines[1].get_xdata().tolist() == [0.5, 0.75]
    assert [bar.get_height() for bar in counts.patches] == [0, 4, 0, 4]
    assert "calibration error 12.50 %" in agreement.get_title()
    assert_nothing_cut(figure)


def test_one_diagram_for_each_reading() -> None:
    figure = calibration({"normalized": TABLE, "length": TABLE})
    titles = [axes.get_title().split("\n")[0] for axes in figure.axes if axes.get_title()]
    assert titles == ["activations divided by their sum", "longest capsule"]
    assert "accuracy" in [text.get_text() for text in texts(figure)]
    assert_nothing_cut(figure)


def test_the_frame_is_the_unit_square() -> None:
    axes: Axes = calibration({"length": TABLE}).axes[0]
    assert axes.get_xlim() == (0, 1)
    assert axes.get_ylim() == (0, 1.02)


@pytest.mark.parametrize("count", [0, 4])
def test_the_number_of_tables(count: int) -> None:
    with pytest.raises(ValueError, match=f"reliability: expected one to three tables, got {count}"):
        calibration({str(i): TABLE for i in range(count)})
