"""The sections of the HTML report on one finished run, in their order.

`sections_of` takes an `EvaluatedRun`, which every function calls `run`: the folder of a finished
training (`run.run`, locally `run_folder`), its configuration (`.config`), its best model (`.model`)
within its task (`.task`, which holds its loss and its plots), its test images (`.images`), and what
was measured on them. It returns `Section`s: the summary, the curves of the training, the plots of
the task, the sections that were registered, and the configuration. A `Section` has a key (its
address within the page), a title, and blocks: paragraphs (strings), tables, and pictures (plots
drawn as SVG, with a text for readers who do not see them).

Words:
    figures: numbers that were measured. `run.figures` has those of all test images by name.
        Only `ReportItem.figure`, the plot of a task, is a figure of matplotlib.
    recorded: the figures of all test images, as an earlier evaluation wrote them to
        evaluation.json; None without such a file, and for a task without classes. Where they are
        recorded, the report may run the model over a part of the images. `run.images`,
        `run.evaluation` and `run.is_correct` are of that part; `run.num_images` counts all.
    is_correct: `[n]` bool, whether the most active class of an image is its label. Of an image with
        k labels: whether its k most active classes are these.
    score: the validation metric by which the best epoch is chosen; `run_folder.score` is its name.
    spec: what a model declares: whether it has poses and a decoder, and what its outputs are.
    multilabel: an image shows several classes; a class is "found" if the model predicts it.
    Evaluation: the figures of a classifier, with the label and the activations (one number for each
        class) of each image. Its `Calibration` has two `Reliability` tables, which say how often
        the model is right at each confidence: "normalized" takes the share of the largest
        activation in the sum for the confidence, "length" the largest activation itself.
    Markup: text that is HTML already; every other string is escaped.

Helpers write text: `counted(2, "epoch")` is "2 epochs", `in_words("val_loss")` is "val loss",
`percent(0.5)` is "50.00 %", `duration` writes seconds, `format_metric` a metric by its name, and
`setting` any value of a configuration. `name_html` and `names_html` make HTML of names in any
script.
"""

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
from torchcaps.reporting.markup import (
    Block,
    Section,
    Table,
    name as name_html,
    names as names_html,
)
from torchcaps.tasks import ReportItem, create_task
from torchcaps.templates import picture
from torchcaps.training import TrainConfig
from torchcaps.words import (
    counted,
    duration,
    format_metric,
    in_words,
    join_names,
    numbers,
    percent,
    rounded,
    setting,
)

SectionWriter = Callable[[EvaluatedRun], ReportItem | Section | None]
W = TypeVar("W", bound=SectionWriter)  # the type of one such function
SECTIONS: Registry[tuple[tuple[str, ...], SectionWriter]] = Registry("section")
"""Name of a function -> (tasks whose reports have its section, the function); no tasks: all."""

MAX_NAMES = 10  # of classes, in the summary
# Kinds of a table, which are classes of the page's style sheet.
NUMBERS = "figures"  # all columns but the first are aligned to the right
WORDS = "words"  # all columns are aligned to the left
# Meaning of a model's outputs, by `spec.activation`.
OUTPUT_KINDS = {
    "length": "lengths of capsules",
    "probability": "probabilities",
    "logit": "logits",
    "none": "numbers without a meaning",
}


def register_section(*tasks: str) -> Callable[[W], W]:
    """Decorator: what this function writes becomes a section of reports.

    The section stands after the plots of the task. The function takes an `EvaluatedRun` and returns
    a `ReportItem` (a title with text, a plot or a table), a `Section`, or None for no section. Its
    own name is the name of the section.

    Args:
        tasks: names of the tasks whose reports have the section; none for all.

    Returns:
        The decorator, which returns the function as it is.

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
    parts += run.task.report_items(_recorded_evaluation(run), run.images)
    for tasks, writer in SECTIONS.values():
        if not tasks or run.task.name in tasks:
            parts.append(writer(run))
    parts.append(configuration(run))
    return [_as_section(part) for part in parts if part is not None]


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


def _as_section(part: ReportItem | Section) -> Section:
    """A report item as a section with its text, its plot and its table, as far as it has them."""
    if isinstance(part, Section):
        return part
    blocks: list[Block] = []
    if part.about:
        blocks.append(part.about)
    if part.figure is not None:
        blocks.append(picture(part.figure, part.alt or part.title))
    if part.heads:
        blocks.append(Table(part.title, part.heads, part.rows, NUMBERS))
    return Section(part.key, part.title, blocks)


def lead(run: EvaluatedRun) -> Markup:
    """Two sentences: what was trained, and the figures of the test images."""
    run_folder = run.run
    training = counted(len(run.epochs), "epoch")
    if run_folder.seconds is not None:
        training += f" in about {duration(run_folder.seconds)} of training"
    if run.accuracy is None:  # a task without classes
        outcome = Markup("Measured: {}.").format(run.evaluation.summary)
    else:
        outcome = Markup("<strong>{}</strong> of {:,} test images {}.").format(
            percent(run.accuracy),
            run.figures["num_samples"],
            "have all their classes found" if run.is_multilabel else "are right",
        )
    return Markup("{} on {}: {}. {}").format(
        run.config.model.name, name_html(run.images.name), training, outcome
    )


def summary(run: EvaluatedRun) -> Section:
    """What was trained, on which images, how long, and the figures of the test images."""
    model = run.config.model
    paper = model_info(model.name)  # its title and year
    training = run.config.training
    spec = run.task.spec
    rows = {
        "Model": f"{model.name} ({paper.title}, {paper.year})",
        "Its options": setting(model.options) if model.options else "none, so its defaults",
        "Its outputs": f"{OUTPUT_KINDS[spec.activation]}; "
        f"{'capsules with poses' if spec.pose else 'no capsules'}; "
        f"{'a decoder draws images' if spec.decoder else 'no decoder, so nothing is drawn'}",
        "Parameters": f"{parameter_count(run.model):,}",
        "Task": f"{run.task.name}, trained with the {in_words(run.task.loss)} loss",
        "Data": run.config.data.name,
        "Images": run.images.preprocess.size_in_words(run.images.inputs.shape),
        "Classes": _describe_classes(run),
        "Training": f"{len(run.epochs)} of at most {counted(training.epochs, 'epoch')} of "
        f"{int(run.epochs[-1]['images']):,} images, batches of {training.batch_size}, learning "
        f"rate {run.config.optimizer.lr:g} ({run.config.schedule.name}), seed {training.seed}",
        "Time": _describe_time(run),
        "Model kept": f"that of epoch {run.run.best_epoch}, chosen by validation; "
        "test images had no part in it",
    }
    if run.has_classes:
        rows |= score_rows(run)
    blocks: list[Block] = [Table("The run", ("What", "Value"), list(rows.items()), WORDS)]
    if not run.has_classes:
        caption = f"Figures on {len(run.images):,} test images"
        # `table()` gives the heads of the columns, and the rows.
        blocks.append(Table(caption, *run.evaluation.table(), NUMBERS))
    return Section("summary", "Summary", [*blocks, *_notes(run)])


def _describe_classes(run: EvaluatedRun) -> Markup:
    """Number and names of the classes, of which at most ten are listed."""
    if not run.task.labeled:
        return Markup("labels had no part in it")
    classes = run.images.classes
    ellipsis = ", …" if len(classes) > MAX_NAMES else ""
    return Markup("{}: {}{}").format(len(classes), names_html(classes[:MAX_NAMES]), ellipsis)


def _describe_time(run: EvaluatedRun) -> str:
    """Time in training steps, and the machine it was measured on."""
    if run.run.seconds is None:
        return "not recorded"
    environment = run.run.environment  # versions and hardware
    machine = environment.get("gpu") or environment.get("processor") or "an unrecorded machine"
    if threads := environment.get("threads"):
        machine = f"{machine}, {counted(threads, 'thread')}"
    time = duration(run.run.seconds)
    return f"about {time} of training steps, without validation, on {machine}"


def score_rows(run: EvaluatedRun) -> dict[str, str]:
    """The figures of the test images in words, by name.

    Where an image shows several classes, `almost` is the share of images with at least one found,
    and `per_digit` the share of all labels that were found, which need not be digits.
    """
    figures = run.figures
    if run.accuracy is None:  # a task without classes
        return {name: format_metric(name, metric) for name, metric in numbers(figures).items()}
    num_samples = figures["num_samples"]
    error = figures["error"]
    # Standard error of a share p of n independent images: sqrt(p (1 - p) / n).
    deviation = figures.get("standard_error", sqrt(error * run.accuracy / num_samples))
    num_wrong = round(error * num_samples)
    rows = {
        "All classes found"
        if run.is_multilabel
        else "Test accuracy": f"{percent(run.accuracy)} of {num_samples:,} images",
        "Test error": f"{percent(error)}, {num_wrong:,} images (standard error {percent(deviation)})",
    }
    if run.is_multilabel:
        return rows | {
            "At least one found": percent(figures["almost"]),
            "Single classes found": percent(figures["per_digit"]),
        }
    return rows | {
        "Test loss": f"{figures['loss']:.4f}, mean {in_words(figures['loss_name'])} loss",
        "Balanced accuracy": percent(figures["balanced_accuracy"]),
        "Macro F1": rounded(figures["macro_f1"]),
        "AUROC": rounded(figures["auroc"]),
        "Calibration error": percent(figures["calibration_error"]),
        "Never predicted": join_names(figures["never_predicted"]) or "none",
    }


def _notes(run: EvaluatedRun) -> list[str]:
    """A note, if the figures were not measured on the images of this report, in this pass."""
    if len(run.images) < run.num_images:
        images = f"{len(run.images):,} evenly spread of {run.num_images:,} test images"
        return [f"Mistakes and pictures are those of {images}."]
    if run.recorded is not None and run.accuracy is not None:
        # `run.accuracy` is the recorded one; this one was measured again for the report.
        accuracy = float(run.is_correct.double().mean())
        if round((accuracy - run.accuracy) * run.num_images):
            return [
                "The figures are those of evaluation.json. "
                f"Measured again for this report, {percent(accuracy)} are right."
            ]
    return []


def curves(run: EvaluatedRun) -> Section:
    """Loss and score over epochs, notes such as a second start, and warnings of the epochs."""
    run_folder = run.run
    score_name = run_folder.score
    loss = in_words(run.task.loss)
    first_score = format_metric(score_name, run.epochs[0][f"val_{score_name}"])
    last_score = format_metric(score_name, run.epochs[-1][f"val_{score_name}"])
    alt = (
        f"Curves of loss and score over {len(run.epochs)} epochs. "
        f"Validation {in_words(score_name)} goes from {first_score} after the first "
        f"to {last_score} after the last."
    )
    margin = ", whose margin rises during training" if loss == "spread" else ""
    text = (
        "Training figures are means over an epoch while the weights still change, with random "
        "changes of the images where the run has them; validation figures are measured after it. "
        f"The loss is the {loss} loss{margin}; other parts of the training loss are left out."
    )
    blocks: list[Block] = [text, picture(run_folder.curves(), alt), *run_folder.notes]
    for epoch in run.epochs:
        blocks += [f"Epoch {epoch['epoch']}: {warning}" for warning in epoch.get("warnings", ())]
    return Section("curves", "Training", blocks)


def configuration(run: EvaluatedRun) -> Section:
    """All settings, those that are not the default in bold, and the machine."""
    # A configuration without choices: the task of this model fills it with its own defaults.
    # `clip`, the largest norm of the gradient, stays "auto" in it; only a training replaces that
    # by the limit of the task.
    task = create_task(run.model, TrainConfig())
    defaults = task.config.flat()
    rows = []
    for key, choice in run.config.flat().items():
        # None leaves a setting open, which is the same as its default.
        is_default = choice is None or choice == defaults[key]
        style = Markup("{}" if is_default else "<strong>{}</strong>")
        rows.append((key, style.format(setting(choice))))
    caption = "Settings; bold where they are not the default"
    settings = Table(caption, ("Setting", "Value"), rows, WORDS)

    environment: Block = "The environment was not recorded."
    if machine := [(key, setting(fact)) for key, fact in run.run.environment.items()]:
        caption = "Environment: what the run was started with"
        environment = Table(caption, ("What", "Version or kind"), machine, WORDS)
    return Section("configuration", "Configuration and environment", [settings, environment])
