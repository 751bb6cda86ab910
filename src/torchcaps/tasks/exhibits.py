"""What is shown of models that tell classes apart: figures with their words, for plots and reports."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchcaps.data import ImageSet
from torchcaps.evaluation import Evaluation, example_indices, match_segments, reconstructions, segment
from torchcaps.tasks._base import Exhibit
from torchcaps.types import spec_of

EXAMPLES, PAIRS, OVERLAPS = 12, 40, 24


def classified(model: nn.Module, found: Evaluation, images: ImageSet) -> list[Exhibit]:
    """Confusion matrix, accuracy by class, calibration, examples and, with a decoder, reconstructions."""
    from torchcaps import viz

    names, counts = viz.drawable(found.classes), [row["count"] for row in found.per_class]
    right, total = int(found.confusion.trace()), found.num_samples
    shown = example_indices(found.labels, per_class=2, seed=0)
    some = evenly(shown, EXAMPLES)
    exhibits = [
        Exhibit(
            "confusion_matrix", "Confusion matrix", "Rows are true classes, columns what they were taken for.",
            viz.confusion_matrix(found.confusion, names),
            f"Confusion matrix of {len(names)} classes: {right:,} of {total:,} images on its diagonal are right.",
        ),
        Exhibit(
            "per_class", "Class by class", "Share of the images of each class that are recognised.",
            viz.per_class_bars([row["accuracy"] for row in found.per_class], names, counts),
            "A bar for the accuracy of each class.",
        ),
        Exhibit(
            "calibration", "Calibration", "A calibrated model is right in 80 % of the cases in which it is 80 % sure.",
            viz.calibration(found.to_dict()["calibration"]),
            "Reliability diagrams: accuracy by confidence, over the number of images at each confidence.",
        ),
        Exhibit(
            "activations", "Examples", "Test images and the activations of their classes.",
            viz.activation_bars(
                images.float_images(some), found.activations[some], found.labels[some], classes=names
            ),
            f"{len(some)} test images with bars for their most active classes.",
        ),
    ]  # fmt: skip
    return [*exhibits, *([drawings(model, images, evenly(shown, PAIRS))] if spec_of(model).decoder else [])]


def drawings(model: nn.Module, images: ImageSet, some: Tensor) -> Exhibit:
    """Test images above what the decoder draws from the pose of the most active capsule alone."""
    from torchcaps import viz

    shown, labels = images.float_images(some), images.labels[some].cpu()
    drawn = reconstructions(model, shown)
    error = float((shown.cpu() - drawn.images).square().mean())
    return Exhibit(
        "reconstructions", "Reconstructions",
        "What the decoder draws from the pose of the most active capsule alone. Mean squared error per value of a "
        f"pixel, over the images shown: {error:.4f}.",
        viz.reconstructions(
            shown, drawn.images, labels, predictions=drawn.predictions, classes=viz.drawable(images.classes)
        ),
        f"{len(some)} test images above what the decoder draws of them.",
    )  # fmt: skip


def overlaps(model: nn.Module, images: ImageSet) -> Exhibit:
    """Images of two classes, and what the decoder draws from their two most active capsules, one by one."""
    from torchcaps import viz

    some = evenly(torch.arange(len(images)), OVERLAPS)
    shown, labels = images.float_images(some), images.labels[some].cpu()
    drawn = match_segments(segment(model, shown), labels)
    return Exhibit(
        "overlaps", "Reconstructions",
        "What the decoder draws from the two most active capsules of each image, one at a time: the first in magenta, "
        "the second in green, white where both are.",
        viz.overlaps(
            shown, drawn.images, labels, shown=drawn.shown, lengths=drawn.lengths,
            classes=viz.drawable(images.classes),
        ),
        f"{len(some)} images of two overlapping classes, and what the decoder draws of each class alone.",
    )  # fmt: skip


def evenly(indices: Tensor, most: int) -> Tensor:
    """At most `most` of these, spread over all of them in their order."""
    return indices[torch.linspace(0, len(indices) - 1, min(most, len(indices))).round().long()]
