"""Which of two methods is better, by their right and wrong answers on the same images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from torchcaps.data.files import identities
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
    groups: Any = None,
    adjust: Sequence[float] | None = None,
    margin: str | float = "10%",
    *,
    paired: bool = False,
    root: str | None = None,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> BaseComparison:
    """Compare a method with a baseline, on the same images in the same order.

    One model of each method is a comparison of two models, over images alone (McNemar's test).
    Two or more of each, with different seeds, is a comparison of two methods, over seeds and
    images.

    Args:
        first: the method in question: one evaluation of a classifier, or several; one finished run
            or its folder, or several, whose models are run over all of their test images; or
            booleans that say whether a model is right on each image, `[n]` or `[runs, n]`.
        second: the baseline, in the same forms.
        groups: a label for each image, integer or text, equal for images that depend on each other,
            as those of one toy, patient, digit or video. Then these are counted, not images. None
            takes the groups of the test images of run folders, and of evaluations that know them.
        adjust: p-values of the other comparisons that are read together with this one; the
            p-value and the outcome are those after Holm's correction.
        margin: smallest difference that matters, in accuracy, in (0, 1); or, as text such as "10%",
            a share of the errors of the baseline, of which there is at least one. Choose it before
            you look at the answers.
        paired: whether runs with the same seed (without seeds: in the same place) belong together,
            because split and order come from the seed. Only differences within pairs count then.
        root: for run folders: where a named data set is looked for first.
        device: for run folders: "auto", "cpu", "cuda", ...
        progress: for run folders: called with the images that are done and the images in all.

    Returns:
        `.outcome` ("first", "second", "equivalent" or "undecided"), `.difference` in accuracy with
        its `.interval`, `.p_value`, and `.verdict` in words.

    Raises:
        RunError: for a folder without a finished, intact run; runs of different tasks, or of a task
            without right answers; runs that were not tested on the same images; two runs of one
            method with the same seed; or, if paired, other seeds for the second method.
        DataError: if the test images cannot be read.
        ArgumentError: for a method of another type, evaluations of other images, one run against
            several, or a margin out of range.

    Example:
        >>> routed = ["runs/routed-0", "runs/routed-1"]
        >>> tc.compare(routed, ["runs/uniform-0", "runs/uniform-1"]).outcome
        "undecided"
    """
    evaluated: list[Evaluation | EvaluatedRun] = []
    options: dict[str, Any] = {"root": root, "device": device, "progress": progress}
    first_answers = _read_answers("first", first, evaluated, options)
    second_answers = _read_answers("second", second, evaluated, options)
    if paired and first_answers.keys() != second_answers.keys():
        raise RunError(
            "paired: expected runs of the same seeds of both methods, got "
            f"{sorted(first_answers)} and {sorted(second_answers)}"
        )
    first_rows, second_rows = (
        torch.stack([answers[seed] for seed in sorted(answers)])
        for answers in (first_answers, second_answers)
    )
    for source in evaluated:
        if groups is None:
            groups = source.groups if isinstance(source, Evaluation) else source.images.groups
    difference, is_share = read_margin(margin)
    if is_share:
        one_image = 1 / second_rows.shape[1]
        difference *= max(1 - float(second_rows.double().mean()), one_image)
    options = {"groups": groups, "adjust": adjust or (), "margin": difference}
    if len(first_rows) == len(second_rows) == 1:
        return compare_answers(first_rows[0], second_rows[0], **options)
    return compare_runs(first_rows, second_rows, paired=paired, **options)


def read_margin(margin: str | float) -> tuple[float, bool]:
    """A margin as a number, and whether it is a share of the errors of the baseline.

    Raises ArgumentError for another text, or a number that is not in (0, 1).
    """
    text = str(margin)
    is_share = text.endswith("%")
    try:
        number = float(text.removesuffix("%")) / (100 if is_share else 1)
    except ValueError:
        number = 0.0
    if not 0 < number < 1:
        expected = "expected a share such as 10%, or a difference in accuracy such as 0.01"
        raise ArgumentError("margin", f"{expected}, got {text}")
    return number, is_share


def _read_answers(
    argument: str,
    method: Method,
    evaluated: list[Evaluation | EvaluatedRun],
    options: dict[str, Any],
) -> dict[int, Tensor]:
    """Whether each model of a method is right on each image.

    Args:
        argument: name of the method.
        method: see `compare`.
        evaluated: what was read before; it grows. The images must be those of its first.
        options: of `evaluate_run`.

    Returns:
        Answers `[n]` of each model, by seed, or by place where there is none.
    """
    if isinstance(method, np.ndarray):
        method = torch.from_numpy(method)
    if isinstance(method, Tensor):
        if method.dtype != torch.bool or method.dim() not in (1, 2):
            shape = f"{method.dtype} {list(method.shape)}"
            raise ArgumentError(argument, f"expected booleans [runs, n], got {shape}")
        return dict(enumerate(torch.atleast_2d(method.cpu())))
    if isinstance(method, Evaluation | Run | str | Path):
        method = [method]
    answers: dict[int, Tensor] = {}
    for place, source in enumerate(method):
        if isinstance(source, Run | str | Path):
            source = evaluate_run(source, **options)
        if not isinstance(source, Evaluation | EvaluatedRun):
            kind = type(source).__name__
            raise ArgumentError(argument, f"expected evaluations or runs, got {kind}")
        reference: Any = next((one for one in evaluated if type(one) is type(source)), source)
        evaluated.append(source)
        if isinstance(source, EvaluatedRun):
            _check_same_images(source, reference)
            seed = source.config.training.seed
            if seed in answers:
                raise RunError(
                    f"{source.run.path}: expected another seed for each run of a method, "
                    f"got {seed} twice"
                )
            answers[seed] = source.is_correct
        elif torch.equal(source.labels, reference.labels):
            answers[place] = source.predictions == source.labels
        else:
            raise ArgumentError(
                argument,
                f"expected the labels of first, image for image, got {len(source.labels)} "
                f"labels that are not those {len(reference.labels)}",
            )
    return answers


def _check_same_images(run: EvaluatedRun, reference: EvaluatedRun) -> None:
    """Raise RunError unless a run has right answers, on the images of the first run."""
    check_same_task([reference, run])
    path = run.run.path
    if not run.has_classes:
        raise RunError(
            f"{path}: the task {run.task.name} gives no right and wrong answers to compare"
        )
    if not have_same_images(run, reference):
        raise RunError(f"{path}: was not tested on the same images as {reference.run.path}")


def check_same_task(runs: Sequence[EvaluatedRun]) -> None:
    """Raise RunError unless all runs were trained for the same task."""
    first = runs[0]
    for run in runs[1:]:
        if run.task.name != first.task.name:
            raise RunError(
                f"{run.run.path}: was trained for the task {run.task.name}, and {first.run.path} "
                f"for {first.task.name}; only runs of the same task are compared"
            )


def have_same_images(run: EvaluatedRun, reference: EvaluatedRun) -> bool:
    """Whether both runs were tested on the same images, in the same order.

    Images of different sizes count as the same where they come from the same data set.
    """
    images = run.images
    expected = reference.images
    if images.classes != expected.classes or not torch.equal(run.labels, reference.labels):
        return False
    have_same_storage = type(images.images) is type(expected.images)
    if have_same_storage and images.images.shape == expected.images.shape:
        return torch.equal(identities(images)["inputs"], identities(expected)["inputs"])
    return run.config.data.name == reference.config.data.name and images.name == expected.name
