"""Training a transforming auto-encoder: no labels, but pairs of images and the transformation between them.

Geoffrey Hinton, Alex Krizhevsky, Sida Wang, "Transforming Auto-encoders", ICANN 2011. Source AND target are transformed
from the original image; where only the target is, all sources look alike, and poses need not depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor

from torchcaps.errors import TrainingError, UnknownNameError, check_range, check_shape
from torchcaps.functional import reconstruction_loss
from torchcaps.models import TransformedPairs, TransformingAutoencoder
from torchcaps.models.transforming_autoencoder import Pose

Images = Float[Tensor, "batch channels height width"]
AXES = ("batch", "channels", "height", "width")


def transformed_pairs(
    images: Images,
    pose: Pose = "translation",
    *,
    shift: int = 2,
    degrees: float = 20.0,
    zoom: float = 0.15,
    generator: Generator,
) -> TransformedPairs:
    """Two random views of each image, and the transformation from the first to the second.

    Args:
        images: `[batch, channels, height, width]` in [0, 1].
        pose: "translation": whole shifts alone; "affine": rotation and zoom about the centre, then a shift.
        shift: largest shift of a view in pixels per axis; two views differ by up to twice as much.
        degrees: largest rotation of an affine view either way.
        zoom: largest change of its size either way, as a fraction.
        generator: where the views are drawn from; it may be on the CPU for images elsewhere.

    Returns:
        TransformedPairs: each view is sampled once, from the original; zero fills what comes from outside.

    Raises:
        ValueError: for images of other axes, an unknown pose, or a range below 0.
    """
    check_shape("images", images, AXES)
    if pose not in get_args(Pose):
        raise UnknownNameError("pose", pose, get_args(Pose))
    for name, value in (("shift", shift), ("degrees", degrees), ("zoom", zoom)):
        check_range(name, value, low=0)
    turns = (0.0, 0.0) if pose == "translation" else (degrees, zoom)
    first, second = (_random_matrices(images, shift, *turns, generator) for _ in range(2))
    views = transform_images(images, first), transform_images(images, second)
    if pose == "translation":
        between = (second - first)[:, :2, 2] * (max(images.shape[2:]) / 2)
        return TransformedPairs(*views, between.round())
    return TransformedPairs(*views, second @ torch.linalg.inv(first))


def transform_images(images: Images, matrices: Float[Tensor, "batch 3 3"]) -> Images:
    """Move the content of each image by a matrix, bilinearly, with zeros from outside.

    Args:
        images: `[batch, channels, height, width]`, floating.
        matrices: `[batch, 3, 3]`; what was at (x, y) is at `matrix @ (x, y, 1)` afterwards. The origin is the centre,
            x goes to the right, y downwards, and the unit is half of the longer side.
    """
    check_shape("images", images, AXES)
    check_shape("matrices", matrices, ("batch", "rows", "columns"), batch=len(images), rows=3, columns=3)
    height, width = images.shape[2:]
    unit = matrices.new_tensor([width, height, 1.0])
    unit = torch.cat([max(height, width) / unit[:2], unit[2:]])  # from our coordinates to affine_grid's [-1, 1]
    back = torch.linalg.inv(matrices) * unit[:, None] / unit
    grid = F.affine_grid(back[:, :2], list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def train_transforming(
    model: TransformingAutoencoder,
    images: Images,
    *,
    epochs: int = 30,
    batch_size: int = 64,
    lr: float = 2e-3,
    shift: int = 2,
    degrees: float = 20.0,
    zoom: float = 0.15,
    seed: int = 0,
    listener: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train on fresh pairs in every epoch, by the squared error of the drawn target summed over pixels.

    Args:
        model: is trained in place, where it is; Adam, with a learning rate that falls to zero along a cosine.
        images: `[n, channels, height, width]` in [0, 1], on the model's device.
        epochs: passes over the images, at least 1.
        batch_size: at least 1.
        lr: learning rate at the start, above 0.
        shift: see `transformed_pairs`, which also says what the next two are.
        degrees: for affine poses.
        zoom: for affine poses.
        seed: of the order and the pairs; the model's weights are the caller's.
        listener: called with the number of epochs done and the last one's loss.

    Returns:
        The mean loss of each epoch.

    Raises:
        ValueError: for a setting out of range. TrainingError: when the loss becomes non-finite.
    """
    for name, value in (("epochs", epochs), ("batch_size", batch_size)):
        check_range(name, value, low=1)
    if not lr > 0:
        raise ValueError(f"lr: expected a number above 0, got {lr}")
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=lr)
    steps = epochs * math.ceil(len(images) / batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    losses: list[float] = []
    model.train()
    for epoch in range(1, epochs + 1):
        total = 0.0
        for batch in torch.randperm(len(images), generator=generator).split(batch_size):
            pairs = transformed_pairs(
                images[batch.to(images.device)], model.pose, shift=shift, degrees=degrees, zoom=zoom,
                generator=generator,
            )  # fmt: skip
            loss = reconstruction_loss(model(pairs.source, pairs.transformation), pairs.target)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
            total += loss.item() * len(batch)
        losses.append(total / len(images))
        if not math.isfinite(losses[-1]):
            raise TrainingError(f"the loss became {losses[-1]} in epoch {epoch}; lower the learning rate")
        if listener is not None:
            listener(epoch, losses[-1])
    model.eval()
    return losses


def _random_matrices(
    images: Tensor, shift: int, degrees: float, zoom: float, generator: Generator
) -> Float[Tensor, "batch 3 3"]:
    """`[batch, 3, 3]`: rotation and zoom drawn uniformly, then a shift by whole pixels."""
    count, place = len(images), generator.device
    moves = torch.randint(-shift, shift + 1, (count, 2), generator=generator, device=place)
    turn, size = 2 * torch.rand(2, count, generator=generator, device=place) - 1
    turn, size = turn * math.radians(degrees), 1 + size * zoom
    matrices = torch.eye(3, device=place).repeat(count, 1, 1)
    matrices[:, 0, 0] = matrices[:, 1, 1] = size * turn.cos()
    matrices[:, 1, 0] = size * turn.sin()
    matrices[:, 0, 1] = -matrices[:, 1, 0]
    matrices[:, :2, 2] = moves * (2 / max(images.shape[2:]))
    return matrices.to(images)
