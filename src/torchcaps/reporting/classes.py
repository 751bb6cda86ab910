"""Sections of the report on a run that tells classes apart."""

import torch

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
SPAN, STEPS, MAX_TILES = 0.25, 5, 1024  # of perturbations

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
    predicted = evaluation.top_labels(run.activations, labels.shape[1])
    hits = (labels.unsqueeze(2) == predicted.unsqueeze(1)).any(dim=2)
    rows = []
    for index, label in enumerate(run.classes):
        is_class = labels == index
        count = int(is_class.sum())
        num_hits = int((hits & is_class).sum())
        share = percent(num_hits / count if count else None)
        rows.append((label, str(index), share, f"{num_hits:,}", f"{count:,}"))
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

    wrong = evaluation.worst_mistakes(run.activations, run.labels)
    sample = f"{len(run.images):,} test images looked at"
    if not len(wrong):
        return ReportItem("mistakes", "Worst mistakes", f"None: all of the {sample} are right.")
    worst = wrong[:MISTAKES]
    labels, activations = run.labels[worst], run.activations[worst]
    predicted = evaluation.top_labels(activations, labels.shape[1])
    rows = []
    for true, answer, values in zip(labels, predicted, activations, strict=True):
        names = [" + ".join(run.classes[k] for k in classes.tolist()) for classes in (true, answer)]
        lengths = [f"{float(values[classes].min()):.3f}" for classes in (true, answer)]
        rows.append((*names, *lengths))
    kind = "length" if run.task.spec.activation == "length" else "activation"
    drawing = viz.activation_bars(
        run.images.float_images(worst),
        activations,
        labels,
        classes=viz.names.drawable(run.classes),
    )
    return ReportItem(
        "mistakes",
        "Worst mistakes",
        f"{len(wrong):,} of the {sample} are wrong. These {len(worst)} are those where the {kind} of a wrong class "
        f"exceeds that of the true one by most. The bars are {kind}s.",
        drawing,
        f"{len(worst)} test images that were taken for other classes, with bars for the most active ones.",
        (
            "Image of",
            "Taken for",
            f"{kind.capitalize()} of the true class",
            f"{kind.capitalize()} of the other",
        ),
        tuple(rows),
    )


@register_section()
def dimensions(run: EvaluatedRun) -> Section | None:
    """What each pose dimension of a class capsule encodes, class by class."""
    if not (run.has_classes and run.task.spec.decoder):
        return None
    from torchcaps import viz

    title = "What pose dimensions encode"
    examples = example_indices(run.labels[:, 0], 1, 0)
    indices = evenly(examples, GRIDS)
    labels = run.labels[indices, 0]
    images = run.images.float_images(indices)
    perturbed = evaluation.perturb(run.task.model, images, labels, span=SPAN, steps=STEPS)
    dims = perturbed.reconstructions.shape[1]
    if dims * STEPS > MAX_TILES:
        return Section("dimensions", title, [f"{dims} dimensions are too many to draw."])
    names = viz.names.drawable(run.classes)
    pictures = []
    for grid, label in zip(perturbed.reconstructions, labels.tolist(), strict=True):
        drawing = viz.perturbations(
            grid, perturbed.offsets, title=f"class capsule {names[label]!r}"
        )
        alt = (
            f"Drawings of an image of class {run.classes[label]}, a row for each of its {dims} pose dimensions, moved "
            f"from −{SPAN} to +{SPAN}."
        )
        pictures.append(picture(drawing, alt))
    about = (
        f"One test image a class; in each row one dimension of its class capsule is moved from −{SPAN} to +{SPAN}, and "
        "the decoder draws what comes out. The framed column is the capsule as it is."
    )
    if len(indices) < len(examples):
        about += f" Shown are {len(indices)} of {len(examples)} classes."
    return Section("dimensions", title, [about, pictures])


@register_section()
def maps(run: EvaluatedRun) -> ReportItem | None:
    """Where on the image the votes for the winning class come from."""
    if not (run.has_classes and run.task.spec.pose):
        return None
    from torchcaps import viz

    title = "Where the votes come from"
    labels = run.labels
    per_class = max(1, MAPS // (2 * len(run.classes)))
    indices = evenly(example_indices(labels[:, 0], per_class, 0), MAPS)
    images = run.images.float_images(indices)
    try:
        result = evaluation.coupling_maps(run.task.model, images)
    except ValueError as error:
        return ReportItem("maps", title, f"They cannot be drawn for this model: {error}.")
    winner = result.shown.unsqueeze(1)
    is_right = (labels[indices] == winner).any(dim=1)
    drawing = viz.coupling_map(
        images,
        result.maps,
        torch.where(is_right, result.shown, labels[indices, 0]),
        shown=result.shown,
        lengths=result.activations.gather(1, winner).squeeze(1),
        classes=viz.names.drawable(run.classes),
    )
    rows, columns = result.positions.shape[1:]
    about = (
        "For the class capsule that wins: what each capsule below gives to it, coupling × strength of its vote × "
        f"agreement of the vote with the winner's pose, summed over capsule types at each of "
        f"{columns}\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}{rows} "
        "positions and spread over the pixels that a position sees. Each map has its own scale."
    )
    alt = f"{len(indices)} test images above the same with a map of where the votes for their winning class come from."
    return ReportItem("maps", title, about, drawing, alt)


@register_section()
def routing(run: EvaluatedRun) -> Section | None:
    """What routing does in this model, in sentences."""
    if not (run.num_diagnosed and run.has_classes and run.task.spec.pose):
        return None
    from torchcaps import viz

    try:
        if run.is_multilabel:
            raise ValueError("its measures need one class an image")
        diagnosis = evaluation.diagnose(run.task.model, run.images, count=run.num_diagnosed, seed=0)
    except ValueError as error:
        return Section("routing", "Routing", [f"It cannot be measured for this run: {error}."])
    about = (
        f"Measured on {diagnosis.num_samples} test images, {percent(diagnosis.accuracy)} of which are right. "
        "So few images tell large effects from none, not small ones. How each figure is defined "
        "stands in the documentation, under diagnostics."
    )
    alt = "Four panels: coupling entropy, activations by layer, share of capsules out of use, accuracy without routing."
    blocks: list[Block] = [about, *verdicts(diagnosis), picture(viz.diagnosis(diagnosis), alt)]
    return Section("routing", "Routing", blocks)


def verdicts(diagnosis: Diagnosis) -> list[Table]:
    """Every measure with its sentence, for the whole model and then layer by layer."""
    parts: dict[str, list[tuple[str, str]]] = {}
    for key, sentence in diagnosis.verdicts().items():
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
