"""Classes of very different numbers of images: which score then counts, and which classes go missing."""

from collections.abc import Sequence

from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.data import ImageSet
from torchcaps.words import join_names

MAX_RATIO = 3  # of the images of the largest class to those of the smallest


def imbalance(images: ImageSet) -> str:
    """A sentence where the largest class has more than three times the images of the smallest.

    Args:
        images: to train on, with one class each. A class without images does not count.

    Returns:
        The sentence, which says that the epoch is chosen by balanced accuracy; else "".
    """
    counts = images.labels.bincount().tolist()
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
    activation: Float[Tensor, "n classes"], labels: Int64[Tensor, " n *k"], classes: Sequence[str]
) -> list[str]:
    """A sentence about classes that have held-out images and that no image is taken for.

    Args:
        activation: of all classes.
        labels: `[n]`, or `[n, k]` where each image shows k classes.
        classes: their names.
    """
    num_classes = activation.shape[1]
    targets = labels.view(len(labels), -1)
    predicted = activation.topk(targets.shape[1], dim=1).indices
    num_targets = targets.flatten().bincount(minlength=num_classes)
    num_predicted = predicted.flatten().bincount(minlength=num_classes)
    is_missing = (num_targets > 0) & (num_predicted == 0)
    if not is_missing.any():
        return []
    names = join_names([classes[index] for index in is_missing.nonzero().flatten().tolist()])
    return [
        f"no held-out image was taken for: {names}; train longer, or let small classes count more "
        "(class_weights, balance)"
    ]
