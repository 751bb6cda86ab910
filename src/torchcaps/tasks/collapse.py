"""Recognize a capsule network that does not learn or misses classes, and say what to change."""

from collections.abc import Sequence

from jaxtyping import Float, Shaped
from torch import Tensor

from torchcaps.data.classes import class_counts
from torchcaps.evaluation.accuracy.multilabel import predicted_classes
from torchcaps.functional.losses import SATURATED
from torchcaps.words import join_names

DEAD = 0.05  # the largest length
CONSTANT = 0.01  # the range of a length
# What brought such networks to learn where it was tried; see docs/decisions.md.
DEAD_ADVICE = "train longer, or switch the bias on where the model has none (option bias=true)"
SATURATED_ADVICE = (
    "lower the learning rate (lr), take smaller batches (batch_size), "
    "or clip the gradient (clip 0.1)"
)
MAX_NAMES = 5  # of silent classes in a warning


def plateau(classes: int) -> float:
    """Margin loss of the best constant length: no class information.

    It is 0.5236 for ten classes, 0.213 for two. The margins are 0.9 and 0.1, and absent classes
    have half the weight.
    """
    a = 0.5 * (classes - 1)
    return (0.9 - 0.1) ** 2 * a / (1 + a)


def collapse_state(activation: Float[Tensor, "n classes"]) -> str | None:
    """ "dead" when every length is below 0.05, "saturated" when their mean is above 0.9, else None.

    No network that tells classes apart is either: it makes one class long and the others short.
    """
    if activation.max() < DEAD:
        return "dead"
    return "saturated" if activation.mean() > SATURATED else None


def collapse_warnings(
    activation: Float[Tensor, "n classes"], labels: Shaped[Tensor, " n *classes"], margin: float
) -> list[str]:
    """Faults of class capsules on held-out images, one sentence each.

    Args:
        activation: their lengths.
        labels: `[n]`, or 0 and 1 `[n, classes]`.
        margin: the mean margin loss.
    """
    num_classes = activation.shape[1]
    state = collapse_state(activation)
    if state:
        advice = SATURATED_ADVICE if state == "saturated" else DEAD_ADVICE
        return [f"every class capsule is {state}: {advice}"]

    # The loss of one constant length, and the accuracy of one.
    lowest = plateau(num_classes)
    if labels.dim() == 1 and abs(margin - lowest) < 0.03 * lowest:
        chance = labels.bincount().max().item() / len(labels)
        accuracy = (activation.argmax(dim=1) == labels).float().mean().item()
        if accuracy < chance + 0.5 * (1 - chance) / num_classes:
            return [
                f"no class information after this epoch (margin loss {margin:.3f}, {lowest:.3f} is "
                "that of one constant length): check that labels fit the images, then "
                f"{SATURATED_ADVICE}"
            ]

    # Capsules of classes that occur, but whose length hardly ever moves.
    occurs = class_counts(labels, num_classes) > 0
    is_constant = activation.amax(dim=0) - activation.amin(dim=0) < CONSTANT
    silent = (is_constant & occurs).nonzero().flatten().tolist()
    if not silent:
        return []
    return [
        f"class capsules {join_names(list(map(str, silent)), MAX_NAMES)} never change (dead or "
        f"saturated): train longer, or {SATURATED_ADVICE}"
    ]


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
