"""Figures of models that tell classes apart, with their words, for plots and reports.

The module needs matplotlib.
"""

import torch
from torch import nn

from torchcaps import viz
from torchcaps.data import Dataset
from torchcaps.evaluation import (
    Evaluation,
    example_indices,
    match_segments,
    reconstructions,
    segment,
)
from torchcaps.tasks._base import ReportItem, evenly
from torchcaps.types import ModelSpec, spec_of
from torchcaps.words import join_names, percent, rounded

EXAMPLES = 12
PAIRS = 40
OVERLAPS = 24
CONFUSIONS = 10  # rows of a table
MAX_ROWS = 200


def classified(model: nn.Module, evaluation: Evaluation, images: Dataset) -> list[ReportItem]:
    """Confusions, accuracy by class, calibration, examples; with a decoder, reconstructions."""
    spec = spec_of(model)
    indices = example_indices(evaluation.labels, per_class=2, seed=0)
    shown = evenly(indices, EXAMPLES)
    examples = ReportItem(
        "activations",
        "Examples",
        "Test images and the activations of their classes.",
        viz.activation_bars(
            images.float_images(shown),
            evaluation.activations[shown],
            evaluation.labels[shown],
            classes=evaluation.classes,
        ),
        f"{len(shown)} test images with bars for their most active classes.",
    )
    items = [confusions(evaluation), by_class(evaluation), calibrated(evaluation, spec), examples]
    if spec.decoder:
        indices = evenly(indices, PAIRS)
        pixels = images.float_images(indices)
        outputs = reconstructions(model, pixels)
        error = (pixels.cpu() - outputs.images).square().mean()
        drawings = ReportItem(
            "reconstructions",
            "Reconstructions",
            "What the decoder draws from the pose of the most active capsule alone. Mean squared "
            f"error per value of a pixel, over the images shown: {error:.4f}.",
            viz.reconstructions(
                pixels,
                outputs.images,
                images.labels[indices].cpu(),
                predictions=outputs.predictions,
                classes=images.classes,
            ),
            f"{len(indices)} test images above what the decoder draws of them.",
        )
        items.append(drawings)
    return items


def confusions(evaluation: Evaluation) -> ReportItem:
    """The confusion matrix, and which classes are taken for which most often."""
    classes = evaluation.classes
    counts = evaluation.confusion
    mistakes = counts.clone().fill_diagonal_(0)
    rows = []
    for place in mistakes.flatten().argsort(descending=True, stable=True)[:CONFUSIONS].tolist():
        true, predicted = divmod(place, len(classes))
        count = int(mistakes[true, predicted])
        if count:
            share = percent(count / int(counts[true].sum()))
            rows.append((classes[true], classes[predicted], f"{count:,}", share))
    return ReportItem(
        "confusion_matrix",
        "Confusion matrix",
        "Rows are true classes, columns what they were taken for. The most frequent confusions are "
        "listed below it. In place of a name that cannot be drawn stands the number of the class.",
        viz.confusion_matrix(counts, classes),
        f"Confusion matrix of {len(classes)} classes: {int(counts.trace()):,} of "
        f"{evaluation.num_samples:,} images on its diagonal are right.",
        ("True class", "Taken for", "Images", "Of the true class"),
        rows,
    )


def by_class(evaluation: Evaluation) -> ReportItem:
    """Accuracy and precision of each class; of very many, a table of the least accurate."""
    per_class = evaluation.per_class
    accuracies = [row["accuracy"] for row in per_class]
    # Classes without images come last.
    order = sorted(range(len(per_class)), key=lambda k: (accuracies[k] is None, accuracies[k]))
    rows = []
    for k in sorted(order[:MAX_ROWS]):
        row = per_class[k]
        rows.append(
            (
                row["name"],
                str(k),
                percent(row["accuracy"]),
                f"{row['correct']:,}",
                f"{row['count']:,}",
                percent(row["precision"]),
                rounded(row["f1"]),
                rounded(row["auroc"]),
            )
        )
    return ReportItem(
        "per_class",
        "Class by class",
        "Accuracy is the share of the images of a class that are recognized; precision is the "
        "share of the images taken for it that are of it; F1 is their harmonic mean. AUROC is the "
        "probability that an image of the class has a larger activation of it than another image. "
        f"Never predicted: {join_names(evaluation.never_predicted) or 'none'}. Of more than "
        f"{MAX_ROWS} classes the least accurate are listed.",
        viz.per_class_bars(accuracies, evaluation.classes, [row["count"] for row in per_class]),
        "A bar for the accuracy of each class.",
        ("Class", "Number", "Accuracy", "Right", "Images", "Precision", "F1", "AUROC"),
        rows,
    )


def calibrated(evaluation: Evaluation, spec: ModelSpec) -> ReportItem:
    """Whether activations can be read as confidence."""
    kind = "length" if spec.activation == "length" else "activation"
    text = (
        "A calibrated model is right in 80 % of the cases in which it is 80 % sure. The expected "
        f"calibration error of the largest {kind} is "
        f"{percent(evaluation.calibration.length.error)}; 0 would be perfect."
    )
    if spec.pose and not spec.logits:
        text += (
            f" The {kind} of a capsule is no probability, so it is also divided by the sum of all: "
            f"the error is then {percent(evaluation.calibration.normalized.error)}."
        )
    return ReportItem(
        "calibration",
        "Calibration",
        text,
        viz.calibration(evaluation.to_dict()["calibration"]),
        "Reliability diagrams: accuracy by confidence, over the number of images at each "
        "confidence.",
    )


def overlaps(model: nn.Module, images: Dataset) -> ReportItem:
    """Images of two classes, and what the decoder draws from their two most active capsules."""
    indices = evenly(torch.arange(len(images)), OVERLAPS)
    pixels = images.float_images(indices)
    labels = images.targets["single_label"][indices].cpu()
    segments = match_segments(segment(model, pixels), labels)
    return ReportItem(
        "overlaps",
        "Reconstructions",
        "What the decoder draws from the two most active capsules of each image, one at a time: "
        "the first in magenta, the second in green, white where both are.",
        viz.overlaps(
            pixels,
            segments.images,
            labels,
            selected=segments.selected,
            lengths=segments.lengths,
            classes=images.classes,
        ),
        f"{len(indices)} images of two overlapping classes, and what the decoder draws of each "
        "class alone.",
    )
