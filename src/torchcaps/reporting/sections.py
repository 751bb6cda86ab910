"""The sections of the report on one run: those that every task has, and the registry of the others."""

from collections.abc import Callable
from math import sqrt
from typing import TypeVar

from torchcaps.models._registry import model_info
from torchcaps.registry import Registry
from torchcaps.reporting.epochs import best_epoch, score_of
from torchcaps.reporting.finished import FinishedRun
from torchcaps.reporting.markup import Html, Section, join, name, paragraph, picture, table, text
from torchcaps.reporting.run import training_figure
from torchcaps.reporting.words import counted, duration, figure, in_words, percent, setting
from torchcaps.tasks import ReportItem, create_task
from torchcaps.training import TrainConfig

Writer = Callable[[FinishedRun], ReportItem | Section | None]
W = TypeVar("W", bound=Writer)
SECTIONS: Registry[tuple[tuple[str, ...], Writer]] = Registry("section")
ACTIVATIONS = {
    "length": "lengths of capsules",
    "probability": "probabilities",
    "logit": "any numbers",
    "none": "numbers without a meaning",
}


def register_section(*tasks: str) -> Callable[[W], W]:
    """Decorator: what this function writes becomes a section of reports on these tasks (none: all), after their
    report items. The function is given a `FinishedRun` and returns a `ReportItem` (text, a figure, a
    table), or None for no section. Raises ValueError if another one has the name of the function."""

    def register(writer: W) -> W:
        SECTIONS.add(writer.__name__, (tasks, writer))
        return writer

    return register


def sections_of(run: FinishedRun) -> list[Section]:
    """All of them, in their order."""
    own = [
        writer(run) for tasks, writer in SECTIONS.values() if not tasks or run.task.name in tasks
    ]
    parts = [
        summary(run),
        curves(run),
        *run.task.report_items(run.found, run.images),
        *own,
        configuration(run),
    ]
    return [
        exhibited(part) if isinstance(part, ReportItem) else part
        for part in parts
        if part is not None
    ]


def exhibited(shown: ReportItem) -> Section:
    """An exhibit of a task as a section."""
    parts = [paragraph(shown.about)] if shown.about else []
    if shown.figure is not None:
        parts.append(picture(shown.figure, shown.alt or shown.title))
    if shown.heads:
        parts.append(
            table(
                shown.title,
                shown.heads,
                [tuple(map(name, row)) for row in shown.rows],
                kind="figures",
            )
        )
    return Section(shown.key, shown.title, join(*parts))


def lead(run: FinishedRun) -> Html:
    """Two sentences that say it all."""
    took = "" if run.seconds is None else f" in about {duration(run.seconds)} of training"
    ended = counted(len(run.epochs), "epoch")
    what = "have all their classes found" if run.several else "are right"
    result = (
        f"Measured: {text(run.measured.summary)}."
        if run.accuracy is None
        else f"<strong>{percent(run.accuracy)}</strong> of {run.figures['num_samples']:,} test images {what}."
    )
    model = text(run.config.model.name)
    return paragraph(Html(f"{model} on {name(run.images.name)}: {text(ended + took)}. {result}"))


def summary(run: FinishedRun) -> Section:
    """What was trained, on what, how long, and what came out."""
    passport = model_info(run.config.model.name)
    options = ", ".join(
        f"{key} = {setting(value)}" for key, value in run.config.model.options.items()
    )
    rows = {
        "Model": f"{run.config.model.name} ({passport.title}, {passport.year})",
        "Its options": options or "none, so its defaults",
        "Its outputs": _outputs(run),
        "Parameters": f"{run.parameters:,}",
        "Task": f"{run.task.name}, trained with the {in_words(run.task.loss)} loss",
        "Data": name(run.config.data.name),
        "Images": run.images.size_in_words,
        "Classes": _classes(run) if run.task.labeled else "labels had no part in it",
        "Training": _training(run),
        "Time": _time(run),
        "Model kept": _kept(run),
    } | _results(run)
    parts = [table("The run", ("What", "Value"), [*rows.items()], kind="words")]
    if not run.tells_classes:
        heads, *cells = run.measured.table()
        parts.append(
            table(f"Figures on {len(run.images):,} test images", heads, cells, kind="figures")
        )
    return Section("summary", "Summary", join(*parts, *map(paragraph, _notes(run))))


def curves(run: FinishedRun) -> Section:
    """Loss and score over epochs."""
    key, loss = f"val_{score_of(run.epochs)}", run.task.loss
    ends = [figure(key, row[key]) for row in (run.epochs[0], run.epochs[-1]) if key in row]
    alt = f"Curves of loss and score over {len(run.epochs)} epochs."
    if ends:
        score = f"Validation {in_words(key.removeprefix('val_'))}"
        alt = f"{alt} {score} goes from {ends[0]} after the first to {ends[-1]} after the last."
    rises = ", whose margin rises during training" if loss == "spread" else ""
    about = (
        "Training figures are means over an epoch while the weights still change, with random changes of the images "
        f"where the run has them; validation figures are measured after it. The loss is the {in_words(loss)} "
        f"loss{rises}; other parts of the training loss are left out."
    )
    if "score" not in run.epochs[-1] and loss != "margin" and ends:
        about += " In runs of early versions the validation loss is the margin loss: the lines cannot be compared."
    warnings = [
        f"Epoch {row['epoch']}: {warning}"
        for row in run.epochs
        for warning in row.get("warnings", ())
    ]
    parts = map(paragraph, (*run.notes, *warnings))
    drawn = picture(training_figure(run.epochs, loss), alt)
    return Section("curves", "Training", join(paragraph(about), drawn, *parts))


def configuration(run: FinishedRun) -> Section:
    """All settings, those that are not the default in bold, and the machine."""
    default = create_task(run.task.model, TrainConfig())
    usual = default.config.updated(clip=default.clip).flat()
    rows: list[tuple[str, str]] = []
    for key, value in run.config.flat().items():
        shown = text(setting(value))
        rows.append(
            (key, shown if value in (usual[key], None) else Html(f"<strong>{shown}</strong>"))
        )
    machine = [(key, setting(value)) for key, value in run.environment.items()]
    parts = table(
        "What the run was started with", ("What", "Version or kind"), machine, kind="words"
    )
    body = join(
        table(
            "Settings; bold where they are not the default",
            ("Setting", "Value"),
            rows,
            kind="words",
        ),
        Html("<h3>Environment</h3>"),
        parts if machine else paragraph("The environment was not recorded."),
    )
    return Section("configuration", "Configuration and environment", body)


def _outputs(run: FinishedRun) -> str:
    """What the model declares, which says why a section is not there."""
    spec = run.task.spec
    capsules = "capsules with poses" if spec.pose else "no capsules"
    drawn = "a decoder draws images" if spec.decoder else "no decoder, so nothing is drawn"
    return f"{ACTIVATIONS[spec.activation]}; {capsules}; {drawn}"


def _classes(run: FinishedRun) -> Html:
    shown = ", ".join(name(label) for label in run.classes[:10])
    return Html(f"{len(run.classes)}: {shown}{', …' if len(run.classes) > 10 else ''}")


def _training(run: FinishedRun) -> str:
    config, planned = run.config, run.config.run.epochs
    epochs = counted(len(run.epochs), "epoch") + (
        "" if len(run.epochs) == planned else f" of at most {planned}"
    )
    count = run.epochs[-1].get("images")
    images = "" if count is None else f" of {int(count):,} images"
    rate = f"learning rate {config.optimizer.lr:g} ({config.schedule.name})"
    return f"{epochs}{images}, batches of {config.run.batch_size}, {rate}, seed {config.run.seed}"


def _time(run: FinishedRun) -> str:
    if run.seconds is None:
        return "not recorded"
    where = (
        run.environment.get("gpu") or run.environment.get("processor") or "an unrecorded machine"
    )
    threads = run.environment.get("threads")
    kind = (
        f"{where}, {counted(threads, 'thread')}"
        if threads and not run.environment.get("gpu")
        else str(where)
    )
    return f"about {duration(run.seconds)} of training steps, without validation, on {kind}"


def _kept(run: FinishedRun) -> str:
    chosen = any(row.get("best") for row in run.epochs)
    why = "chosen by validation; test images had no part in it" if chosen else "the last"
    return f"that of epoch {best_epoch(run.epochs)}, {why}"


def _results(run: FinishedRun) -> dict[str, str]:
    found, n = run.figures, run.figures["num_samples"]
    if not run.tells_classes:
        return {}
    if run.several:
        return {
            "All classes found": f"{percent(found['exact'])} of {n:,} test images "
            f"(error {percent(found['error'])}, standard error {percent(found['standard_error'])})",
            "At least one found": percent(found["almost"]),
            "Single classes found": percent(found["per_digit"]),
        }
    spread = percent(sqrt(found["error"] * found["accuracy"] / n))
    return {
        "Test accuracy": f"{percent(found['accuracy'])} of {n:,} images",
        "Test error": f"{percent(found['error'])}, {round(found['error'] * n):,} images (standard error {spread})",
        "Margin loss": f"{found['loss']:.4f}, of the activations of test images, whatever the training loss is",
    }


def _notes(run: FinishedRun) -> list[str]:
    if len(run.images) < run.total:
        few = f"{len(run.images):,} evenly spread of {run.total:,} test images"
        return [f"Mistakes and pictures are those of {few}."]
    if run.recorded and run.accuracy is not None:
        again = float(run.right.double().mean())
        if round(again * run.total) != round(run.accuracy * run.figures["num_samples"]):
            return [
                f"The figures are those of evaluation.json. Measured again for this report, {percent(again)} are right."
            ]
    return []
