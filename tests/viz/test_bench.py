import pytest

from evaluation.stubs import refuses
from torchcaps import viz

from .drawing import assert_nothing_cut, texts, widths, words

STEPS = [
    {"variant": "auto", "precision": "fp32", "img/s": 5.0},
    {"variant": "textbook", "precision": "fp32", "img/s": 35.0},
    {"variant": "auto", "precision": "bf16", "img/s": 1005.0},
    {"variant": "textbook", "precision": "bf16", "img/s": 20.0},
]
LAYERS = [
    {"variant": "auto", "forward ms": 1.0, "forward+backward ms": 300.0},
    {"variant": "textbook-network", "forward ms": 2.0, "forward+backward ms": 1200.0},
]
TIMES = {"exponent": 1.0, "sizes": [2, 4, 8], "ms": [1.0, 2.0, 4.0]}
SCALING = [
    {"against": "batch", "impl": "auto"} | TIMES,
    {"against": "batch", "impl": "reference"} | TIMES,
    {"against": "children", "impl": "auto"} | TIMES,
    {"against": "parents", "impl": "auto"} | TIMES,
    {"against": "dim", "impl": "auto"} | TIMES,
]
LATENCY = [
    {"batch": 1, "precision": "fp32", "median ms": 10.0, "95 % ms": 13.0},
    {"batch": 32, "precision": "fp32", "median ms": 41.0, "95 % ms": 44.0},
    {"batch": 32, "precision": "bf16", "median ms": 21.0, "95 % ms": 24.0},
]
FIGURES = [
    (viz.throughput_bars, STEPS),
    (viz.layer_bars, LAYERS),
    (viz.scaling_curves, SCALING),
    (viz.latency_curves, LATENCY),
]


@pytest.mark.parametrize(("draw", "rows"), FIGURES)
def test_nothing_is_cut_and_no_rows_are_refused(draw, rows):
    assert_nothing_cut(draw(rows))
    with refuses("number of rows: expected at least 1"):
        draw([])


def test_bars_hold_the_figures_and_name_the_variants():
    figure = viz.throughput_bars(STEPS)
    assert widths(figure.axes[0]) == [5, 35, 1005, 20]
    expected = {"auto", "textbook", "fp32", "bf16", "35", "1005"}
    assert expected <= set(words(texts(figure)))


def test_curves_are_logarithmic_with_the_exponents_in_the_legend():
    batch, _, _, _ = viz.scaling_curves(SCALING).axes
    assert batch.get_xscale() == batch.get_yscale() == "log"
    entries = words(batch.get_legend().get_texts())
    assert entries == ["auto: exponent 1.00", "reference: exponent 1.00"]


def test_equal_times_look_equal():
    digits = {"one": (0.90, [0.99, 0.98]), "two": (0.92, [0.97])}
    slow = {"one": (1.0, [0.9]), "two": (100.0, [1.0])}
    figure = viz.accuracy_against_time({"digits": digits, "slow": slow})
    assert_nothing_cut(figure)
    digits_axes, slow_axes = figure.axes
    low, high = digits_axes.get_xlim()
    assert high / low == pytest.approx(4)
    assert 100 < slow_axes.get_xlim()[1] < 400
