"""The sections of the report on one run: those that every task has, and the registry of the others."""

from collections.abc import Callable
from math import sqrt
from typing import TypeVar

from markupsafe import Markup

from torchcaps.models._registry import model_info
from torchcaps.registry import Registry
from torchcaps.reporting.evaluated import EvaluatedRun
from torchcaps.reporting.markup import Block, Section, Table, name, names
from torchcaps.tasks import ReportItem, create_task
from torchcaps.templates import picture
from torchcaps.training import TrainConfig
from torchcaps.words import counted, duration, format_metric, in_words, percent, setting

Writer = Callable[[EvaluatedRun], ReportItem | Section | None]
W = TypeVar("W", bound=Writer)
SECTIONS: Registry[tuple[tuple[str, ...], Writer]] = Registry("section")
MAX_NAMES = 10  # of classes, in the summary
ACTIVATIONS = {
    "length": "lengths of capsules",
    "probability": "probabilities",
    "logit": "any numbers",
    "none": "numbers without a meaning",
}


def register_section(*tasks: str) -> Callable[[W], W]:
    """Decorator: what this function writes becomes a section of reports on these tasks (none: all), after their
    report items. The function is given a `EvaluatedRun` and returns a `ReportItem` (text, a format_metric, a
    table), or None for no section. Raises ValueError if another one has the name of the function."""

    def register(writer: W) -> W:
        SECTIONS.add(writer.__name__, (tasks, writer))
        return writer

    return register


def sections_of(run: EvaluatedRun) -> list[Section]:
    """All sections of a run's report, in their order."""
    registered = [
        writer(run) for tasks, writer in SECTIONS.values() if not tasks or run.task.name in tasks
    ]
    parts = [
        summary(run),
        curves(run),
        *run.task.report_items(run.whole_evaluation, run.images),
        *registered,
        configuration(run),
    ]
    return [as_section(part) for part in parts if part is not None]


def as_section(part: ReportItem | Section) -> Section:
    """A report item of a task as a section."""
    if isinstance(part, Section):
        return part
    blocks: list[Block] = [part.about] if part.about else []
    if part.figure is not None:
        blocks.append(picture(part.figure, part.alt or part.title))
    if part.heads:
        blocks.append(Table(part.title, part.heads, part.rows, "figures"))
    return Section(part.key, part.title, blocks)


def lead(run: EvaluatedRun) -> Markup:
    """Two sentences: what was trained, and what came out."""
    epochs = counted(len(run.epochs), "epoch")
    if run.run.seconds is not None:
        epochs = f"{epochs} in about {duration(run.run.seconds)} of training"
    if run.accuracy is None:
        outcome = Markup("Measured: {}.").format(run.evaluation.summary)
    else:
        outcome = Markup("<strong>{}</strong> of {:,} test images {}.").format(
            percent(run.accuracy),
            run.figures["num_samples"],
            "have all their classes found" if run.is_multilabel else "are right",
        )
    return Markup("{} on {}: {}. {}").format(
        run.config.model.name, name(run.images.name), epochs, outcome
    )


def summary(run: EvaluatedRun) -> Section:
    """What was trained, on what, how long, and what came out."""
    info = model_info(run.config.model.name)
    options = ", ".join(
        f"{key} = {setting(value)}" for key, value in run.config.model.options.items()
    )
    rows = {
        "Model": f"{run.config.model.name} ({info.title}, {info.year})",
        "Its options": options or "none, so its defaults",
        "Its outputs": _outputs(run),
        "Parameters": f"{run.parameters:,}",
        "Task": f"{run.task.name}, trained with the {in_words(run.task.loss)} loss",
        "Data": run.config.data.name,
        "Images": run.images.size_in_words,
        "Classes": _classes(run) if run.task.labeled else "labels had no part in it",
        "Training": _training(run),
        "Time": _time(run),
        "Model kept": _kept(run),
        **_results(run),
    }
    blocks: list[Block] = [Table("The run", ("What", "Value"), [*rows.items()], "words")]
    if not run.has_classes:
        caption = f"Figures on {len(run.images):,} test images"
        blocks.append(Table(caption, *run.evaluation.table(), "figures"))
    return Section("summary", "Summary", [*blocks, *_notes(run)])


def curves(run: EvaluatedRun) -> Section:
    """Loss and score over epochs."""
    score, loss = run.run.score, in_words(run.task.loss)
    first, last = (row[f"val_{score}"] for row in (run.epochs[0], run.epochs[-1]))
    alt = (
        f"Curves of loss and score over {len(run.epochs)} epochs. Validation {in_words(score)} goes "
        f"from {format_metric(score, first)} after the first to {format_metric(score, last)} after the last."
    )
    rises = ", whose margin rises during training" if loss == "spread" else ""
    about = (
        "Training figures are means over an epoch while the weights still change, with random "
        "changes of the images where the run has them; validation figures are measured after it. "
        f"The loss is the {loss} loss{rises}; other parts of the training loss are left out."
    )
    warnings = [
        f"Epoch {row['epoch']}: {warning}"
        for row in run.epochs
        for warning in row.get("warnings", ())
    ]
    drawing = picture(run.run.curves(), alt)
    return Section("curves", "Training", [about, drawing, *run.run.notes, *warnings])


def configuration(run: EvaluatedRun) -> Section:
    """All settings, those that are not the default in bold, and the machine."""
    task = create_task(run.task.model, TrainConfig())
    defaults = task.config.updated(clip=task.clip).flat()
    rows = []
    for key, value in run.config.flat().items():
        is_default = value is None or value == defaults[key]
        style = Markup("{}" if is_default else "<strong>{}</strong>")
        rows.append((key, style.format(setting(value))))
    settings = Table(
        "Settings; bold where they are not the default", ("Setting", "Value"), rows, "words"
    )
    machine = [(key, setting(value)) for key, value in run.run.environment.items()]
    environment: Block = "The environment was not recorded."
    if machine:
        caption = "Environment: what the run was started with"
        environment = Table(caption, ("What", "Version or kind"), machine, "words")
    return Section("configuration", "Configuration and environment", [settings, environment])


def _outputs(run: EvaluatedRun) -> str:
    """What the model declares, which says why a section is not there."""
    spec = run.task.spec
    capsules = "capsules with poses" if spec.pose else "no capsules"
    drawn = "a decoder draws images" if spec.decoder else "no decoder, so nothing is drawn"
    return f"{ACTIVATIONS[spec.activation]}; {capsules}; {drawn}"


def _classes(run: EvaluatedRun) -> Markup:
    more = ", …" if len(run.classes) > MAX_NAMES else ""
    return Markup("{}: {}{}").format(len(run.classes), names(run.classes[:MAX_NAMES]), more)


def _training(run: EvaluatedRun) -> str:
    config = run.config
    epochs = counted(len(run.epochs), "epoch")
    if len(run.epochs) != config.training.epochs:
        epochs = f"{epochs} of at most {config.training.epochs}"
    return (
        f"{epochs} of {int(run.epochs[-1]['images']):,} images, batches of {config.training.batch_size}, "
        f"learning rate {config.optimizer.lr:g} ({config.schedule.name}), seed {config.training.seed}"
    )


def _time(run: EvaluatedRun) -> str:
    if run.run.seconds is None:
        return "not recorded"
    where = (
        run.run.environment.get("gpu")
        or run.run.environment.get("processor")
        or "an unrecorded machine"
    )
    threads = run.run.environment.get("threads")
    kind = (
        f"{where}, {counted(threads, 'thread')}"
        if threads and not run.run.environment.get("gpu")
        else str(where)
    )
    return f"about {duration(run.run.seconds)} of training steps, without validation, on {kind}"


def _kept(run: EvaluatedRun) -> str:
    epoch = run.run.best_epoch
    return f"that of epoch {epoch}, chosen by validation; test images had no part in it"


def _results(run: EvaluatedRun) -> dict[str, str]:
    found, n = run.figures, run.figures["num_samples"]
    if not run.has_classes:
        return {}
    if run.is_multilabel:
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


def _notes(run: EvaluatedRun) -> list[str]:
    if len(run.images) < run.num_images:
        few = f"{len(run.images):,} evenly spread of {run.num_images:,} test images"
        return [f"Mistakes and pictures are those of {few}."]
    if run.recorded is not None and run.accuracy is not None:
        again = float(run.is_correct.double().mean())
        if round(again * run.num_images) != round(run.accuracy * run.figures["num_samples"]):
            return [
                f"The figures are those of evaluation.json. Measured again for this report, {percent(again)} are right."
            ]
    return []
