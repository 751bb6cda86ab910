"""Classes of very different numbers of images: which score then counts, and which classes go missing."""

from collections.abc import Sequence

from jaxtyping import Float, Shaped
from torch import Tensor

from torchcaps.data import Dataset
from torchcaps.data.classes import class_counts
from torchcaps.evaluation.accuracy.multilabel import predicted_classes
from torchcaps.words import join_names

MAX_RATIO = 3  # of the images of the largest class to those of the smallest


def imbalance(images: Dataset) -> str:
    """A sentence where the largest class has more than three times the images of the smallest.

    It says that the epoch is chosen by balanced accuracy; else it is "".

    Args:
        images: to train on. A class without images does not count.
    """
    counts = class_counts(images.labels, images.num_classes).tolist()
    smallest = min(count for count in counts if count)
    largest = max(counts)
    if largest <= MAX_RATIO * smallest:
        return ""
    small = images.classes[counts.index(smallest)]
    large = images.classes[counts.index(largest)]
    return (
        f"classes have from {smallest:,} ({small}) to {largest:,} ({large}) images: the epoch is "
        "chosen by balanced accuracy, the mean accuracy of the classes"
    )


def unpredicted_warnings(
    activation: Float[Tensor, "n classes"],
    labels: Shaped[Tensor, " n *classes"],
    classes: Sequence[str],
    advice: str,
) -> list[str]:
    """A sentence about classes that have held-out images and that no image is taken for.

    Args:
        activation: of all classes.
        labels: `[n]`, or 0 and 1 `[n, classes]`.
        classes: their names.
        advice: end of the sentence.
    """
    is_shown = class_counts(labels, activation.shape[1]) > 0
    is_missing = is_shown & ~predicted_classes(activation, labels).any(dim=0)
    names = [classes[index] for index in is_missing.nonzero().flatten().tolist()]
    sentence = f"no held-out image was taken for: {join_names(names)}; train longer{advice}"
    return [sentence] if names else []
