"""Recognize a capsule network that does not learn, and say what to change."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

DEAD, SATURATED, CONSTANT = (
    0.05,
    0.9,
    0.01,
)  # the largest length, the mean length, the range of a length
# What brought such networks to learn where it was tried; see docs/decisions.md.
ADVICE = {
    "dead": "train longer, or switch the bias on (option bias=true)",
    "saturated": "lower the learning rate (lr), take smaller batches (batch_size), or clip the gradient (clip 0.1)",
}
NAMED = 5  # silent classes that a warning names


def plateau(
    classes: int, present: float = 0.9, absent: float = 0.1, down_weight: float = 0.5
) -> float:
    """Margin loss of the best constant length: no class information. 0.5236 for ten classes, 0.213 for two."""
    a = down_weight * (classes - 1)
    return (present - absent) ** 2 * a / (1 + a)


def collapse_state(activation: Float[Tensor, "n classes"]) -> str | None:
    """ "dead" when every length is below 0.05, "saturated" when their mean is above 0.9, else None.

    No network that tells classes apart is either: it makes one class long and the others short."""
    if activation.max() < DEAD:
        return "dead"
    return "saturated" if activation.mean() > SATURATED else None


def collapse_warnings(
    activation: Float[Tensor, "n classes"], labels: Int64[Tensor, " n *k"], margin: float
) -> list[str]:
    """What is wrong with these class-capsule lengths on held-out images, one sentence each; empty when nothing is.

    Labels are `[n, k]` where each image shows k classes; `margin` is the mean margin loss."""
    classes = activation.shape[1]
    state = collapse_state(activation)
    if state is not None:
        return [f"every class capsule is {state}: {ADVICE[state]}"]
    if (
        labels.dim() == 1
        and abs(margin - plateau(classes)) < 0.03 * plateau(classes)
        and _blind(activation, labels)
    ):
        return [
            f"no class information after this epoch (margin loss {margin:.3f}, {plateau(classes):.3f} is that of one "
            f"constant length): check that labels fit the images, then {ADVICE['saturated']}"
        ]
    return _silent_classes(activation, labels.flatten())


def _blind(activation: Tensor, labels: Tensor) -> bool:
    """Whether the accuracy is that of one constant length."""
    chance = torch.bincount(labels).max().item() / len(labels)
    accuracy = (activation.argmax(dim=1) == labels).float().mean().item()
    return accuracy < chance + 0.5 * (1 - chance) / activation.shape[1]


def _silent_classes(activation: Tensor, labels: Tensor) -> list[str]:
    """A warning for capsules of classes that occur, but whose length hardly ever moves."""
    occurs = torch.bincount(labels, minlength=activation.shape[1]) > 0
    still = (activation.amax(dim=0) - activation.amin(dim=0) < CONSTANT) & occurs
    if not still.any():
        return []
    which = [str(k) for k in still.nonzero().flatten().tolist()]
    named = ", ".join(which[:NAMED]) + (
        f" and {len(which) - NAMED} more" if len(which) > NAMED else ""
    )
    return [
        f"class capsules {named} never change (dead or saturated): train longer, or {ADVICE['saturated']}"
    ]
