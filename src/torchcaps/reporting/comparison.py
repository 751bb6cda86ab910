"""Several runs side by side: the sections of their page, and two methods by their run folders."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from markupsafe import Markup
from torch import Tensor

from torchcaps.errors import RunError
from torchcaps.evaluation import Comparison, RunsComparison, compare_answers, compare_runs
from torchcaps.reporting.epochs import best_epoch, score_of
from torchcaps.reporting.finished import FinishedRun, open_finished
from torchcaps.reporting.markup import Block, Section, Table, name, picture
from torchcaps.reporting.words import duration, figure, in_words, numbers, percent, setting

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
    """All sections, in their order; those on right answers only where classes are told apart."""
    if all(run.tells_classes for run in runs.values()):
        return [figures(runs), difference(runs), curves(runs), classes(runs), settings(runs)]
    return [figures(runs), curves(runs), settings(runs)]


def figures(runs: Runs) -> Section:
    """Model, figures of test images, size, time."""
    columns = [_facts(run) for run in runs.values()]
    labels = dict.fromkeys(label for column in columns for label in column)
    rows = [(label, *(column.get(label, "–") for column in columns)) for label in labels]
    about = "Times are those of training steps alone, on the machine of each run."
    if any(run.several for run in runs.values()):
        about = f"Accuracy is the share of images with all of their classes found. {about}"
    table = Table("Figures", ["Figure", *runs], rows, "figures")
    return Section("figures", "Side by side", [table, about])


def _facts(run: FinishedRun) -> dict[str, str]:
    measured = run.figures
    if run.tells_classes:
        scores = {"Test accuracy": percent(run.accuracy), "Test error": percent(measured["error"])}
        if not run.several:
            scores["Margin loss"] = f"{measured['loss']:.4f}"
            scores["Calibration error"] = percent(measured["calibration_error"])
    else:
        scores = {label: figure(label, value) for label, value in numbers(measured).items()}
    return {
        "Model": run.config.model.name,
        **scores,
        "Test images": f"{measured['num_samples']:,}",
        "Parameters": f"{run.parameters:,}",
        "Loss in training": in_words(run.task.loss),
        "Epochs": str(len(run.epochs)),
        "Best epoch": str(best_epoch(run.epochs)),
        "Seed": str(run.config.training.seed),
        "Training time": "–" if run.seconds is None else duration(run.seconds),
    }


def difference(runs: Runs) -> Section:
    """Whether one of them is better, on the same test images."""
    (first, base), *others = runs.items()
    rows = []
    verdicts: list[Block] = []
    for key, run in others:
        heading = Markup("<strong>{}</strong>: {}")
        if not same_images(base, run):
            verdicts.append(heading.format(name(key), "not tested on the same images."))
            continue
        comparison = compare_answers(run.right, base.right)
        low, high = (f"{100 * bound:+.2f}" for bound in comparison.interval)
        rows.append(
            (
                key,
                f"{100 * comparison.difference:+.2f}",
                f"{low} to {high}",
                f"{comparison.only_first:,}",
                f"{comparison.only_second:,}",
                f"{comparison.p_value:.2g}",
            )
        )
        verdict = comparison.verdict.replace("The first model", "This run")
        verdict = verdict.replace("The second model", "The reference")
        verdicts.append(heading.format(name(key), verdict))
    about = Markup(
        "Each run beside {}, the reference, image by image: only images that one gets right and the other "
        "wrong say which is better (McNemar's exact test). A difference that is not seen may still be there: the "
        "sentences say how large one must be to be seen, and only an equivalence test calls two models equally good. "
        "One run a model is one seed a model: a difference between two trainings is not yet one between two methods. "
        "Several runs of each are compared by <code>torchcaps compare</code>."
    ).format(name(first))
    heads = ("Run", "Points", "95 % of resamples", "Right here alone", "Right there alone", "p")
    caption = f"Differences in accuracy to the reference, on {len(base.images):,} test images"
    tables = [Table(caption, heads, rows, "figures")] if rows else []
    return Section("difference", "Is one better?", [about, *tables, *verdicts])


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

    score = score_of(next(iter(runs.values())).epochs)
    drawing = viz.overlaid_curves({key: run.epochs for key, run in runs.items()}, score=score)
    ends = ", ".join(
        f"{key} ends at {figure(score, run.epochs[-1][f'val_{score}'])}"
        for key, run in runs.items()
    )
    alt = f"Validation loss and {in_words(score)} over epochs, a line for each run: {ends}."
    blocks: list[Block] = [picture(drawing, alt)]
    if len({run.task.loss for run in runs.values()}) > 1:
        blocks.append(
            "The runs were trained with different losses: these lines cannot be compared."
        )
    return Section("curves", "Training", blocks)


def classes(runs: Runs) -> Section:
    """Accuracy of each class, a column for each run."""
    title = "Class by class"
    names = next(iter(runs.values())).classes
    if any(run.several for run in runs.values()):
        return Section("classes", title, ["A comparison by class needs one class an image."])
    if any(run.classes != names for run in runs.values()):
        return Section("classes", title, ["The runs do not have the same classes."])
    columns = [run.figures["per_class"] for run in runs.values()]
    rows = [
        (label, *(percent(column[index]["accuracy"]) for column in columns))
        for index, label in enumerate(names)
    ]
    table = Table("Accuracy by class", ["Class", *runs], rows, "figures")
    return Section("classes", title, [table])


def settings(runs: Runs) -> Section:
    """Settings and machines, where they differ."""
    configs = [run.config.flat() for run in runs.values()]
    environments = [run.environment for run in runs.values()]
    blocks = [
        _differing("Settings that differ", ["Setting", *runs], configs),
        _differing("Environments that differ", ["What", *runs], environments),
    ]
    return Section("settings", "What differs", blocks)


def _differing(caption: str, heads: Sequence[str], columns: Sequence[Mapping[str, Any]]) -> Block:
    """A row for each key whose values are not all the same."""
    rows = []
    for key in dict.fromkeys(key for column in columns for key in column):
        values = [setting(column.get(key)) for column in columns]
        if len(set(values)) > 1:
            rows.append((key, *values))
    return Table(caption, heads, rows, "words") if rows else f"{caption}: none."


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
            seed = run.config.training.seed
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
