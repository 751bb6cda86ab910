"""Every random choice of a training, each from (seed, step) or (seed, epoch) alone: there is no state to save."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from torchcaps.data import ImageSet, affine, flip, holdout, shift
from torchcaps.errors import DataError
from torchcaps.training.config import TrainConfig


def augment(images: Tensor, config: TrainConfig, step: int) -> Tensor:
    """The images `[batch, channels, height, width]` of step `step`, moved, mirrored, turned and zoomed at random."""
    generator = torch.Generator().manual_seed(_seed(config, step, stream=0))
    if config.shift:
        images = shift(images, config.shift, generator=generator)
    if config.flip:
        images = flip(images, generator=generator)
    if config.degrees or config.zoom:
        scale = (1 - config.zoom, 1 + config.zoom)
        images = affine(images, degrees=config.degrees, scale=scale, generator=generator)
    return images.contiguous(memory_format=torch.channels_last)


def order(config: TrainConfig, epoch: int, count: int) -> Tensor:
    """In which order epoch `epoch` takes its `count` images."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(_seed(config, epoch, stream=1)))


def split(images: ImageSet, config: TrainConfig, device: torch.device) -> tuple[ImageSet, ImageSet]:
    """Images to train on and to validate with, whole on the device.

    Raises:
        DataError: if one of them would be empty, or they do not fit on the device.
    """
    count = int(config.holdout) if config.holdout >= 1 else config.holdout
    kept, held = holdout(images.labels, count, config.seed)
    return _on_device(images.subset(kept), device), _on_device(images.subset(held), device)


def _seed(config: TrainConfig, index: int, stream: int) -> int:
    """A seed for one step or epoch: 32 bits, for torch's generator on the CPU looks at no more."""
    digest = hashlib.blake2b(f"{config.seed} {stream} {index}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")


def _on_device(images: ImageSet, device: torch.device) -> ImageSet:
    try:
        return ImageSet(images.images.to(device), images.labels.to(device), images.classes, images.name)
    except torch.OutOfMemoryError as error:
        raise DataError(f"{images.name}: its {images.images.nbytes / 2**20:.0f} MB do not fit on {device}") from error
