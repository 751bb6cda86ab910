"""Two methods by their run folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from torchcaps.errors import RunError
from torchcaps.evaluation import Comparison, RunsComparison, compare_answers, compare_runs
from torchcaps.report.comparison import check_same_task, same_images
from torchcaps.report.finished import FinishedRun, open_finished

ALL_IMAGES = 2**62


def compare_folders(
    first: Sequence[str | Path],
    second: Sequence[str | Path],
    *,
    paired: bool = False,
    margin: float = 0.01,
    root: str | None = None,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> Comparison | RunsComparison:
    """Run the models of finished runs over all of their test images and compare the two methods.

    Args:
        first: run folders of the method in question, which differ in their seeds.
        second: the same of the baseline; one run of each is a comparison of two models, two or more of each
            one of two methods.
        paired: whether runs of the same seed belong together; see `compare_runs`.
        margin: the smallest difference in accuracy that matters, in (0, 1).
        root: where a named data set is looked for first; by default as for the run.
        device: where to compute; see `TrainConfig`.
        progress: called with (images done, images in all) for each run.

    Raises:
        RunError: for no run, one that is not finished or damaged, runs of different tasks or of one without right
            answers, runs that were not tested on the same images, two of one method with the same seed, or, if paired,
            other seeds for the second method.
        DataError: if the test images cannot be had.
        ValueError: as for `compare_runs`.
    """
    found = [
        _answers(runs, root=root, device=device, most_images=ALL_IMAGES, progress=progress) for runs in (first, second)
    ]
    (ours, base), (theirs, other) = found
    check_same_task([base, other])
    if not same_images(base, other):
        raise RunError(f"{other.path}: was not tested on the same images as {base.path}")
    if len(ours) == len(theirs) == 1:
        [one], [two] = ours.values(), theirs.values()
        return compare_answers(one, two, margin=margin)
    if paired and ours.keys() != theirs.keys():
        seeds, others = (", ".join(map(str, runs)) for runs in (ours, theirs))
        raise RunError(f"paired: expected runs of the same seeds of both methods, got {seeds} and {others}")
    one, two = (torch.stack(list(runs.values())) for runs in (ours, theirs))
    return compare_runs(one, two, paired=paired, margin=margin)


def _answers(runs: Sequence[str | Path], **how: Any) -> tuple[dict[int, Bool[Tensor, " n"]], FinishedRun]:
    """Which images each run of one method is right on, by the seeds in their order; and the first run."""
    opened = (open_finished(run, **how) for run in runs)
    base = next(opened)
    if not base.tells_classes:
        raise RunError(f"{base.path}: the task {base.task.name} gives no right and wrong answers to compare")
    right = {base.config.run.seed: base.right}
    for run in opened:  # one at a time: each holds its model and its images
        check_same_task([base, run])
        seed = run.config.run.seed
        if seed in right:
            raise RunError(f"{run.path}: expected another seed for each run of a method, got {seed} twice")
        if not same_images(base, run):
            raise RunError(f"{run.path}: was not tested on the same images as {base.path}")
        right[seed] = run.right
    return dict(sorted(right.items())), base
