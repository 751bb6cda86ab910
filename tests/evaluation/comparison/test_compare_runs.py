"""Methods whose true accuracies are known, because their answers are drawn here."""

from __future__ import annotations

import json
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import Tensor

from torchcaps.evaluation import RunsComparison, compare_runs

HARD, CHANCE = (
    1.0,
    0.7,
)  # how much images differ, and how much single answers are left to chance, as normal deviates
CDF = NormalDist().cdf


def drawn(
    rng: np.random.Generator,
    runs: int,
    n: int,
    *,
    lead: float = 0.0,
    by_seed: float,
    shared: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Answers of `runs` runs of two methods: right where skill + seed + chance is above an image's difficulty."""
    hard, pairs = rng.normal(0, HARD, n), rng.normal(0, shared, (runs, 1))
    methods = (
        2 + gain + pairs + rng.normal(0, by_seed, (runs, 1)) + rng.normal(0, CHANCE, (runs, n))
        > hard
        for gain in (lead, 0.0)
    )
    first, second = (torch.from_numpy(answers) for answers in methods)
    return first, second


def true_lead(lead: float, by_seed: float, shared: float = 0.0) -> float:
    spread = (HARD**2 + CHANCE**2 + by_seed**2 + shared**2) ** 0.5
    return CDF((2 + lead) / spread) - CDF(2 / spread)


def simulated(
    tries: int, runs: int, n: int, *, paired: bool = False, **how: float
) -> list[RunsComparison]:
    rng = np.random.default_rng(0)
    return [
        compare_runs(*drawn(rng, runs, n, **how), paired=paired, resamples=1000, seed=k)
        for k in range(tries)
    ]


def covered(found: list[RunsComparison], truth: float) -> float:
    return float(np.mean([one.interval[0] <= truth <= one.interval[1] for one in found]))


@pytest.mark.parametrize("runs", [3, 5])
@pytest.mark.parametrize("by_seed", [0.03, 0.2])
def test_the_interval_holds_the_truth_in_95_percent(runs: int, by_seed: float) -> None:
    """Where images decide, and where seeds do; three runs resampled as they are would give 80 to 93 %."""
    found = simulated(200, runs, 2000, by_seed=by_seed)
    assert 0.92 <= covered(found, 0.0) <= 0.995
    assert np.mean([one.outcome in ("first", "second") for one in found]) <= 0.08


@pytest.mark.parametrize("paired", [False, True])
def test_a_true_difference_is_covered_and_found(paired: bool) -> None:
    how = {"lead": 0.25, "by_seed": 0.05, "shared": 0.2 if paired else 0.0}
    found = simulated(150, 4, 2000, paired=paired, **how)
    assert 0.91 <= covered(found, true_lead(**how)) <= 0.995
    assert np.mean([one.outcome == "first" for one in found]) > 0.7
    assert not any(one.outcome == "second" for one in found)


def test_pairs_see_more_where_seeds_are_shared() -> None:
    rng = np.random.default_rng(0)
    pairs = [drawn(rng, 5, 2000, by_seed=0.02, shared=0.3) for _ in range(40)]
    widths = [
        [compare_runs(*pair, paired=paired, resamples=1000).visible for pair in pairs]
        for paired in (True, False)
    ]
    assert np.median(widths[0]) < 0.8 * np.median(widths[1])


def test_the_smallest_visible_difference_is_seen_in_four_of_five_tries() -> None:
    blind = simulated(100, 5, 2000, by_seed=0.05)
    visible = float(np.median([one.visible or 1 for one in blind]))
    lead = next(k / 1000 for k in range(1000) if true_lead(k / 1000, 0.05) >= visible)
    seen = np.mean(
        [one.outcome == "first" for one in simulated(200, 5, 2000, lead=lead, by_seed=0.05)]
    )
    assert 0.7 < seen < 0.9


def test_equal_methods_pass_as_equal_and_those_a_margin_apart_do_not() -> None:
    lead, by_seed = 0.25, 0.03
    margin = true_lead(lead, by_seed)
    rng = np.random.default_rng(0)

    def passed(lead: float) -> float:
        pairs = (drawn(rng, 5, 3000, lead=lead, by_seed=by_seed) for _ in range(150))
        found = [compare_runs(*pair, margin=margin, resamples=1000) for pair in pairs]
        return float(np.mean([one.equivalence_p < 0.05 for one in found]))

    assert passed(0.0) > 0.8
    assert passed(lead) <= 0.09


def test_seeds_that_vary_widen_the_interval() -> None:
    """The same accuracies on average, the same images; only the spread of the runs differs."""
    n = 1000

    def spread(counts: list[int]) -> Tensor:
        return torch.stack([torch.arange(n) >= count for count in counts])

    base = spread([40, 40, 40])
    widths = []
    for counts in ([40, 40, 40], [35, 40, 45], [20, 40, 60]):
        found = compare_runs(spread(counts), base)
        assert found.difference == pytest.approx(0)
        widths.append(found.interval[1] - found.interval[0])
    assert widths == sorted(widths)
    assert widths[2] > 3 * widths[0]
    assert compare_runs(spread([20, 40, 60]), spread([21, 41, 61]), paired=True).interval[1] < 0.01


def test_more_runs_see_more() -> None:
    found = [
        np.median([one.visible or 1 for one in simulated(40, runs, 1000, by_seed=0.1)])
        for runs in (2, 3, 6)
    ]
    assert found == sorted(found, reverse=True)


def test_the_same_answers_are_equivalent_where_there_are_enough_images() -> None:
    many, few = torch.ones(3, 1000, dtype=torch.bool), torch.ones(3, 100, dtype=torch.bool)
    assert compare_runs(many, many).outcome == "equivalent"
    found = compare_runs(few, few)
    assert found.outcome == "undecided"
    assert found.interval[0] < 0 < found.interval[1]
    assert found.verdict.startswith(
        "These runs do not tell the two methods apart, nor show that they are equally good"
    )
    assert "With so many runs and images, only a difference of " in found.verdict


def test_two_runs_on_two_images_show_nothing() -> None:
    found = compare_runs(
        torch.tensor([[True, False], [True, True]]), torch.tensor([[False, False], [True, False]])
    )
    assert found.visible is None
    assert found.verdict.endswith(
        "With so many runs and images, no difference would be seen, however large."
    )


def test_what_is_told() -> None:
    rng = np.random.default_rng(3)
    first, second = drawn(rng, 4, 2000, lead=1.0, by_seed=0.02)
    found = compare_runs(first, second)
    assert found.first == pytest.approx(first.double().mean(dim=1).tolist())
    assert found.difference == pytest.approx(float(first.double().mean() - second.double().mean()))
    assert found.verdict.startswith("The first method is better over seeds and images (+")
    assert compare_runs(second, first).verdict.startswith(
        "The second method is better over seeds and images (-"
    )
    assert "by less than 50 points" in compare_runs(first, second, margin=0.5).verdict
    heading, (row, _) = found.table()
    assert heading == ("method", "accuracy", "runs")
    mean, std = 100 * np.mean(found.first), 100 * np.std(found.first, ddof=1)
    assert row[1] == f"{mean:.2f} ± {std:.2f} %"
    assert row[2].count(",") == 3
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (told["outcome"], told["paired"], len(told["first"])) == ("first", False, 4)
    assert found == compare_runs(first, second)


def test_arguments_that_do_not_fit() -> None:
    some = torch.ones(3, 8, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"second: expected \[runs, n=8\]"):
        compare_runs(some, some[:, :5])
    with pytest.raises(ValueError, match="first: number of runs: expected at least 2, got 1"):
        compare_runs(some[:1], some)
    with pytest.raises(ValueError, match="number of images: expected at least 2, got 1"):
        compare_runs(some[:, :1], some[:, :1])
    with pytest.raises(ValueError, match="second: expected 3 runs, one for each of first, got 2"):
        compare_runs(some, some[:2], paired=True)
    with pytest.raises(
        ValueError, match="margin: expected a difference in accuracy between 0 and 1, got 0"
    ):
        compare_runs(some, some, margin=0)
    with pytest.raises(ValueError, match="resamples: expected at least 1000, got 100"):
        compare_runs(some, some, resamples=100)
