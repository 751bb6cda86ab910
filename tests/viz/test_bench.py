import pytest

from evaluation.stubs import refuses
from torchcaps import viz

from .drawing import assert_nothing_cut, texts, words

NAMES = ("limit", "auto", "textbook", "textbook-network")
PRECISIONS = ("fp32", "bf16")
STEPS = [
    {"variant": name, "precision": precision, "img/s": 10.0 * index + 5}
    for index, name in enumerate(NAMES)
    for precision in PRECISIONS
]
LAYERS = [
    {"variant": name, "forward ms": index + 1.0, "forward+backward ms": 300.0 * (index + 1)}
    for index, name in enumerate(NAMES)
]
MEMORY = [
    {"batch": size, "precision": "fp32", "predicted MiB": 3.0 * size, "measured MiB": 3.1 * size}
    for size in (32, 128)
]
SCALING = [
    {"against": axis, "impl": impl, "exponent": 1.0, "sizes": [2, 4, 8], "ms": [1.0, 2.0, 4.0]}
    for axis in ("batch", "children", "parents", "dim")
    for impl in ("auto", "reference")
]
LATENCY = [
    {"batch": size, "precision": precision, "median ms": 9.0 + size, "95 % ms": 12.0 + size}
    for precision in PRECISIONS
    for size in (1, 8, 32)
]
FIGURES = [
    (viz.throughput_bars, STEPS),
    (viz.layer_bars, LAYERS),
    (viz.memory_bars, MEMORY),
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
    assert [bar.get_width() for bar in figure.axes[0].patches] == [5, 15, 25, 35] * 2
    assert {*NAMES, *PRECISIONS, "35"} <= set(words(texts(figure)))


def test_curves_are_logarithmic_with_the_exponents_in_the_legend():
    panels = [axes for axes in viz.scaling_curves(SCALING).axes if axes.get_visible()]
    assert len(panels) == 4
    assert panels[0].get_xscale() == panels[0].get_yscale() == "log"
    entries = words(panels[0].get_legend().get_texts())
    assert entries == ["auto: exponent 1.00", "reference: exponent 1.00"]


def test_equal_times_look_equal():
    digits = {"one": (0.90, [0.99, 0.98]), "two": (0.92, [0.97])}
    slow = {"one": (1.0, [0.9]), "two": (100.0, [1.0])}
    figure = viz.accuracy_against_time({"digits": digits, "slow": slow})
    assert_nothing_cut(figure)
    (low, high), (_, slowest) = (axes.get_xlim() for axes in figure.axes)
    assert high / low == pytest.approx(4)
    assert 100 < slowest < 400
