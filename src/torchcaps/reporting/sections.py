"""The sections of the report on one run: those that every task has, and the registry of others."""

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import TypeVar

import torch
from markupsafe import Markup

from torchcaps.evaluation import Calibration, Evaluation, Reliability
from torchcaps.evaluation.base import EvaluationResult
from torchcaps.models._registry import model_info
from torchcaps.models.notebook import parameter_count
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
    """Decorator: what this function writes becomes a section of reports.

    It stands after the report items of the task. The function is given an `EvaluatedRun` and
    returns a `ReportItem` (text, a figure, a table), or None for no section.

    Args:
        tasks: names of the tasks whose reports have the section; none for all.

    Raises:
        ValueError: if another section has the name of the function.
    """

    def register(writer: W) -> W:
        SECTIONS.add(writer.__name__, (tasks, writer))
        return writer

    return register


def sections_of(run: EvaluatedRun) -> list[Section]:
    """All sections of the report on a run, in their order."""
    parts: list[ReportItem | Section | None] = [summary(run), curves(run)]
    parts += run.task.report_items(_evaluation_of_all(run), run.images)
    for tasks, writer in SECTIONS.values():
        if not tasks or run.task.name in tasks:
            parts.append(writer(run))
    parts.append(configuration(run))
    return [_as_section(part) for part in parts if part is not None]


def _evaluation_of_all(run: EvaluatedRun) -> EvaluationResult:
    """Figures of all test images, with the activations of those that the model was run over."""
    recorded = run.recorded
    if recorded is None or not isinstance(run.evaluation, Evaluation):
        return run.evaluation
    curves = {name: Reliability(**curve) for name, curve in recorded["calibration"].items()}
    names = ("accuracy", "error", "loss", "num_samples", "per_class")
    return replace(
        run.evaluation,
        confusion=torch.tensor(recorded["confusion_matrix"]),
        calibration=Calibration(**curves),
        **{name: recorded[name] for name in names},
    )


def _as_section(part: ReportItem | Section) -> Section:
    """A report item of a task as a section: text, figure, table."""
    if isinstance(part, Section):
        return part
    blocks: list[Block] = []
    if part.about:
        blocks.append(part.about)
    if part.figure is not None:
        blocks.append(picture(part.figure, part.alt or part.title))
    if part.heads:
        blocks.append(Table(part.title, part.heads, part.rows, "figures"))
    return Section(part.key, part.title, blocks)


def lead(run: EvaluatedRun) -> Markup:
    """Two sentences: what was trained, and the figures of the test images."""
    training = counted(len(run.epochs), "epoch")
    if run.run.seconds is not None:
        training += f" in about {duration(run.run.seconds)} of training"
    if run.accuracy is None:
        outcome = Markup("Measured: {}.").format(run.evaluation.summary)
    else:
        outcome = Markup("<strong>{}</strong> of {:,} test images {}.").format(
            percent(run.accuracy),
            run.figures["num_samples"],
            "have all their classes found" if run.is_multilabel else "are right",
        )
    return Markup("{} on {}: {}. {}").format(
        run.config.model.name, name(run.images.name), training, outcome
    )


def summary(run: EvaluatedRun) -> Section:
    """What was trained, on which images, how long, and the figures of the test images."""
    model = run.config.model
    info = model_info(model.name)
    rows = {
        "Model": f"{model.name} ({info.title}, {info.year})",
        "Its options": setting(model.options) if model.options else "none, so its defaults",
        "Its outputs": _describe_outputs(run),
        "Parameters": f"{parameter_count(run.model):,}",
        "Task": f"{run.task.name}, trained with the {in_words(run.task.loss)} loss",
        "Data": run.config.data.name,
        "Images": run.images.size_in_words,
        "Classes": _describe_classes(run) if run.task.labeled else "labels had no part in it",
        "Training": _describe_training(run),
        "Time": _describe_time(run),
        "Model kept": f"that of epoch {run.run.best_epoch}, chosen by validation; "
        "test images had no part in it",
        **_test_figures(run),
    }
    blocks: list[Block] = [Table("The run", ("What", "Value"), [*rows.items()], "words")]
    if not run.has_classes:
        caption = f"Figures on {len(run.images):,} test images"
        blocks.append(Table(caption, *run.evaluation.table(), "figures"))
    return Section("summary", "Summary", [*blocks, *_notes(run)])


def _describe_outputs(run: EvaluatedRun) -> str:
    """What the model declares, which is why a section may be missing."""
    spec = run.task.spec
    capsules = "capsules with poses" if spec.pose else "no capsules"
    decoder = "a decoder draws images" if spec.decoder else "no decoder, so nothing is drawn"
    return f"{ACTIVATIONS[spec.activation]}; {capsules}; {decoder}"


def _describe_classes(run: EvaluatedRun) -> Markup:
    """Number and names of the classes; of many, the first ones."""
    classes = run.images.classes
    rest = ", …" if len(classes) > MAX_NAMES else ""
    return Markup("{}: {}{}").format(len(classes), names(classes[:MAX_NAMES]), rest)


def _describe_training(run: EvaluatedRun) -> str:
    """Epochs, batches, learning rate and seed."""
    training = run.config.training
    epochs = counted(len(run.epochs), "epoch")
    if len(run.epochs) != training.epochs:
        epochs += f" of at most {training.epochs}"
    return (
        f"{epochs} of {int(run.epochs[-1]['images']):,} images, batches of {training.batch_size}, "
        f"learning rate {run.config.optimizer.lr:g} ({run.config.schedule.name}), "
        f"seed {training.seed}"
    )


def _describe_time(run: EvaluatedRun) -> str:
    """Time in training steps, and the machine it was measured on."""
    if run.run.seconds is None:
        return "not recorded"
    environment = run.run.environment
    machine = environment.get("gpu")
    if not machine:
        machine = environment.get("processor") or "an unrecorded machine"
        if threads := environment.get("threads"):
            machine = f"{machine}, {counted(threads, 'thread')}"
    time = duration(run.run.seconds)
    return f"about {time} of training steps, without validation, on {machine}"


def _test_figures(run: EvaluatedRun) -> dict[str, str]:
    """Figures of the test images of a task with classes, by heading."""
    if not run.has_classes:
        return {}
    figures = run.figures
    num_images = figures["num_samples"]
    error = percent(figures["error"])
    if run.is_multilabel:
        deviation = percent(figures["standard_error"])
        return {
            "All classes found": f"{percent(figures['exact'])} of {num_images:,} test images "
            f"(error {error}, standard error {deviation})",
            "At least one found": percent(figures["almost"]),
            "Single classes found": percent(figures["per_digit"]),
        }
    num_wrong = round(figures["error"] * num_images)
    deviation = percent(sqrt(figures["error"] * figures["accuracy"] / num_images))
    return {
        "Test accuracy": f"{percent(figures['accuracy'])} of {num_images:,} images",
        "Test error": f"{error}, {num_wrong:,} images (standard error {deviation})",
        "Margin loss": f"{figures['loss']:.4f}, of the activations of test images, "
        "whatever the training loss is",
    }


def _notes(run: EvaluatedRun) -> list[str]:
    """Where figures and pictures are not of the same images, or not of the same pass."""
    if len(run.images) < run.num_images:
        images = f"{len(run.images):,} evenly spread of {run.num_images:,} test images"
        return [f"Mistakes and pictures are those of {images}."]
    if run.recorded is not None and run.accuracy is not None:
        accuracy = float(run.is_correct.double().mean())
        num_recorded = run.accuracy * run.figures["num_samples"]
        if round(accuracy * run.num_images) != round(num_recorded):
            return [
                "The figures are those of evaluation.json. "
                f"Measured again for this report, {percent(accuracy)} are right."
            ]
    return []


def curves(run: EvaluatedRun) -> Section:
    """Loss and score over epochs."""
    score = run.run.score
    loss = in_words(run.task.loss)
    first = format_metric(score, run.epochs[0][f"val_{score}"])
    last = format_metric(score, run.epochs[-1][f"val_{score}"])
    alt = (
        f"Curves of loss and score over {len(run.epochs)} epochs. Validation {in_words(score)} "
        f"goes from {first} after the first to {last} after the last."
    )
    rises = ", whose margin rises during training" * (loss == "spread")
    text = (
        "Training figures are means over an epoch while the weights still change, with random "
        "changes of the images where the run has them; validation figures are measured after it. "
        f"The loss is the {loss} loss{rises}; other parts of the training loss are left out."
    )
    blocks: list[Block] = [text, picture(run.run.curves(), alt), *run.run.notes]
    for row in run.epochs:
        blocks += [f"Epoch {row['epoch']}: {warning}" for warning in row.get("warnings", ())]
    return Section("curves", "Training", blocks)


def configuration(run: EvaluatedRun) -> Section:
    """All settings, those that are not the default in bold, and the machine."""
    task = create_task(run.model, TrainConfig())
    defaults = task.config.updated(clip=task.clip).flat()
    rows = []
    for key, choice in run.config.flat().items():
        is_default = choice is None or choice == defaults[key]
        style = Markup("{}" if is_default else "<strong>{}</strong>")
        rows.append((key, style.format(setting(choice))))
    caption = "Settings; bold where they are not the default"
    settings = Table(caption, ("Setting", "Value"), rows, "words")

    environment: Block = "The environment was not recorded."
    if machine := [(key, setting(fact)) for key, fact in run.run.environment.items()]:
        caption = "Environment: what the run was started with"
        environment = Table(caption, ("What", "Version or kind"), machine, "words")
    return Section("configuration", "Configuration and environment", [settings, environment])
