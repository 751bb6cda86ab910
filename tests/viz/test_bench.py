from __future__ import annotations

import pytest

from torchcaps import viz

from .drawing import assert_nothing_cut, texts

NAMES = ("limit", "auto", "textbook", "textbook-network")
STEPS = [
    {"variant": n, "precision": p, "img/s": 10.0 * k + 5}
    for k, n in enumerate(NAMES)
    for p in ("fp32", "bf16")
]
LAYERS = [
    {"variant": n, "forward ms": k + 1.0, "forward+backward ms": 300.0 * (k + 1)}
    for k, n in enumerate(NAMES)
]
MEMORY = [
    {"batch": b, "precision": "fp32", "predicted MiB": 3.0 * b, "measured MiB": 3.1 * b}
    for b in (32, 128)
]
SCALING = [
    {"against": axis, "impl": impl, "exponent": 1.0, "sizes": [2, 4, 8], "ms": [1.0, 2.0, 4.0]}
    for axis in ("batch", "children", "parents", "dim")
    for impl in ("auto", "reference")
]
LATENCY = [
    {"batch": b, "precision": p, "median ms": 9.0 + b, "95 % ms": 12.0 + b}
    for p in ("fp32", "bf16")
    for b in (1, 8, 32)
]
FIGURES = [
    (viz.throughput_bars, STEPS),
    (viz.layer_bars, LAYERS),
    (viz.memory_bars, MEMORY),
    (viz.scaling_curves, SCALING),
    (viz.latency_curves, LATENCY),
]


@pytest.mark.parametrize(("draw", "rows"), FIGURES)
def test_nothing_is_cut(draw, rows):
    assert_nothing_cut(draw(rows))


@pytest.mark.parametrize("draw", [draw for draw, _ in FIGURES])
def test_no_rows_are_refused(draw):
    with pytest.raises(ValueError, match="rows: expected at least one, got none"):
        draw([])


def test_bars_hold_the_figures_and_name_the_variants():
    figure = viz.throughput_bars(STEPS)
    assert [bar.get_width() for bar in figure.axes[0].patches] == [5, 15, 25, 35] * 2
    written = {text.get_text() for text in texts(figure)}
    assert {*NAMES, "fp32", "bf16", "35"} <= written


def test_curves_are_logarithmic_with_the_exponents_in_the_legend():
    figure = viz.scaling_curves(SCALING)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == 4
    assert shown[0].get_xscale() == shown[0].get_yscale() == "log"
    assert [text.get_text() for text in shown[0].get_legend().get_texts()] == [
        "auto: exponent 1.00",
        "reference: exponent 1.00",
    ]


def test_equal_times_look_equal():
    panel = {"one": (0.90, [0.99, 0.98]), "two": (0.92, [0.97])}
    figure = viz.accuracy_against_time(
        {"digits": panel, "slow": {"one": (1.0, [0.9]), "two": (100.0, [1.0])}}
    )
    assert_nothing_cut(figure)
    (low, high), (_, slowest) = (axes.get_xlim() for axes in figure.axes)
    assert high / low == pytest.approx(4)
    assert 100 < slowest < 400
