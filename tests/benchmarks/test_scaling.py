from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from checks import column
from torchcaps.bench import Sizes, benchmark_scaling, fitted_exponent
from torchcaps.bench.scaling import series
from torchcaps.errors import UnknownNameError

from .test_timing import ticking


@pytest.mark.parametrize("power", [-1.0, 0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_exact(power):
    sizes = [3, 6, 12, 24, 48]
    seconds = 0.7 * np.power(sizes, power)
    assert fitted_exponent(sizes, seconds.tolist()) == pytest.approx(power, abs=1e-12)


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


def test_every_size_is_measured_and_constant_time_has_exponent_zero(sizes):
    implementations = ("blocked", "reference")
    rows = benchmark_scaling(implementations, sizes, 1, ticking(), count=3)
    names = Sizes.__dataclass_fields__
    measured = zip(column(rows, "against"), column(rows, "impl"), strict=True)
    assert list(measured) == list(product(names, implementations))
    assert column(rows, "exponent") == pytest.approx([0] * len(rows), abs=1e-12)
    assert rows[0]["sizes"] == [2, 3, 6]
    assert rows[0]["ms"] == [1000, 1000, 1000]


def test_unknown_implementations_and_sizes_below_one_are_refused(sizes):
    with pytest.raises(UnknownNameError, match="impl"):
        benchmark_scaling(("cp",), sizes, 1, ticking())
    with pytest.raises(ValueError, match="parents: expected at least 1, got 0"):
        Sizes(parents=0)
