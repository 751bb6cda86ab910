"""What a run takes where its configuration leaves the choice open: rules that learn on any number of images.

The measurements behind the numbers are in docs/decisions.md.
"""

from __future__ import annotations

LARGEST_BATCH, SMALLEST_BATCH = 128, 8
ENOUGH_STEPS = 100  # for which a batch is halved, as long as it is not the smallest
CLIP = 1.0  # norm of the gradient; a capsule network that learns stays below it


def batch_size(images: int) -> int:
    """Images per step of a run that takes `images` images in all: the largest power of two that leaves 100 steps.

    From 8 to 128. Steps, not images, bring a capsule network off the ground.
    """
    size = LARGEST_BATCH
    while size > SMALLEST_BATCH and images < ENOUGH_STEPS * size:
        size //= 2
    return size


def clip(loss: str) -> float:
    """Largest norm of the gradient for a loss of this name: 0 (no limit) for "spread", 1 for the others.

    The first steps of the margin loss have norms of 5 to 30, which Adam would remember for a thousand steps; from then
    on it has 0.4 to 0.6. Large plain networks on few images end at chance on some seeds otherwise.
    """
    return 0.0 if loss == "spread" else CLIP
