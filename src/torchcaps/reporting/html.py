"""One run in, one self-contained HTML file out; several runs side by side in one.

What a page says stands in its template, `report.html` or `comparison.html`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

import torchcaps
from torchcaps import words
from torchcaps.errors import ArgumentError, check_range, counted
from torchcaps.evaluation import Calibration, Evaluation, Reliability, compare_answers
from torchcaps.evaluation.base import EvaluationResult
from torchcaps.models._registry import model_info
from torchcaps.models.notebook import parameter_count
from torchcaps.reporting.answers import check_same_task, have_same_images
from torchcaps.reporting.api import can_plot
from torchcaps.reporting.evaluated import MAX_IMAGES, NUM_DIAGNOSED, EvaluatedRun, evaluate_run
from torchcaps.reporting.sections import SECTIONS
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.templates import picture, render
from torchcaps.training import Run
from torchcaps.training.files import atomic, make_folder


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
    folders = [Path(one) for one in paths]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ArgumentError("run", "expected different run folders, got one of them twice")

    runs = {}
    for name, one in zip(words.unique_suffixes(folders), paths, strict=True):
        runs[name] = evaluate_run(
            one,
            root=root,
            device=device,
            max_images=images,
            num_diagnosed=diagnose,
            progress=progress,
        )
    content = render_runs(runs)
    if path is None:
        path = folders[0] / ("report.html" if len(runs) == 1 else "comparison.html")
    make_folder(Path(path).parent)
    with atomic(Path(path)) as partial:
        partial.write_text(content, encoding="utf-8")
    return Path(path)


def render_runs(runs: Mapping[str, EvaluatedRun]) -> str:
    """The report on one run, or the comparison of several, by their names, as HTML.

    Raises RunError for runs of different tasks.
    """
    check_same_task(list(runs.values()))
    if len(runs) == 1:
        [(name, run)] = runs.items()
        template = "report.html"
        values = {"name": name, **_describe_one(run)}
    else:
        template = "comparison.html"
        values = _compare(runs)
    kinds = set()
    for run in runs.values():
        if run.has_classes and run.task.spec.pose:
            kinds.add("lengths" if run.task.spec.activation == "length" else "numbers")
    return render(
        "torchcaps.reporting",
        template,
        words=words,
        plural=counted,
        picture=picture,
        parameter_count=parameter_count,
        version=torchcaps.__version__,
        kinds=sorted(kinds),
        **values,
    )


def _describe_one(run: EvaluatedRun) -> dict[str, Any]:
    """What the report on a run needs."""
    parts: list[Any] = run.task.report_items(_recorded_evaluation(run), run.images)
    for tasks, write in SECTIONS.values():
        part = write(run) if not tasks or run.task.name in tasks else None
        if part is not None:
            parts.append(part)
    # A configuration without choices: the task of this model fills it with its own defaults.
    # `clip`, the largest norm of the gradient, stays "auto" in it; only a training replaces that
    # by the limit of the task.
    defaults = create_task(run.model, TrainConfig()).config.flat()
    return {
        "run": run,
        "parts": parts,
        "headings": [(part.key, part.title) for part in parts],
        "defaults": defaults,
        "paper": model_info(run.config.model.name),  # its title and year
        "environment": run.run.environment,
    }


def _recorded_evaluation(run: EvaluatedRun) -> EvaluationResult:
    """The evaluation of a classifier with the figures recorded for all test images.

    Its labels and activations stay those of the images that the model was run over. Without such
    figures, or for another task, it is the evaluation itself.
    """
    recorded = run.recorded
    if recorded is None or not isinstance(run.evaluation, Evaluation):
        return run.evaluation
    tables = {key: Reliability(**table) for key, table in recorded["calibration"].items()}
    fields = ("accuracy", "error", "loss", "num_samples", "per_class")
    return replace(
        run.evaluation,
        confusion=torch.tensor(recorded["confusion_matrix"]),
        calibration=Calibration(**tables),
        **{key: recorded[key] for key in fields},
    )


def _compare(runs: Mapping[str, EvaluatedRun]) -> dict[str, Any]:
    """What the comparison of runs needs."""
    from torchcaps import viz

    (_, reference), *rivals = runs.items()
    comparisons = None
    if all(run.has_classes for run in runs.values()):
        comparisons = {}
        for name, run in rivals:
            is_comparable = have_same_images(run, reference)
            answers = (run.is_correct, reference.is_correct)
            comparisons[name] = compare_answers(*answers) if is_comparable else None
    scores = {run.run.score for run in runs.values()}
    # Runs with classes of different sizes may differ in it; all of them have an accuracy.
    score = scores.pop() if len(scores) == 1 else "accuracy"
    epochs = {name: run.epochs for name, run in runs.items()}
    return {
        "runs": runs,
        "comparisons": comparisons,
        "have_same_classes": len({run.images.classes for run in runs.values()}) == 1,
        "score": score,
        "overlaid": viz.overlaid_curves(epochs, score=score),
        "differences": {
            "Setting": _differing([run.config.flat() for run in runs.values()]),
            "Environment": _differing([run.run.environment for run in runs.values()]),
        },
    }


def _differing(columns: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A row for each key that does not have the same setting in all columns."""
    rows = []
    for key in dict.fromkeys(chain.from_iterable(columns)):
        choices = [words.setting(column.get(key)) for column in columns]
        if len(set(choices)) > 1:
            rows.append((key, *choices))
    return rows
