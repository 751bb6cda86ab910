"""Every random choice of a training, each from (seed, step) or (seed, epoch) alone: there is no state to save."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import torch
from torch import Tensor

from torchcaps.data import Drawn, ImageSet, affine, centre_crop, few_labels, flip, random_crop, relight, shift
from torchcaps.errors import DataError
from torchcaps.training.config import TrainConfig


def draw(images: ImageSet, batch: Tensor, config: TrainConfig, step: int) -> Drawn:
    """The images `batch` of step `step`, moved, mirrored, turned, zoomed, cropped and lit at random.

    What an image shows alone (`singles`) goes the same way as the image, but for its light.
    """
    generator = torch.Generator().manual_seed(_seed(config, step, stream=0))
    drawn = images.draw(batch, generator=generator)
    if drawn.singles is None:
        return Drawn(_lit(_moved(drawn.images, config, generator), config, generator), drawn.labels)
    count = drawn.singles.shape[1]
    layers = torch.cat([drawn.images, drawn.singles.flatten(1, 2)], dim=1)
    image, *singles = _moved(layers, config, generator).chunk(1 + count, dim=1)
    return Drawn(_lit(image, config, generator), drawn.labels, torch.stack(singles, dim=1))


def _moved(images: Tensor, config: TrainConfig, generator: torch.Generator) -> Tensor:
    if config.shift:
        images = shift(images, config.shift, generator=generator)
    if config.flip:
        images = flip(images, generator=generator)
    if config.degrees or config.zoom:
        scale = (1 - config.zoom, 1 + config.zoom)
        images = affine(images, degrees=config.degrees, scale=scale, generator=generator)
    return images if config.crop is None else random_crop(images, config.crop, generator=generator)


def _lit(images: Tensor, config: TrainConfig, generator: torch.Generator) -> Tensor:
    if config.relight:
        images = relight(images, generator=generator)
    return images.contiguous(memory_format=torch.channels_last)


def order(config: TrainConfig, epoch: int, count: int) -> Tensor:
    """Which of `count` images epoch `epoch` takes, in its order."""
    generator = torch.Generator().manual_seed(_seed(config, epoch, stream=1))
    size = config.epoch_size or count
    rounds = [torch.randperm(count, generator=generator) for _ in range(0, size, count)]
    return torch.cat(rounds)[:size]


def chance(config: TrainConfig, step: int, device: torch.device) -> torch.Generator:
    """What a model draws from in step `step`, for its dropout."""
    return torch.Generator(device).manual_seed(_seed(config, step, stream=2))


def split(images: ImageSet, config: TrainConfig, device: torch.device) -> tuple[ImageSet, ImageSet]:
    """Images to train on and to validate with, whole on the device; the latter as the model sees them.

    Raises:
        DataError: if one of them would be empty, or they do not fit on the device.
    """
    count = int(config.holdout) if config.holdout >= 1 else config.holdout
    kept, held = images.split_off(count, config.seed)
    if config.per_class is not None:
        kept = kept.subset(few_labels(kept.labels, config.per_class, config.seed))
    return _on_device(kept, device), _on_device(cropped(held, config.crop), device)


def cropped(images: ImageSet, crop: int | None) -> ImageSet:
    """The middle `crop` × `crop` pixels of every image; the set itself where `crop` is None."""
    return images if crop is None else replace(images, images=centre_crop(images.images, crop).contiguous())


def _seed(config: TrainConfig, index: int, stream: int) -> int:
    """A seed for one step or epoch: 32 bits, for torch's generator on the CPU looks at no more."""
    digest = hashlib.blake2b(f"{config.seed} {stream} {index}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")


def _on_device(images: ImageSet, device: torch.device) -> ImageSet:
    try:
        return images.to(device)
    except torch.OutOfMemoryError as error:
        raise DataError(f"{images.name}: its {images.images.nbytes / 2**20:.0f} MB do not fit on {device}") from error
