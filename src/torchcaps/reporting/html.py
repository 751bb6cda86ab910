"""A run in, one self-contained HTML file out; several runs side by side in one."""

from collections.abc import Callable, Sequence
from pathlib import Path

from markupsafe import Markup

import torchcaps
from torchcaps.errors import ArgumentError, check_range
from torchcaps.reporting import classes as classes  # registers its sections
from torchcaps.reporting import comparison
from torchcaps.reporting.finished import FinishedRun, open_finished
from torchcaps.reporting.markup import names, page
from torchcaps.reporting.run import can_plot
from torchcaps.reporting.sections import lead as lead_of
from torchcaps.reporting.sections import sections_of
from torchcaps.reporting.words import unique_suffixes
from torchcaps.training.files import atomic, make_folder

REPORT, COMPARISON = "report.html", "comparison.html"
MOST_IMAGES, DIAGNOSED = 10_000, 64
Progress = Callable[[int, int], None]


def write_report(
    run: str | Path,
    *,
    output: str | Path | None = None,
    root: str | None = None,
    device: str = "auto",
    images: int = MOST_IMAGES,
    diagnose: int = DIAGNOSED,
    progress: Progress | None = None,
) -> Path:
    """Write what a finished run is and does as one HTML file that needs nothing else, not even a network; the file.

    Its figures are those of evaluation.json where there is one, else of all test images. Mistakes and pictures come
    from running the model over its test images once more; nothing is chosen by them. Raises RunError for no run, one
    that is not finished, or one whose files are damaged; DataError if the test images cannot be had; TrainingError if
    the file cannot be written; ImportError without matplotlib; ValueError for `images` below 1, or `diagnose` of 1 or
    below 0.

    Args:
        output: the file; by default report.html in the run folder.
        root: where a named data set is looked for first; by default as for the run.
        images: of more test images, so many evenly spread ones are looked at; a task that tells no classes apart
            measures all of them.
        diagnose: of these, so many random ones are looked at by `evaluation.diagnose`; 0 leaves its section out.
        progress: called with (images done, images in all).
    """
    _check_plots()
    if diagnose:
        check_range("diagnose", diagnose, low=2)
    found = open_finished(
        run, root=root, device=device, most_images=images, diagnosed=diagnose, progress=progress
    )
    content = page(
        f"Report on {found.path.resolve().name}", lead_of(found), sections_of(found), _foot([found])
    )
    return _write(content, found.path / REPORT if output is None else Path(output))


def write_comparison(
    runs: Sequence[str | Path],
    *,
    output: str | Path | None = None,
    root: str | None = None,
    device: str = "auto",
    images: int = MOST_IMAGES,
    progress: Progress | None = None,
) -> Path:
    """Write several finished runs of one task side by side as one HTML file, by default comparison.html in the first
    run folder; the first run is the reference of the others. Arguments are those of `write_report`. Raises ValueError
    for fewer than two runs, or one that is named twice; RunError for runs of different tasks. Otherwise as
    `write_report`."""
    _check_plots()
    check_range("number of runs", len(runs), low=2)
    paths = [Path(run).resolve() for run in runs]
    for run, path in zip(runs, paths, strict=True):
        if paths.count(path) > 1:
            raise ArgumentError("runs", f"expected different run folders, got {run} twice")
    found = [
        open_finished(run, root=root, device=device, most_images=images, progress=progress)
        for run in runs
    ]
    comparison.check_same_task(found)
    named = dict(zip(unique_suffixes([run.path for run in found]), found, strict=True))
    lead = Markup("{} runs side by side: {}.").format(len(found), names([*named]))
    content = page(
        f"Comparison of {len(found)} runs", lead, comparison.sections_of(named), _foot(found)
    )
    return _write(content, found[0].path / COMPARISON if output is None else Path(output))


def _check_plots() -> None:
    if not can_plot():
        raise ImportError(
            "a report needs matplotlib for its pictures; install it with: pip install 'torchcaps[plots]'"
        )


def _foot(runs: Sequence[FinishedRun]) -> str:
    written = f"Written by torchcaps {torchcaps.__version__}."
    specs = [run.task.spec for run in runs if run.tells_classes]
    kinds = sorted(
        {"lengths" if spec.activation == "length" else "numbers" for spec in specs if spec.pose}
    )
    note = f" Activations of class capsules are {' or '.join(kinds)} in [0, 1], not probabilities."
    return written + note if kinds else written


def _write(content: str, path: Path) -> Path:
    make_folder(path.parent)
    with atomic(path) as partial:
        # A file name may hold bytes that are no text.
        partial.write_bytes(content.encode("utf-8", errors="replace"))
    return path
