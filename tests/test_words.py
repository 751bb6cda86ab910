"""Metrics, settings and paths in words."""

import pytest

from torchcaps.errors import counted
from torchcaps.words import duration, percent, setting, unique_suffixes


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.2, "1 s"),
        (89, "89 s"),
        (91, "2 min"),
        (5390, "1 h 30 min"),
        (90_000, "25 h 0 min"),
    ],
)
def test_durations(seconds, expected):
    assert duration(seconds) == expected


def test_counts():
    assert [counted(n, "epoch") for n in (0, 1, 1200)] == ["0 epochs", "1 epoch", "1,200 epochs"]


def test_shares():
    assert (percent(0.99434), percent(0), percent(None)) == ("99.43 %", "0.00 %", "-")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "none"),
        (True, "yes"),
        (0.0005, "0.0005"),
        ("mnist", "mnist"),
        ([32, 24], "32 × 24"),
        ({"routing": "uniform", "bias": None}, "routing = uniform, bias = none"),
        ({}, "none"),
    ],
)
def test_settings(content, expected):
    assert setting(content) == expected


@pytest.mark.parametrize(
    ("paths", "suffixes"),
    [
        (["runs/a", "runs/b"], ["a", "b"]),
        (["one/x/seed-0", "two/x/seed-0"], ["one/x/seed-0", "two/x/seed-0"]),
        (["alone"], ["alone"]),
    ],
)
def test_runs_are_named_by_the_shortest_ends_that_distinguish_them(paths, suffixes):
    assert unique_suffixes(paths) == suffixes


def test_equal_paths_have_equal_names():
    first, second = unique_suffixes(["twice", "twice"])
    assert first == second
