"""Several runs side by side: the sections of their page."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from markupsafe import Markup

from torchcaps.evaluation import compare_answers
from torchcaps.models.notebook import parameter_count
from torchcaps.reporting.answers import have_same_images
from torchcaps.reporting.evaluated import EvaluatedRun
from torchcaps.reporting.markup import Block, Section, Table, name
from torchcaps.reporting.sections import score_rows
from torchcaps.templates import picture
from torchcaps.words import duration, format_metric, in_words, percent, setting

Runs = Mapping[str, EvaluatedRun]


def sections_of(runs: Runs) -> list[Section]:
    """All sections in their order; those on right answers only where all runs have classes."""
    if all(run.has_classes for run in runs.values()):
        return [figures(runs), difference(runs), curves(runs), classes(runs), settings(runs)]
    return [figures(runs), curves(runs), settings(runs)]


def figures(runs: Runs) -> Section:
    """Model, figures of the test images, size and time, a column for each run."""
    columns = [_describe_run(run) for run in runs.values()]
    rows = []
    for label in dict.fromkeys(chain.from_iterable(columns)):
        cells = [column.get(label, "–") for column in columns]
        rows.append((label, *cells))
    text = "Times are those of training steps alone, on the machine of each run."
    table = Table("Figures", ["Figure", *runs], rows, "figures")
    return Section("figures", "Side by side", [table, text])


def _describe_run(run: EvaluatedRun) -> dict[str, str]:
    """Figures of one run, by heading."""
    seconds = run.run.seconds
    return {
        "Model": run.config.model.name,
        **score_rows(run),
        "Test images": f"{run.figures['num_samples']:,}",
        "Parameters": f"{parameter_count(run.model):,}",
        "Loss in training": in_words(run.task.loss),
        "Epochs": str(len(run.epochs)),
        "Best epoch": str(run.run.best_epoch),
        "Seed": str(run.config.training.seed),
        "Training time": "–" if seconds is None else duration(seconds),
    }


def difference(runs: Runs) -> Section:
    """Whether one of the runs is better than the first, on the same test images."""
    (first, reference), *rivals = runs.items()
    rows = []
    verdicts: list[Block] = []
    for key, run in rivals:
        if have_same_images(run, reference):
            comparison = compare_answers(run.is_correct, reference.is_correct)
            low, high = comparison.interval
            row = (
                key,
                f"{100 * comparison.difference:+.2f}",
                f"{100 * low:+.2f} to {100 * high:+.2f}",
                f"{comparison.only_first:,}",
                f"{comparison.only_second:,}",
                f"{comparison.p_value:.2g}",
            )
            rows.append(row)
            verdict = comparison.verdict.replace("The first model", "This run")
            verdict = verdict.replace("The second model", "The reference")
        else:
            verdict = "not tested on the same images."
        verdicts.append(Markup("<strong>{}</strong>: {}").format(name(key), verdict))

    text = Markup(
        "Each run is compared with {}, the reference, image by image: only images that one gets "
        "right and the other wrong say which is better (McNemar's exact test). A difference that "
        "is not seen may still be there: the sentences say how large one must be to be seen, and "
        "only an equivalence test calls two models equally good. One run a model is one seed a "
        "model: a difference between two trainings is not yet one between two methods. "
        "<code>torchcaps compare</code> compares several runs of each."
    ).format(name(first))
    heads = ("Run", "Points", "95 % of resamples", "Right here alone", "Right there alone", "p")
    caption = f"Differences in accuracy to the reference, on {len(reference.images):,} test images"
    if rows:
        verdicts.insert(0, Table(caption, heads, rows, "figures"))
    return Section("difference", "Is one better?", [text, *verdicts])


def curves(runs: Runs) -> Section:
    """Validation loss and score of all runs in one picture."""
    from torchcaps import viz

    scores = {run.run.score for run in runs.values()}
    # Runs with classes of different sizes may differ in it; all of them have an accuracy.
    score = scores.pop() if len(scores) == 1 else "accuracy"
    epochs = {key: run.epochs for key, run in runs.items()}
    ends = [
        f"{key} ends at {format_metric(score, rows[-1][f'val_{score}'])}"
        for key, rows in epochs.items()
    ]
    alt = (
        f"Validation loss and {in_words(score)} over epochs, a line for each run: "
        f"{', '.join(ends)}."
    )
    text = "Lines of runs that were trained with different losses cannot be compared."
    drawn = picture(viz.overlaid_curves(epochs, score=score), alt)
    return Section("curves", "Training", [drawn, text])


def classes(runs: Runs) -> Section:
    """Accuracy of each class, a column for each run."""
    names = next(iter(runs.values())).images.classes
    block: Block
    if any(run.is_multilabel for run in runs.values()):
        block = "A comparison by class needs one class an image."
    elif any(run.images.classes != names for run in runs.values()):
        block = "The runs do not have the same classes."
    else:
        tables = [run.figures["per_class"] for run in runs.values()]
        rows = []
        for class_name, *class_rows in zip(names, *tables, strict=True):
            accuracies = [percent(row["accuracy"]) for row in class_rows]
            rows.append((class_name, *accuracies))
        block = Table("Accuracy by class", ["Class", *runs], rows, "figures")
    return Section("classes", "Class by class", [block])


def settings(runs: Runs) -> Section:
    """Settings and machines, where they differ."""
    configs = [run.config.flat() for run in runs.values()]
    environments = [run.run.environment for run in runs.values()]
    blocks = [
        _tabulate_differences("Settings that differ", ["Setting", *runs], configs),
        _tabulate_differences("Environments that differ", ["What", *runs], environments),
    ]
    return Section("settings", "What differs", blocks)


def _tabulate_differences(
    caption: str, heads: Sequence[str], columns: Sequence[Mapping[str, Any]]
) -> Block:
    """A row for each key that does not have the same setting in all columns."""
    rows = []
    for key in dict.fromkeys(chain.from_iterable(columns)):
        choices = [setting(column.get(key)) for column in columns]
        if len(set(choices)) > 1:
            rows.append((key, *choices))
    return Table(caption, heads, rows, "words") if rows else f"{caption}: none."
