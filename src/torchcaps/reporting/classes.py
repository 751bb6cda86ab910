"""Sections of the report on a run that tells classes apart."""

import torch
from torch import Tensor

from torchcaps import evaluation
from torchcaps.evaluation import Diagnosis, example_indices
from torchcaps.reporting.evaluated import EvaluatedRun
from torchcaps.reporting.markup import Block, Section, Table
from torchcaps.reporting.sections import register_section
from torchcaps.tasks import ReportItem
from torchcaps.tasks.report_items import evenly
from torchcaps.templates import picture
from torchcaps.words import percent

MISTAKES, GRIDS, MAPS = 12, 10, 20
SPAN, STEPS, MOST_TILES = 0.25, 5, 1024  # of perturbations

QUESTIONS = {
    "ablation": "With and without its routing",
    "iterations": "What the iterations do",
    "decay": "From the first capsules to the last",
    "children": "First capsules in use",
    "entropy": "How evenly children share themselves out",
    "dynamics": "Whether couplings follow the image",
    "tree": "Whether there is a parse tree",
    "parents": "Parents in use",
    "starvation": "Whether the gradient reaches the children",
    "sign": "Whether a pose and its negative differ",
}


@register_section()
def found_by_class(run: EvaluatedRun) -> ReportItem | None:
    """For images of several classes: how often each is among the most active ones where it is there."""
    if not (run.has_classes and run.is_multilabel):
        return None
    labels = run.labels
    taken = evaluation.top_labels(run.activations, labels.shape[1])
    hit = (labels.unsqueeze(2) == taken.unsqueeze(1)).any(dim=2)
    rows = []
    for index, label in enumerate(run.classes):
        there = labels == index
        count, found = int(there.sum()), int((hit & there).sum())
        rows.append(
            (
                label,
                str(index),
                percent(found / count if count else None),
                f"{found:,}",
                f"{count:,}",
            )
        )
    about = (
        f"How often a class that is in an image is among its {labels.shape[1]} most active ones, in "
        f"{len(run.images):,} test images."
    )
    heads = ("Class", "Number", "Found", "Right", "Images")
    return ReportItem("classes", "Class by class", about, heads=heads, rows=tuple(rows))


@register_section()
def mistakes(run: EvaluatedRun) -> ReportItem | None:
    """The wrong answers that the model was surest of."""
    if not run.has_classes:
        return None
    from torchcaps import viz

    wrong, looked = _mistakes(run), f"{len(run.images):,} test images looked at"
    if not len(wrong):
        return ReportItem("mistakes", "Worst mistakes", f"None: all of the {looked} are right.")
    worst = wrong[:MISTAKES]
    labels, activations = run.labels[worst], run.activations[worst]
    taken = evaluation.top_labels(activations, labels.shape[1])
    rows = tuple(
        (
            *(" + ".join(run.classes[k] for k in some.tolist()) for some in (of, taken_for)),
            *(f"{float(values[some].min()):.3f}" for some in (of, taken_for)),
        )
        for of, taken_for, values in zip(labels, taken, activations, strict=True)
    )
    kind = "length" if run.task.spec.activation == "length" else "activation"
    names = viz.names.drawable(run.classes)
    return ReportItem(
        "mistakes",
        "Worst mistakes",
        f"{len(wrong):,} of the {looked} are wrong. These {len(worst)} are those where the {kind} of a wrong class "
        f"exceeds that of the true one by most. The bars are {kind}s.",
        viz.activation_bars(run.images.float_images(worst), activations, labels, classes=names),
        f"{len(worst)} test images that were taken for other classes, with bars for the most active ones.",
        (
            "Image of",
            "Taken for",
            f"{kind.capitalize()} of the true class",
            f"{kind.capitalize()} of the other",
        ),
        rows,
    )


@register_section()
def dimensions(run: EvaluatedRun) -> Section | None:
    """What each pose dimension of a class capsule encodes, class by class."""
    if not (run.has_classes and run.task.spec.decoder):
        return None
    from torchcaps import viz

    title, chosen = "What pose dimensions encode", example_indices(run.labels[:, 0], 1, 0)
    some = evenly(chosen, GRIDS)
    labels = run.labels[some, 0]
    found = evaluation.perturb(
        run.task.model, run.images.float_images(some), labels, span=SPAN, steps=STEPS
    )
    dims = found.reconstructions.shape[1]
    if dims * STEPS > MOST_TILES:
        return Section("dimensions", title, [f"{dims} dimensions are too many to draw."])
    names, pictures = viz.names.drawable(run.classes), []
    for grid, label in zip(found.reconstructions, labels.tolist(), strict=True):
        drawn = viz.perturbations(grid, found.offsets, title=f"class capsule {names[label]!r}")
        alt = (
            f"Drawings of an image of class {run.classes[label]}, a row for each of its {dims} pose dimensions, moved "
            f"from −{SPAN} to +{SPAN}."
        )
        pictures.append(picture(drawn, alt))
    shown = "" if len(some) == len(chosen) else f" Shown are {len(some)} of {len(chosen)} classes."
    about = (
        f"One test image a class; in each row one dimension of its class capsule is moved from −{SPAN} to +{SPAN}, and "
        f"the decoder draws what comes out. The framed column is the capsule as it is.{shown}"
    )
    return Section("dimensions", title, [about, pictures])


@register_section()
def maps(run: EvaluatedRun) -> ReportItem | None:
    """Where on the image the votes for the winning class come from."""
    if not (run.has_classes and run.task.spec.pose):
        return None
    from torchcaps import viz

    title, labels = "Where the votes come from", run.labels
    some = evenly(example_indices(labels[:, 0], max(1, MAPS // (2 * len(run.classes))), 0), MAPS)
    images = run.images.float_images(some)
    try:
        found = evaluation.coupling_maps(run.task.model, images)
    except ValueError as error:
        return ReportItem("maps", title, f"They cannot be drawn for this model: {error}.")
    winner = found.shown.unsqueeze(1)
    truth = torch.where((labels[some] == winner).any(dim=1), found.shown, labels[some, 0])
    drawn = viz.coupling_map(
        images,
        found.maps,
        truth,
        shown=found.shown,
        lengths=found.activations.gather(1, winner).squeeze(1),
        classes=viz.names.drawable(run.classes),
    )
    rows, columns = found.positions.shape[1:]
    about = (
        "For the class capsule that wins: what each capsule below gives to it, coupling × strength of its vote × "
        f"agreement of the vote with the winner's pose, summed over capsule types at each of "
        f"{columns}\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}{rows} "
        "positions and spread over the pixels that a position sees. Each map has its own scale."
    )
    alt = f"{len(some)} test images above the same with a map of where the votes for their winning class come from."
    return ReportItem("maps", title, about, drawn, alt)


@register_section()
def routing(run: EvaluatedRun) -> Section | None:
    """What routing does in this model, in sentences."""
    if not (run.num_diagnosed and run.has_classes and run.task.spec.pose):
        return None
    from torchcaps import viz

    try:
        if run.is_multilabel:
            raise ValueError("its measures need one class an image")
        found = evaluation.diagnose(run.task.model, run.images, count=run.num_diagnosed, seed=0)
    except ValueError as error:
        return Section("routing", "Routing", [f"It cannot be measured for this run: {error}."])
    about = (
        f"Measured on {found.num_samples} test images, {percent(found.accuracy)} of which are right. So few images "
        "tell large effects from none, not small ones. How each figure is defined stands in the documentation, under "
        "diagnostics."
    )
    alt = "Four panels: coupling entropy, activations by layer, share of capsules out of use, accuracy without routing."
    blocks: list[Block] = [about, *verdicts(found), picture(viz.diagnosis(found), alt)]
    return Section("routing", "Routing", blocks)


def verdicts(found: Diagnosis) -> list[Table]:
    """Every measure with its sentence, for the whole model and then layer by layer."""
    parts: dict[str, list[tuple[str, str]]] = {}
    for key, sentence in found.verdicts().items():
        layer, _, measure = key.rpartition(": ")
        if measure == "baseline":
            continue  # beside another run, a comparison says it
        parts.setdefault(layer, []).append((QUESTIONS.get(measure, measure), sentence))
    return [
        Table(
            f"Layer {layer}" if layer else "The whole model", ("Question", "Answer"), rows, "words"
        )
        for layer, rows in parts.items()
    ]


def _mistakes(run: EvaluatedRun) -> Tensor:
    """The wrong answers, those first that the model was surest of."""
    true = torch.zeros_like(run.activations, dtype=torch.bool).scatter(1, run.labels, True)
    rival = run.activations.masked_fill(true, -1.0).amax(dim=1)
    missed = run.activations.masked_fill(~true, 2.0).amin(dim=1)
    wrong = (~run.is_correct).nonzero().squeeze(1)
    return wrong[(rival - missed)[wrong].argsort(descending=True, stable=True)]
