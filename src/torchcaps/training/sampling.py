"""Every random choice of a training, each from (seed, step) or (seed, epoch) alone: there is no state to save."""

import hashlib

import torch
from torch import Tensor

from torchcaps.data import ImageSet, few_labels
from torchcaps.errors import DataError
from torchcaps.settings import TrainConfig


def order(config: TrainConfig, epoch: int, count: int) -> Tensor:
    """Which of `count` images epoch `epoch` takes, in its order."""
    generator = torch.Generator().manual_seed(chance(config, epoch, "1"))
    size = config.data.epoch_size or count
    rounds = [torch.randperm(count, generator=generator) for _ in range(0, size, count)]
    return torch.cat(rounds)[:size]


def chance(config: TrainConfig, index: int, stream: str = "0") -> int:
    """A seed for one step or epoch: 32 bits, for torch's generator on the CPU looks at no more. The stream "0" is for
    what a batch is made of, "1" for the order of an epoch, "2" for what a model drops out."""
    digest = hashlib.blake2b(f"{config.run.seed} {stream} {index}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")


def split(images: ImageSet, config: TrainConfig, device: torch.device) -> tuple[ImageSet, ImageSet]:
    """Images to train on and to validate with, whole on the device; the latter as the model sees them. DataError if one
    of them would be empty, or they do not fit on the device."""
    data = config.data
    count = int(data.holdout) if data.holdout >= 1 else data.holdout
    kept, held = images.train_val_split(count, config.run.seed)
    if data.per_class is not None:
        kept = kept.subset(few_labels(kept.labels, data.per_class, config.run.seed))
    return on_device(kept, device), on_device(cropped(held, data.crop), device)


def cropped(images: ImageSet, crop: int | None) -> ImageSet:
    """The middle `crop` × `crop` pixels of every image; the set itself where `crop` is None."""
    return images if crop is None else images.cropped(crop)


def on_device(images: ImageSet, device: torch.device) -> ImageSet:
    """The set on a device; DataError where it does not fit."""
    try:
        return images.to(device)
    except torch.OutOfMemoryError as error:
        raise DataError(
            f"{images.name}: its {images.images.nbytes / 2**20:.0f} MB do not fit on {device}"
        ) from error
