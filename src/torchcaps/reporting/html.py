"""One run in, one self-contained HTML file out; several runs side by side in one."""

from collections.abc import Callable, Sequence
from pathlib import Path

from markupsafe import Markup

import torchcaps
from torchcaps.errors import ArgumentError, check_range
from torchcaps.reporting import (
    classes as classes,  # registers its sections
    sections,
    side_by_side,
)
from torchcaps.reporting.answers import check_same_task
from torchcaps.reporting.api import can_plot
from torchcaps.reporting.evaluated import MAX_IMAGES, NUM_DIAGNOSED, EvaluatedRun, evaluate_run
from torchcaps.reporting.markup import names, page
from torchcaps.reporting.prediction import path_of
from torchcaps.training import Run
from torchcaps.training.files import atomic, make_folder
from torchcaps.words import unique_suffixes


def report(
    run: Run | str | Path | Sequence[Run | str | Path],
    path: str | Path | None = None,
    *,
    root: str | None = None,
    device: str = "auto",
    images: int = MAX_IMAGES,
    diagnose: int = NUM_DIAGNOSED,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write what a finished run is and does as one HTML file that loads nothing from anywhere.

    Its figures are those of evaluation.json where there is one, else of all test images. Mistakes
    and pictures come from running the model over its test images once more; nothing is chosen by
    them.

    Args:
        run: a run, or its folder; or two or more of one task, which are set side by side: the first
            is the reference.
        path: the file; by default report.html, or comparison.html, in the (first) run folder.
        root: where a named data set is looked for first; by default as for the run.
        device: "auto", "cpu", "cuda", ...
        images: number of evenly spread test images for mistakes and pictures, at least 1; a task
            that tells no classes apart measures all of them.
        diagnose: number of random ones of these that routing is measured on, of one run; at least
            2, or 0 to leave the section out.
        progress: called with (images done, images in all).

    Returns:
        The file.

    Raises:
        RunError: for no run, one that is not finished or is damaged, or runs of different tasks.
        DataError: if the test images cannot be read.
        TrainingError: if the file cannot be written.
        ImportError: without matplotlib.
        ArgumentError: for `images` or `diagnose` out of range, or a run that is named twice.
    """
    if not can_plot():
        raise ImportError(
            "a report needs matplotlib for its pictures; "
            "install it with: pip install 'torchcaps[plots]'"
        )
    if diagnose:
        check_range("diagnose", diagnose, low=2)
    paths = [run] if isinstance(run, Run | str | Path) else list(run)
    check_range("number of runs", len(paths), low=1)
    folders = [path_of(one) for one in paths]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ArgumentError("run", "expected different run folders, got one of them twice")

    runs = [
        evaluate_run(
            one,
            root=root,
            device=device,
            max_images=images,
            num_diagnosed=diagnose,
            progress=progress,
        )
        for one in paths
    ]
    if len(runs) == 1:
        name = "report.html"
        title = f"Report on {folders[0].resolve().name}"
        lead = sections.lead(runs[0])
        parts = sections.sections_of(runs[0])
    else:
        name = "comparison.html"
        check_same_task(runs)
        keys = unique_suffixes(folders)
        title = f"Comparison of {len(runs)} runs"
        lead = Markup("{} runs side by side: {}.").format(len(runs), names(keys))
        parts = side_by_side.sections_of(dict(zip(keys, runs, strict=True)))
    content = page(title, lead, parts, _foot(runs))
    path = folders[0] / name if path is None else Path(path)
    make_folder(path.parent)
    with atomic(path) as partial:
        partial.write_text(content, encoding="utf-8")
    return path


def _foot(runs: Sequence[EvaluatedRun]) -> str:
    """The last line of a page, which says what activations are."""
    foot = f"Written by torchcaps {torchcaps.__version__}."
    kinds = set()
    for run in runs:
        if run.has_classes and run.task.spec.pose:
            kinds.add("lengths" if run.task.spec.activation == "length" else "numbers")
    if kinds:
        activations = " or ".join(sorted(kinds))
        foot += f" Activations of class capsules are {activations} in [0, 1], not probabilities."
    return foot
