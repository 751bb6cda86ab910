"""Training a transforming auto-encoder: no labels, but pairs of images and the transformation between them.

Geoffrey Hinton, Alex Krizhevsky, Sida Wang, "Transforming Auto-encoders", ICANN 2011. Source AND target are transformed
from the original image; where only the target is, all sources look alike, and poses need not depend on them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from torchcaps.errors import TrainingError, UnknownNameError, check_range, check_shape
from torchcaps.functional import move_by_matrix, reconstruction_loss
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
    shear: float = 0.1,
    generator: Generator,
) -> TransformedPairs:
    """Two random views of each image, and the transformation from the first to the second.

    Args:
        images: `[batch, channels, height, width]` in [0, 1].
        pose: "translation": whole shifts alone; "affine": shear, zoom and rotation about the centre, then a shift.
        shift: largest shift of a view in pixels per axis; two views differ by up to twice as much.
        degrees: largest rotation of an affine view either way.
        zoom: largest change of its size either way, as a fraction up to 0.9.
        shear: largest shear of its rows either way: pixels to the side for each pixel down.
        generator: where the views are drawn from; it may be on the CPU for images elsewhere.

    Returns:
        TransformedPairs: each view is sampled once, from the original; zero fills what comes from outside.

    Raises:
        ValueError: for images of other axes, an unknown pose, or a range below 0.
    """
    check_shape("images", images, AXES)
    check_views(shift, degrees, zoom, shear)
    if pose not in get_args(Pose):
        raise UnknownNameError("pose", pose, get_args(Pose))
    changes = (0.0, 0.0, 0.0) if pose == "translation" else (degrees, zoom, shear)
    first, second = (_random_matrices(images, shift, changes, generator) for _ in range(2))
    views = move_by_matrix(images, first), move_by_matrix(images, second)
    if pose == "translation":
        between = (second - first)[:, :2, 2] * (max(images.shape[2:]) / 2)
        return TransformedPairs(*views, between.round())
    return TransformedPairs(*views, second @ torch.linalg.inv(first))


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
    shear: float = 0.1,
    seed: int = 0,
    listener: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train on fresh pairs in every epoch, by the squared error of the drawn target summed over pixels.

    `run_transforming` does the same from a data set's name, and leaves a run folder that can be resumed.

    Args:
        model: is trained in place, where it is; Adam, with a learning rate that falls to zero along a cosine.
        images: `[n, channels, height, width]` in [0, 1], on the model's device.
        epochs: passes over the images, at least 1.
        batch_size: at least 1.
        lr: learning rate at the start, above 0.
        shift: see `transformed_pairs`, which also says what the next three are.
        degrees: for affine poses.
        zoom: for affine poses.
        shear: for affine poses.
        seed: of the order and the pairs; the model's weights are the caller's.
        listener: called with the number of epochs done and the last one's loss.

    Returns:
        The mean loss of each epoch.

    Raises:
        ValueError: for a setting out of range. TrainingError: when the loss becomes non-finite.
    """
    views = {"shift": shift, "degrees": degrees, "zoom": zoom, "shear": shear}
    steps = TransformingSteps(model, images, epochs=epochs, batch_size=batch_size, lr=lr, views=views, seed=seed)
    losses: list[float] = []
    for epoch in range(epochs):
        total = sum(loss * count for loss, count in map(steps.run, steps.of_epoch(epoch)))
        losses.append(total / len(images))
        if listener is not None:
            listener(epoch + 1, losses[-1])
    model.eval()
    return losses


class TransformingSteps:
    """The training steps of a transforming auto-encoder, each of which depends on (seed, step) alone.

    So there is no state of random generators to keep: weights, the optimiser's state and the number of the next step
    are all that a training needs to be continued bit for bit. The arguments are those of `train_transforming`.

    Attributes:
        optimiser: over all parameters of the model.
        total: steps in all.
    """

    def __init__(
        self, model: TransformingAutoencoder, images: Images, *, epochs: int, batch_size: int, lr: float,
        views: Mapping[str, Any], seed: int,
    ) -> None:  # fmt: skip
        for name, value in (("epochs", epochs), ("batch_size", batch_size), ("number of images", len(images))):
            check_range(name, value, low=1)
        if not (lr > 0 and math.isfinite(lr)):
            raise ValueError(f"lr: expected a number above 0, got {lr}")
        check_views(**views)
        self.model, self.images, self.views, self.seed, self.lr = model, images, views, seed, lr
        self.batch_size, self.per_epoch = batch_size, math.ceil(len(images) / batch_size)
        self.total = epochs * self.per_epoch
        self.optimiser = torch.optim.Adam(model.parameters(), lr=lr, fused=images.device.type in ("cpu", "cuda"))
        self._order = (-1, torch.empty(0, dtype=torch.long))

    def of_epoch(self, epoch: int) -> range:
        """Numbers of the steps of epoch `epoch`, counted from 0."""
        return range(epoch * self.per_epoch, (epoch + 1) * self.per_epoch)

    def run(self, step: int) -> tuple[float, int]:
        """Run step `step`, counted from 0; its mean loss and its number of images.

        Raises:
            TrainingError: when the loss is not finite; the weights are then as they were.
        """
        epoch, place = divmod(step, self.per_epoch)
        batch = self._images_of(epoch)[place * self.batch_size : (place + 1) * self.batch_size]
        generator = self._generator("pairs", step)
        pairs = transformed_pairs(
            self.images[batch.to(self.images.device)], self.model.pose, generator=generator, **self.views
        )
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr * 0.5 * (1 + math.cos(math.pi * step / self.total))
        self.model.train()
        self.optimiser.zero_grad(set_to_none=True)
        loss = reconstruction_loss(self.model(pairs.source, pairs.transformation), pairs.target)
        value = loss.item()
        if not math.isfinite(value):
            raise TrainingError(f"the loss became {value} in epoch {epoch + 1}; lower the learning rate")
        loss.backward()
        self.optimiser.step()
        return value, len(batch)

    def _images_of(self, epoch: int) -> Tensor:
        """Which images epoch `epoch` takes, in its order."""
        if self._order[0] != epoch:
            self._order = epoch, torch.randperm(len(self.images), generator=self._generator("order", epoch))
        return self._order[1]

    def _generator(self, stream: str, index: int) -> Generator:
        """Seeded with 32 bits, for torch's generator on the CPU looks at no more."""
        digest = hashlib.blake2b(f"{self.seed} {stream} {index}".encode(), digest_size=4).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "big"))


def check_views(shift: int, degrees: float, zoom: float, shear: float) -> None:
    """Raise ValueError for a range of views that is negative, or a zoom that leaves nothing."""
    check_range("shift", shift, low=0)
    check_range("degrees", degrees, low=0)
    check_range("zoom", zoom, low=0, high=0.9)
    check_range("shear", shear, low=0)


def _random_matrices(
    images: Tensor, shift: int, changes: tuple[float, float, float], generator: Generator
) -> Float[Tensor, "batch 3 3"]:
    """`[batch, 3, 3]`: shear, zoom and rotation drawn uniformly, then a shift by whole pixels."""
    degrees, zoom, shear = changes
    count, place = len(images), generator.device
    moves = torch.randint(-shift, shift + 1, (count, 2), generator=generator, device=place)
    turn, size, slant = 2 * torch.rand(3, count, generator=generator, device=place) - 1
    turn, size, slant = turn * math.radians(degrees), 1 + size * zoom, slant * shear
    cos, sin = size * turn.cos(), size * turn.sin()
    matrices = torch.eye(3, device=place).repeat(count, 1, 1)
    matrices[:, 0, 0], matrices[:, 0, 1] = cos, slant * cos - sin
    matrices[:, 1, 0], matrices[:, 1, 1] = sin, slant * sin + cos
    matrices[:, :2, 2] = moves * (2 / max(images.shape[2:]))
    return matrices.to(images)
