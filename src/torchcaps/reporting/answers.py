"""Which of two methods is better, by the right and wrong answers of their models on the same images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from torchcaps.errors import ArgumentError, RunError
from torchcaps.evaluation import Evaluation, compare_answers, compare_runs
from torchcaps.evaluation.comparison.compare import BaseComparison
from torchcaps.reporting.evaluated import EvaluatedRun, evaluate_run
from torchcaps.training import Run

Answers = Bool[Tensor, "runs n"]
Method = Any
"""Evaluations or runs (or their folders), one or several; or booleans `[n]` or `[runs, n]`."""


def compare(
    first: Method,
    second: Method,
    groups: None = None,
    adjust: None = None,
    margin: str | float = "10%",
    *,
    paired: bool = False,
    root: str | None = None,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> BaseComparison:
    """Compare a method with a baseline, on the same images in the same order.

    One model of each is a comparison of two models, over images alone (McNemar's test); two or more of
    each, with different seeds, is one of two methods, over seeds and images.

    Args:
        first, second: the method in question and the baseline. Each is an evaluation of a classifier
            or several; a finished run, or its folder, or several, which are run over all of their
            test images; or booleans, whether a model is right on each image, `[n]` or `[runs, n]`.
        groups, adjust: not available yet; expected None.
        margin: the smallest difference that matters: in accuracy, in (0, 1); or as text a share of the
            errors of the baseline, such as "10%", of at least one error. Choose it before you look.
        paired: whether runs with the same seed (of other kinds: in the same place) belong together,
            because split and order come from it. Only the differences within pairs count then.
        root, device, progress: for run folders, see `report`.

    Returns:
        `.outcome` ("first", "second", "equivalent" or "undecided"), `.difference` in accuracy with its
        `.interval`, `.p_value`, and `.verdict` in words.

    Raises:
        RunError: for no run, one that is not finished or damaged, runs of different tasks or of one
            without right answers, runs that were not tested on the same images, two of one method with
            the same seed, or, if paired, other seeds for the second method.
        DataError: if the test images cannot be had.
        ArgumentError: for what is none of these, other images, one run against several, or a margin out of range.

    Example:
        >>> tc.compare(["runs/routed-0", "runs/routed-1"], ["runs/uniform-0", "runs/uniform-1"]).outcome
        "undecided"
    """
    for name, value in (("groups", groups), ("adjust", adjust)):
        if value is not None:
            raise ArgumentError(name, f"expected None: it is not available yet; got {value!r}")
    collector = _Collector(root, device, progress)
    ours = collector.answers("first", first)
    theirs = collector.answers("second", second)
    if paired and ours.keys() != theirs.keys():
        seeds = [", ".join(map(str, sorted(method))) for method in (ours, theirs)]
        raise RunError(
            f"paired: expected runs of the same seeds of both methods, got {' and '.join(seeds)}"
        )
    one, two = (torch.stack([method[key] for key in sorted(method)]) for method in (ours, theirs))
    if len(one) == len(two) == 1:
        return compare_answers(one[0], two[0], margin=_difference(margin, two))
    return compare_runs(one, two, paired=paired, margin=_difference(margin, two))


def _difference(margin: str | float, baseline: Answers) -> float:
    """A margin as a difference in accuracy."""
    if not isinstance(margin, str):
        return margin
    number, percent, rest = margin.partition("%")
    try:
        share = float(number) / 100
    except ValueError:
        share = 0.0
    if not percent or rest or not 0 < share < 1:
        raise ArgumentError("margin", f'expected a number or a share such as "10%", got {margin!r}')
    errors = max(1 - float(baseline.double().mean()), 1 / baseline.shape[1])
    return share * errors


class _Collector:
    """Right and wrong answers of each run of a method, by seed; all on the same images."""

    def __init__(
        self, root: str | None, device: str, progress: Callable[[int, int], None] | None
    ) -> None:
        self.options: dict[str, Any] = {"root": root, "device": device, "progress": progress}
        self.labels: Tensor | None = None
        self.run: EvaluatedRun | None = None  # the first one

    def answers(self, argument: str, method: Method) -> dict[int, Tensor]:
        """Seed, or place, of each run -> whether it is right on each image, `[n]`."""
        if isinstance(method, np.ndarray):
            method = torch.from_numpy(method)
        if isinstance(method, Tensor):
            if method.dtype != torch.bool or method.dim() not in (1, 2):
                raise ArgumentError(
                    argument,
                    f"expected booleans [runs, n], got {method.dtype} {list(method.shape)}",
                )
            return dict(enumerate(torch.atleast_2d(method.cpu())))
        items = [method] if isinstance(method, Evaluation | Run | str | Path) else list(method)
        rows: dict[int, Tensor] = {}
        for place, item in enumerate(items):
            if isinstance(item, Evaluation):
                rows[place] = self._of_evaluation(argument, item)
                continue
            if not isinstance(item, Run | str | Path):
                raise ArgumentError(
                    argument, f"expected evaluations or runs, got {type(item).__name__}"
                )
            run = self._evaluated(item)
            seed = run.config.training.seed
            if seed in rows:
                raise RunError(
                    f"{run.run.path}: expected another seed for each run of a method, got {seed} twice"
                )
            rows[seed] = run.is_correct
        return rows

    def _of_evaluation(self, argument: str, evaluation: Evaluation) -> Tensor:
        if self.labels is None:
            self.labels = evaluation.labels
        if not torch.equal(self.labels, evaluation.labels):
            raise ArgumentError(
                argument,
                f"expected the labels of first, image for image, got {len(evaluation.labels)} "
                f"labels that are not those {len(self.labels)}",
            )
        return evaluation.predictions == evaluation.labels

    def _evaluated(self, item: Run | str | Path) -> EvaluatedRun:
        run = evaluate_run(item, **self.options)
        if self.run is None:
            self.run = run
        check_same_task([self.run, run])
        if not run.has_classes:
            raise RunError(
                f"{run.run.path}: the task {run.task.name} gives no right and wrong answers to compare"
            )
        if not same_images(self.run, run):
            raise RunError(
                f"{run.run.path}: was not tested on the same images as {self.run.run.path}"
            )
        return run


def check_same_task(runs: Sequence[EvaluatedRun]) -> None:
    """Raise RunError unless all of them were trained for the same task."""
    first = runs[0]
    for run in runs[1:]:
        if run.task.name != first.task.name:
            raise RunError(
                f"{run.run.path}: was trained for the task {run.task.name}, and {first.run.path} "
                f"for {first.task.name}; only runs of the same task are compared"
            )


def same_images(run: EvaluatedRun, other: EvaluatedRun) -> bool:
    """Whether both were tested on the same images in the same order; of other sizes, those of the same data set."""
    if run.images.classes != other.images.classes or not torch.equal(run.labels, other.labels):
        return False
    first, second = run.images.images.cpu(), other.images.images.cpu()
    if first.shape == second.shape:
        return torch.equal(first, second)
    return run.config.data.name == other.config.data.name and run.images.name == other.images.name
