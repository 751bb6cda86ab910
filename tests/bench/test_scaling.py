from __future__ import annotations

from dataclasses import fields

import pytest

from torchcaps.bench import Sizes, benchmark_scaling, fitted_exponent
from torchcaps.bench.scaling import series
from torchcaps.errors import UnknownNameError

from .test_timing import ticking


@pytest.mark.parametrize("power", [-1.0, 0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_exact(power):
    sizes = [3, 6, 12, 24, 48]
    assert fitted_exponent(sizes, [0.7 * size**power for size in sizes]) == pytest.approx(
        power, abs=1e-12
    )


@pytest.mark.parametrize(
    "bad", [([2], [1.0]), ([2, 2], [1.0, 2.0]), ([1, 2], [0.0, 1.0]), ([1, 2, 3], [1.0, 2.0])]
)
def test_an_exponent_needs_two_sizes_above_zero(bad):
    with pytest.raises(ValueError, match="sizes: expected two or more, different and above zero"):
        fitted_exponent(*bad)


def test_series_double_around_the_middle_and_hold_no_size_twice():
    assert series(128) == [32, 64, 128, 256, 512]
    assert series(8, 3) == [4, 8, 16]
    assert series(1) == [1, 2, 4]


def test_every_size_is_measured_and_time_that_stands_still_has_exponent_zero(sizes):
    rows = benchmark_scaling(("blocked", "reference"), sizes, 1, ticking(), count=3)
    names = [field.name for field in fields(Sizes)]
    assert [(row["against"], row["impl"]) for row in rows] == [
        (n, i) for n in names for i in ("blocked", "reference")
    ]
    assert all(row["exponent"] == pytest.approx(0, abs=1e-12) for row in rows)
    assert rows[0]["sizes"] == [2, 3, 6]
    assert rows[0]["ms"] == [1000, 1000, 1000]


def test_unknown_implementations_and_sizes_below_one_are_refused(sizes):
    with pytest.raises(UnknownNameError, match="impl"):
        benchmark_scaling(("cp",), sizes, 1, ticking())
    with pytest.raises(ValueError, match="parents: expected at least 1, got 0"):
        Sizes(parents=0)
