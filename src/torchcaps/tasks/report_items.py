"""What is shown of models that tell classes apart: figures with their words, for plots and reports."""

import torch
from torch import Tensor, nn

from torchcaps.data import ImageSet
from torchcaps.evaluation import (
    Evaluation,
    example_indices,
    match_segments,
    reconstructions,
    segment,
)
from torchcaps.tasks._base import ReportItem
from torchcaps.types import ModelSpec, spec_of
from torchcaps.words import percent

EXAMPLES, PAIRS, OVERLAPS = 12, 40, 24
CONFUSIONS, MOST_ROWS = 10, 200  # rows of tables


def classified(model: nn.Module, found: Evaluation, images: ImageSet) -> list[ReportItem]:
    """Confusion matrix, accuracy by class, calibration, examples and, with a decoder, reconstructions."""
    from torchcaps import viz

    shown = example_indices(found.labels, per_class=2, seed=0)
    some = evenly(shown, EXAMPLES)
    names, about = (
        viz.names.drawable(found.classes),
        "Test images and the activations of their classes.",
    )
    bars = viz.activation_bars(
        images.float_images(some), found.activations[some], found.labels[some], classes=names
    )
    alt = f"{len(some)} test images with bars for their most active classes."
    examples = ReportItem("activations", "Examples", about, bars, alt)
    report_items = [confusions(found), by_class(found), calibrated(found, spec_of(model)), examples]
    return [
        *report_items,
        *([drawings(model, images, evenly(shown, PAIRS))] if spec_of(model).decoder else []),
    ]


def confusions(found: Evaluation) -> ReportItem:
    """The confusion matrix, and which classes are taken for which most often."""
    from torchcaps import viz

    names, drawn = found.classes, viz.names.drawable(found.classes)
    counts, places = (
        (found.confusion - found.confusion.diag().diag())
        .flatten()
        .sort(descending=True, stable=True)
    )
    pairs = [
        (int(n), *divmod(int(place), len(names)))
        for n, place in zip(counts[:CONFUSIONS], places[:CONFUSIONS], strict=True)
        if n
    ]
    rows = tuple(
        (names[true], names[taken], f"{n:,}", percent(n / int(found.confusion[true].sum())))
        for n, true, taken in pairs
    )
    about = "Rows are true classes, columns what they were taken for."
    about += (
        " The most frequent confusions are listed below it."
        if rows
        else " No image was taken for another class."
    )
    if drawn != list(names):
        about += " Where a name cannot be drawn in a picture, it says the class's number in the table below."
    return ReportItem(
        "confusion_matrix",
        "Confusion matrix",
        about,
        viz.confusion_matrix(found.confusion, drawn),
        f"Confusion matrix of {len(names)} classes: {int(found.confusion.trace()):,} of {found.num_samples:,} images "
        "on its diagonal are right.",
        ("True class", "Taken for", "Images", "Of the true class") if rows else (),
        rows,
    )


def by_class(found: Evaluation) -> ReportItem:
    """Accuracy and precision of each class; of very many, a table of the least accurate."""
    from torchcaps import viz

    shares, counts = (
        [row["accuracy"] for row in found.per_class],
        [row["count"] for row in found.per_class],
    )
    least = sorted(range(len(shares)), key=lambda k: (shares[k] is None, shares[k] or 0.0))[
        :MOST_ROWS
    ]
    rows = tuple(
        (
            r["name"],
            str(k),
            percent(r["accuracy"]),
            f"{r['correct']:,}",
            f"{r['count']:,}",
            percent(r["precision"]),
        )
        for k, r in enumerate(found.per_class)
        if k in least
    )
    listed = (
        ""
        if len(rows) == len(shares)
        else f" Listed are the {len(rows)} least accurate of {len(shares)} classes."
    )
    return ReportItem(
        "per_class",
        "Class by class",
        "Accuracy is the share of the images of a class that are recognized; precision is the share of the images "
        f"taken for it that are of it.{listed}",
        viz.per_class_bars(shares, viz.names.drawable(found.classes), counts),
        "A bar for the accuracy of each class.",
        ("Class", "Number", "Accuracy", "Right", "Images", "Precision"),
        rows,
    )


def calibrated(found: Evaluation, spec: ModelSpec) -> ReportItem:
    """Whether activations can be read as confidence."""
    from torchcaps import viz

    errors, kind = found.calibration, "length" if spec.activation == "length" else "activation"
    about = "A calibrated model is right in 80 % of the cases in which it is 80 % sure. "
    about += (
        f"The {kind} of a capsule is no probability, so both readings in use are shown: the largest {kind} divided by "
        f"the sum of all, and as it is. The expected calibration error is {percent(errors.normalized.error)} for the "
        f"first and {percent(errors.length.error)} for the second; 0 would be perfect."
        if spec.pose and not spec.logits
        else f"The expected calibration error of its largest output is {percent(errors.length.error)}; 0 would be "
        "perfect."
    )
    return ReportItem(
        "calibration",
        "Calibration",
        about,
        viz.calibration(found.to_dict()["calibration"]),
        "Reliability diagrams: accuracy by confidence, over the number of images at each confidence.",
    )


def drawings(model: nn.Module, images: ImageSet, some: Tensor) -> ReportItem:
    """Test images above what the decoder draws from the pose of the most active capsule alone."""
    from torchcaps import viz

    shown, labels = images.float_images(some), images.labels[some].cpu()
    drawn, names = reconstructions(model, shown), viz.names.drawable(images.classes)
    error = float((shown.cpu() - drawn.images).square().mean())
    return ReportItem(
        "reconstructions",
        "Reconstructions",
        "What the decoder draws from the pose of the most active capsule alone. Mean squared error per value of a "
        f"pixel, over the images shown: {error:.4f}.",
        viz.reconstructions(
            shown, drawn.images, labels, predictions=drawn.predictions, classes=names
        ),
        f"{len(some)} test images above what the decoder draws of them.",
    )


def overlaps(model: nn.Module, images: ImageSet) -> ReportItem:
    """Images of two classes, and what the decoder draws from their two most active capsules, one by one."""
    from torchcaps import viz

    some = evenly(torch.arange(len(images)), OVERLAPS)
    shown, labels = images.float_images(some), images.labels[some].cpu()
    drawn, names = match_segments(segment(model, shown), labels), viz.names.drawable(images.classes)
    return ReportItem(
        "overlaps",
        "Reconstructions",
        "What the decoder draws from the two most active capsules of each image, one at a time: the first in magenta, "
        "the second in green, white where both are.",
        viz.overlaps(
            shown, drawn.images, labels, shown=drawn.shown, lengths=drawn.lengths, classes=names
        ),
        f"{len(some)} images of two overlapping classes, and what the decoder draws of each class alone.",
    )


def evenly(indices: Tensor, most: int) -> Tensor:
    """At most `most` of these, spread over all of them in their order."""
    return indices[torch.linspace(0, len(indices) - 1, min(most, len(indices))).round().long()]
