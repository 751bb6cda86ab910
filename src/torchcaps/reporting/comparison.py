"""Several runs side by side: the sections of their page, and two methods by their run folders."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from torchcaps.errors import RunError
from torchcaps.evaluation import Comparison, RunsComparison, compare_answers, compare_runs
from torchcaps.reporting.epochs import best_epoch, score_of
from torchcaps.reporting.finished import FinishedRun, open_finished
from torchcaps.reporting.markup import Html, Section, join, name, paragraph, picture, table, text
from torchcaps.reporting.words import duration, figure, numbers, percent, setting

Runs = Mapping[str, FinishedRun]
ALL_IMAGES = 2**62


def check_same_task(runs: Sequence[FinishedRun]) -> None:
    """Raise RunError unless all of them were trained for the same task."""
    for run in runs[1:]:
        if run.task.name != runs[0].task.name:
            raise RunError(
                f"{run.path}: was trained for the task {run.task.name}, and {runs[0].path} for {runs[0].task.name}; "
                "only runs of the same task are compared"
            )


def sections_of(runs: Runs) -> list[Section]:
    """All of them, in their order; those on right answers only where classes are parts apart."""
    parts = all(run.tells_classes for run in runs.values())
    return [
        figures(runs),
        *([difference(runs)] if parts else []),
        curves(runs),
        *([classes(runs)] if parts else []),
        settings(runs),
    ]


def figures(runs: Runs) -> Section:
    """Model, figures of test images, size, time."""
    found = [_facts(run) for run in runs.values()]
    labels = dict.fromkeys(label for one in found for label in one)
    rows = [(label, *(name(one.get(label, "–")) for one in found)) for label in labels]
    about = "Times are those of training steps alone, on the machine of each run."
    if any(run.several for run in runs.values()):
        about = f"Accuracy is the share of images with all of their classes found. {about}"
    body = join(table("Figures", _heads("Figure", runs), rows, kind="figures"), paragraph(about))
    return Section("figures", "Side by side", body)


def _facts(run: FinishedRun) -> dict[str, str]:
    figures = run.figures
    own = {label: figure(label, value) for label, value in numbers(figures).items()}
    if run.tells_classes:
        own = {"Test accuracy": percent(run.accuracy), "Test error": percent(figures["error"])}
        if not run.several:
            own |= {"Margin loss": f"{figures['loss']:.4f}"}
            own |= {"Calibration error": percent(figures["calibration_error"])}
    return (
        {"Model": run.config.model.name}
        | own
        | {
            "Test images": f"{figures['num_samples']:,}",
            "Parameters": f"{run.parameters:,}",
            "Loss in training": run.task.loss.replace("_", " "),
            "Epochs": str(len(run.epochs)),
            "Best epoch": str(best_epoch(run.epochs)),
            "Seed": str(run.config.run.seed),
            "Training time": "–" if run.seconds is None else duration(run.seconds),
        }
    )


def difference(runs: Runs) -> Section:
    """Whether one of them is better, on the same test images."""
    (first, base), *others = runs.items()
    rows, verdicts = [], []
    for key, run in others:
        if not same_images(base, run):
            verdicts.append(
                paragraph(Html(f"<strong>{name(key)}</strong>: not tested on the same images."))
            )
            continue
        found = compare_answers(run.right, base.right)
        low, high = (f"{100 * bound:+.2f}" for bound in found.interval)
        rows.append(
            (
                name(key),
                f"{100 * found.difference:+.2f}",
                f"{low} to {high}",
                f"{found.only_first:,}",
                f"{found.only_second:,}",
                f"{found.p_value:.2g}",
            )
        )
        verdict = found.verdict.replace("The first model", "This run").replace(
            "The second model", "The reference"
        )
        verdicts.append(paragraph(Html(f"<strong>{name(key)}</strong>: {text(verdict)}")))
    about = Html(
        f"Each run beside {name(first)}, the reference, image by image: only images that one gets right and the other "
        "wrong say which is better (McNemar's exact test). A difference that is not seen may still be there: the "
        "sentences say how large one must be to be seen, and only an equivalence test calls two models equally good. "
        "One run a model is one seed a model: a difference between two trainings is not yet one between two methods. "
        "Several runs of each are compared by <code>torchcaps compare</code>."
    )
    heads = ("Run", "Points", "95 % of resamples", "Right here alone", "Right there alone", "p")
    counted = f"Differences in accuracy to the reference, on {len(base.images):,} test images"
    parts = [table(counted, heads, rows, kind="figures")] if rows else []
    return Section("difference", "Is one better?", join(paragraph(about), *parts, *verdicts))


def same_images(one: FinishedRun, other: FinishedRun) -> bool:
    """Whether both were tested on the same images in the same order; of other sizes, those of the same data set."""
    if one.images.classes != other.images.classes or not torch.equal(one.labels, other.labels):
        return False
    first, second = one.images.images.cpu(), other.images.images.cpu()
    if first.shape == second.shape:
        return torch.equal(first, second)
    return one.config.data.name == other.config.data.name and one.images.name == other.images.name


def curves(runs: Runs) -> Section:
    """Validation loss and score of all of them in one picture."""
    from torchcaps import viz

    score, losses = (
        score_of(next(iter(runs.values())).epochs),
        {run.task.loss for run in runs.values()},
    )
    drawn = viz.overlaid_curves({key: run.epochs for key, run in runs.items()}, score=score)
    lasts = {key: run.epochs[-1].get(f"val_{score}") for key, run in runs.items()}
    ends = ", ".join(
        f"{key} ends at {figure(score, last)}" for key, last in lasts.items() if last is not None
    )
    alt = f"Validation loss and {score.replace('_', ' ')} over epochs, a line for each run: {ends}."
    other = (
        ""
        if len(losses) == 1
        else "The runs were trained with different losses: these lines cannot be compared."
    )
    return Section(
        "curves", "Training", join(picture(drawn, alt), *([paragraph(other)] if other else []))
    )


def classes(runs: Runs) -> Section:
    """Accuracy of each class, a column for each run."""
    title, base = "Class by class", next(iter(runs.values()))
    if any(run.several for run in runs.values()):
        return Section(
            "classes", title, paragraph("A comparison by class needs one class an image.")
        )
    if any(run.classes != base.classes for run in runs.values()):
        return Section("classes", title, paragraph("The runs do not have the same classes."))
    rows = [
        (
            name(label),
            *(percent(run.figures["per_class"][index]["accuracy"]) for run in runs.values()),
        )
        for index, label in enumerate(base.classes)
    ]
    return Section(
        "classes", title, table("Accuracy by class", _heads("Class", runs), rows, kind="figures")
    )


def settings(runs: Runs) -> Section:
    """Settings and machines, where they differ."""
    own = _differing(
        "Settings that differ", "Setting", runs, [run.config.flat() for run in runs.values()]
    )
    machines = _differing(
        "Environments that differ", "What", runs, [run.environment for run in runs.values()]
    )
    return Section("settings", "What differs", join(own, machines))


def _differing(caption: str, first: str, runs: Runs, values: Sequence[Mapping[str, Any]]) -> Html:
    keys = dict.fromkeys(key for one in values for key in one)
    rows = [(key, [setting(one.get(key)) for one in values]) for key in keys]
    cells = [(key, *map(name, found)) for key, found in rows if len(set(found)) > 1]
    return (
        table(caption, _heads(first, runs), cells, kind="words")
        if cells
        else paragraph(f"{caption}: none.")
    )


def _heads(first: str, runs: Runs) -> list[str]:
    return [first, *map(name, runs)]


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
    """Run the models of finished runs over all of their test images and compare the two methods, each by its run
    folders.

    The runs of a method differ in their seeds; one run of each is a comparison of two models, two or more of each one
    of two methods. `paired`: whether runs of the same seed belong together; for it and the margin see `compare_runs`,
    for the others `write_report`. Raises RunError for no run, one that is not finished or damaged, runs of different
    tasks or of one without right answers, runs that were not tested on the same images, two of one method with the same
    seed, or, if paired, other seeds for the second method; DataError if the test images cannot be had; ValueError as
    for `compare_runs`."""
    base: FinishedRun | None = None
    right: list[dict[int, Bool[Tensor, " n"]]] = []  # of each method, by seed
    for folders in (first, second):
        right.append({})
        for folder in folders:  # one at a time: each holds its model and its images
            run = open_finished(
                folder, root=root, device=device, most_images=ALL_IMAGES, progress=progress
            )
            base = base or run
            check_same_task([base, run])
            if not run.tells_classes:
                raise RunError(
                    f"{run.path}: the task {run.task.name} gives no right and wrong answers to compare"
                )
            seed = run.config.run.seed
            if seed in right[-1]:
                raise RunError(
                    f"{run.path}: expected another seed for each run of a method, got {seed} twice"
                )
            if not same_images(base, run):
                raise RunError(f"{run.path}: was not tested on the same images as {base.path}")
            right[-1][seed] = run.right
    ours, theirs = (dict(sorted(found.items())) for found in right)
    if len(ours) == len(theirs) == 1:
        [one], [two] = ours.values(), theirs.values()
        return compare_answers(one, two, margin=margin)
    if paired and ours.keys() != theirs.keys():
        seeds, others = (", ".join(map(str, runs)) for runs in (ours, theirs))
        raise RunError(
            f"paired: expected runs of the same seeds of both methods, got {seeds} and {others}"
        )
    one, two = (torch.stack(list(runs.values())) for runs in (ours, theirs))
    return compare_runs(one, two, paired=paired, margin=margin)
