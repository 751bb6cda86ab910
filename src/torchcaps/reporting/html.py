"""One run in, one self-contained HTML file out; several runs side by side in one.

What a page says stands in its template, `report.html` or `comparison.html`. Between training and
configuration of a finished run it has sections, of the functions below the registry. Each takes an
`EvaluatedRun`, which it calls `run`: the folder of a finished training (`run.run`), its
configuration (`.config`), its best model (`.model`) within its task (`.task`), its test images
(`.images`), and what was measured on them. It returns a `ReportItem`, a text with at most one
figure and one table; a `Section` of several; or None, which leaves the section out. Sections stand
in the order of their registration, after the plots of the task.

`run.labels` is `[images, classes]`: 1 for each class that a test image shows, which is one unless
it is multi-label. `run.activations` is `[images, classes]`, in [0, 1].
"""

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from jaxtyping import Int64, Shaped
from markupsafe import Markup
from scipy.stats import binomtest
from torch import Tensor

import torchcaps
from torchcaps import evaluation, words
from torchcaps.data import Dataset, DiskDataset
from torchcaps.errors import ArgumentError, check_range, counted
from torchcaps.evaluation.base import EvaluationResult, Progress, device_of, evaluating
from torchcaps.models._registry import model_info
from torchcaps.models.notebook import parameter_count
from torchcaps.registry import Registry
from torchcaps.reporting.api import can_plot
from torchcaps.reporting.evaluated import (
    MAX_IMAGES,
    NUM_DIAGNOSED,
    EvaluatedRun,
    check_same_task,
    diagnosis_of,
    evaluate_run,
    have_same_images,
)
from torchcaps.tasks import ReportItem, create_task, evenly
from torchcaps.templates import Picture, picture, render, strip
from torchcaps.training import Run, TrainConfig
from torchcaps.training.files import atomic, make_folder
from torchcaps.types import Capsules, Json, StrPath, find_network
from torchcaps.words import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MAX_MISTAKES = 5
MAX_MAPS = 10
REACH = 2.5  # standard deviations along an axis of poses, on either side
NUM_STEPS = 11  # drawings along an axis
MAX_POSES = 200  # images of a class that its axes are taken from

# Sections of a classifier that stand above the fold.
OPEN = ("confusion_matrix", "mistakes", "dimensions", "maps", "routing")


class Table(NamedTuple):
    """A table of words whose first column names its rows."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


class Strips(NamedTuple):
    """Axes of poses: the name of each, and its drawings from end to end side by side."""

    axes: Sequence[tuple[str, Picture]]


class Section(NamedTuple):
    """A part of a report, under a heading of its own.

    Attributes:
        key: address within the page, of letters, hyphens and underscores.
        title: the heading.
        blocks: paragraphs, tables, axes of poses, and lists of figures with texts for those who do not see them.
    """

    key: str
    title: str
    blocks: "Sequence[str | Table | Strips | list[tuple[Figure, str]]]"


# Shows one drawing of an axis at a time, and all that is folded on paper. The policy of the page
# names its hash, so that no other script runs.
SCRIPT = """
for (const axis of document.querySelectorAll(".axis")) {
  const slider = axis.querySelector("input");
  axis.classList.add("live");
  slider.oninput = () => axis.style.setProperty("--at", slider.value);
}
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
});
"""
SectionWriter = Callable[[EvaluatedRun], ReportItem | Section | None]
W = TypeVar("W", bound=SectionWriter)  # the type of one such function
SECTIONS: Registry[SectionWriter] = Registry("section", tasks=())


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
    return SECTIONS.register(tasks=tasks)


@register_section()
def found_by_class(run: EvaluatedRun) -> ReportItem | None:
    """For images of several classes: how often each class is among the most active ones."""
    if not (run.has_classes and run.is_multilabel):
        return None
    labels = run.labels
    is_hit = evaluation.label_hits(run.activations, labels)
    rows = []
    for index, name in enumerate(run.images.classes):
        num_images = int(labels[:, index].sum())
        num_hits = int(is_hit[:, index].sum())
        share = percent(num_hits / num_images) if num_images else "-"
        rows.append((name, str(index), share, f"{num_hits:,}", f"{num_images:,}"))
    text = (
        "How often a class that is in an image is among its most active ones, as many as it shows "
        f"(at most {int(labels.sum(dim=1).max())}), in {len(run.images):,} test images."
    )
    # "Number" is the index of the class.
    heads = ("Class", "Number", "Found", "Right", "Images")
    return ReportItem("classes", "Class by class", text, heads=heads, rows=tuple(rows))


@register_section()
def mistakes(run: EvaluatedRun) -> ReportItem | None:
    """The wrong answers that the model was surest of.

    Of an image of several classes the table gives the least active true class, and the most active
    wrong one among its predicted classes.
    """
    if not run.has_classes:
        return None
    from torchcaps import viz

    title = "Worst mistakes"
    mistaken = evaluation.worst_mistakes(run.activations, run.labels)
    examined = f"{len(run.images):,} test images looked at"
    if not len(mistaken):
        return ReportItem("mistakes", title, f"None: all of the {examined} are right.")

    worst = mistaken[:MAX_MISTAKES]
    labels = class_rows(run.labels)[worst]
    activations = run.activations[worst]
    predicted = evaluation.top_labels(activations, labels.shape[1])
    files = _file_names(run.images, worst)
    rows = []
    for row, (true, answer) in enumerate(zip(labels, predicted, strict=True)):
        answer = answer[: len(true.unique())]
        wrong = answer[~torch.isin(answer, true)]
        cells = []
        for shown in (true, answer):
            cells.append(" + ".join(dict.fromkeys(run.images.classes[label] for label in shown)))
        for extreme in (activations[row, true].min(), activations[row, wrong].max()):
            cells.append(f"{extreme:.3f}")
        rows.append((*cells, *files[row : row + 1]))
    kind = "length" if run.task.spec.activation == "length" else "activation"
    text = (
        f"{len(mistaken):,} of the {examined} are wrong. These {len(worst)} are those where the "
        f"{kind} of a wrong class exceeds that of the true one by most. The bars are {kind}s."
    )
    alt = f"{len(worst)} images that were taken for other classes, with bars for the most active."
    heads = [
        "Image of",
        "Taken for",
        f"{kind.capitalize()} of the true class",
        f"{kind.capitalize()} of the other",
    ]
    if files:
        heads.append("File")
    bars = viz.activation_bars(
        run.images.float_images(worst), activations, labels, classes=run.images.classes
    )
    return ReportItem("mistakes", title, text, bars, alt, tuple(heads), tuple(rows))


def class_rows(labels: Shaped[Tensor, "n classes"]) -> Int64[Tensor, "n k"]:
    """The classes of each image, in their order; of an image of fewer the first one again."""
    count = int(labels.sum(dim=1).max())
    rows = labels.argsort(dim=1, descending=True, stable=True)[:, :count]
    is_shown = torch.arange(count) < labels.sum(dim=1, keepdim=True)
    return rows.where(is_shown, rows[:, :1])


def _file_names(images: Dataset, indices: Tensor) -> list[str]:
    """Names of the files of these images, each with its folder; none where they are not known."""
    files = [images.files[index] for index in indices.tolist()] if images.files else []
    if isinstance(images, DiskDataset):
        files = [os.fsdecode(file) for file in images.inputs[indices].files]
    return ["/".join(Path(file).parts[-2:]) for file in files]


@register_section()
def dimensions(run: EvaluatedRun) -> Section | None:
    """What the pose of a class encodes: drawings along the axes in which its poses vary most."""
    if not (run.has_one_class and run.task.spec.decoder):
        return None
    # The class with the most images that the model reads right.
    right = run.images.labels.cpu().where(run.is_correct, -1)
    label = int(torch.bincount(right + 1, minlength=2)[1:].argmax())
    indices = (right == label).nonzero().flatten()[:MAX_POSES]
    images = run.images.float_images(indices)
    axes = evaluation.pose_axes(run.model, images, right[indices]).get(label)
    title = "What a pose encodes"
    if axes is None:
        return Section("dimensions", title, ["There are too few right answers to say."])
    name = run.images.classes[label]
    strips = []
    offsets = torch.linspace(-REACH, REACH, NUM_STEPS)
    for index, axis in enumerate(axes.axes):
        poses = axes.mean + offsets.unsqueeze(1) * axes.std[index] * axis
        pose = torch.zeros(NUM_STEPS, len(run.images.classes), len(axis))
        pose[:, label] = poses
        pose = pose.to(device_of(run.model))
        capsules = Capsules(pose, pose.norm(dim=-1))
        labels = torch.full((NUM_STEPS,), label, device=pose.device)
        with evaluating(run.model):
            drawings = find_network(run.model).reconstruct(capsules, labels).cpu()
        caption = axes.names[index] or f"axis {index + 1}"
        strips.append((caption, strip(drawings, f"Class {name} along {caption}")))
    text = (
        f"Class {name}: its poses vary most along these axes, which hold {axes.share:.0%} of the "
        f"variance. Each is drawn from −{REACH} to +{REACH} standard deviations. An axis has a name "
        "where it changes the drawing steadily. torchcaps perturb draws every single dimension."
    )
    return Section("dimensions", title, [text, Strips(strips)])


@register_section()
def maps(run: EvaluatedRun) -> ReportItem | None:
    """Where on the image the votes for the winning class come from.

    Only for models whose class capsules have poses (`spec.pose`).
    """
    if not (run.has_classes and run.task.spec.pose):
        return None
    from torchcaps import viz

    title = "Where the votes come from"
    classes = run.images.classes
    # Half of the largest number, so that few classes do not fill the figure.
    per_class = max(1, MAX_MAPS // (2 * len(classes)))
    examples = evaluation.example_indices(run.labels.argmax(dim=1), per_class=per_class, seed=0)
    indices = evenly(examples, MAX_MAPS)
    labels = run.labels[indices]
    images = run.images.float_images(indices)
    try:
        support = evaluation.coupling_maps(run.model, images)
    except ValueError as error:
        return ReportItem("maps", title, f"They cannot be drawn for this model: {error}.")

    winner = support.selected.unsqueeze(1)  # [images, 1], the most active class
    is_right = labels.gather(1, winner).squeeze(1) == 1
    # A winner that is any of the true classes counts as right: it stands in for the label.
    figure = viz.coupling_map(
        images,
        support.maps,
        torch.where(is_right, support.selected, labels.argmax(dim=1)),
        selected=support.selected,
        lengths=support.activations.gather(1, winner).squeeze(1),
        classes=classes,
    )
    num_rows, num_columns = support.positions.shape[1:]  # [images, rows, columns]
    times = "\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}"
    text = (
        "For the class capsule that wins: what each capsule below gives to it, coupling × strength "
        "of its vote × agreement of the vote with the winner's pose, summed over capsule types at "
        f"each of {num_columns}{times}{num_rows} positions and spread over the pixels that a "
        "position sees. Each map has its own scale."
    )
    alt = (
        f"{len(indices)} test images above the same with a map of where the votes for their "
        "winning class come from."
    )
    return ReportItem("maps", title, text, figure, alt)


@register_section()
def routing(run: EvaluatedRun) -> Section | None:
    """The effect of routing in this model, in sentences.

    Left out where `run.num_diagnosed`, the number of test images to measure it on, is 0.
    """
    diagnosis = diagnosis_of(run)
    if diagnosis is None:
        return None
    if isinstance(diagnosis, str):
        return Section("routing", "Routing", [f"It cannot be measured for this run: {diagnosis}."])
    rows = [(f"{mark} {question}", answer) for mark, question, answer in diagnosis.table().rows]
    checks = Table("✓ yes, ✗ no, ? these images do not decide", ("Question", "Answer"), rows)
    return Section("routing", "Routing", [diagnosis.verdict, checks])


@register_section()
def measures(run: EvaluatedRun) -> Section | None:
    """The statistics behind the section on routing."""
    diagnosis = diagnosis_of(run)
    if not isinstance(diagnosis, evaluation.Diagnosis):
        return None
    from torchcaps import viz

    text = (
        f"Accuracy with and without routing is that of all {len(run.images):,} images, all else of "
        f"{diagnosis.num_samples}. How each figure is defined stands in the documentation, under "
        "diagnostics."
    )
    table = Table("Every measure", ("Measure", "Answer"), list(diagnosis.verdicts().items()))
    alt = "Panels: accuracy without routing, and what couplings, votes and capsules do."
    return Section(
        "measures", "Measures of routing", [text, table, [(viz.diagnosis(diagnosis), alt)]]
    )


def report(
    run: Run | StrPath | Sequence[Run | StrPath],
    path: StrPath | None = None,
    *,
    root: str | None = None,
    device: str = "auto",
    images: int = MAX_IMAGES,
    diagnose: int = NUM_DIAGNOSED,
    progress: Progress | None = None,
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
    paths = [run] if isinstance(run, Run | StrPath) else list(run)
    check_range("number of runs", len(paths), low=1)
    folders = [Path(one) for one in paths]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ArgumentError("run", "expected different run folders, got one of them twice")

    runs = {
        name: evaluate_run(
            one,
            root=root,
            device=device,
            max_images=images,
            num_diagnosed=diagnose,
            progress=progress,
        )
        for name, one in zip(words.unique_suffixes(folders), paths, strict=True)
    }
    content = render_runs(runs)
    file = Path(path or folders[0] / ("report.html" if len(runs) == 1 else "comparison.html"))
    make_folder(file.parent)
    with atomic(file) as partial:
        partial.write_text(content, encoding="utf-8")
    return file


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
    return render(
        "torchcaps.reporting",
        template,
        words=words,
        plural=counted,
        picture=picture,
        script=Markup(SCRIPT),
        script_hash=base64.b64encode(sha256(SCRIPT.encode()).digest()).decode(),
        parameter_count=parameter_count,
        version=torchcaps.__version__,
        all_runs=list(runs.values()),
        **values,
    )


def _describe_one(run: EvaluatedRun) -> Json:
    """What the report on a run needs."""
    recorded = _recorded_evaluation(run)
    parts: list[Any] = run.task.report_items(recorded, run.images)
    for name, write in SECTIONS.items():
        tasks = SECTIONS.fact(name, "tasks")
        part = write(run) if not tasks or run.task.name in tasks else None
        if part is not None:
            parts.append(part)
    above = (
        [part for key in OPEN for part in parts if part.key == key] if run.has_classes else parts
    )
    return {
        "run": run,
        "recorded": recorded if isinstance(recorded, evaluation.Evaluation) else None,
        "binomtest": binomtest,
        "above": above,
        "below": [part for part in parts if part not in above],
        # A configuration without choices: the task of this model fills it with its own defaults.
        # `clip`, the largest norm of the gradient, stays "auto" in it; only a training replaces
        # that by the limit of the task.
        "defaults": create_task(run.model, TrainConfig()).config.flat(),
        "paper": model_info(run.config.model.name),  # its title and year
        "environment": run.run.environment,
    }


def _recorded_evaluation(run: EvaluatedRun) -> EvaluationResult:
    """The evaluation of a classifier with the figures recorded for all test images.

    Its labels and activations stay those of the images that the model was run over. Without such
    figures, or for another task, it is the evaluation itself.
    """
    recorded = run.recorded
    if recorded is None or not isinstance(run.evaluation, evaluation.Evaluation):
        return run.evaluation
    tables = {
        key: evaluation.Reliability(**table) for key, table in recorded["calibration"].items()
    }
    fields = ("accuracy", "error", "loss", "num_samples", "per_class")
    return replace(
        run.evaluation,
        confusion=torch.tensor(recorded["confusion_matrix"]),
        calibration=evaluation.Calibration(**tables),
        **{key: recorded[key] for key in fields},
    )


def _compare(runs: Mapping[str, EvaluatedRun]) -> Json:
    """What the comparison of runs needs."""
    from torchcaps import viz

    (_, reference), *rivals = runs.items()
    comparisons = None
    if all(run.has_classes for run in runs.values()):
        comparisons = {}
        for name, run in rivals:
            is_comparable = have_same_images(run, reference)
            answers = (run.is_correct, reference.is_correct)
            comparisons[name] = evaluation.compare_answers(*answers) if is_comparable else None
    scores = {run.run.score for run in runs.values()}
    # Runs with classes of different sizes may differ in it; all of them have an accuracy.
    score = scores.pop() if len(scores) == 1 else "accuracy"
    epochs = {name: run.epochs for name, run in runs.items()}
    return {
        "runs": runs,
        "comparisons": comparisons,
        "score": score,
        "overlaid": viz.overlaid_curves(epochs, score=score),
        "facts": {
            "Setting": [run.config.flat() for run in runs.values()],
            "Environment": [run.run.environment for run in runs.values()],
        },
    }
