"""Every random choice of a training, from (seed, step) or (seed, epoch) alone.

There is no state of random generators to save.
"""

import hashlib

import torch
from torch import Tensor

from torchcaps.data import ImageSet, few_labels
from torchcaps.settings import TrainConfig

# Streams of random numbers: what a batch is made of, the order of an epoch, what a model drops out.
BATCH = "0"
ORDER = "1"
DROPOUT = "2"


def epoch_permutation(config: TrainConfig, epoch: int, num_images: int) -> Tensor:
    """Indices of the images that an epoch takes, in its order.

    Args:
        config: with the seed and `epoch_size`.
        epoch: counted from 0.
        num_images: of the training set. An epoch of more takes all of them again.
    """
    generator = torch.Generator().manual_seed(step_seed(config, epoch, ORDER))
    size = config.data.epoch_size or num_images
    rounds = []
    for _ in range(0, size, num_images):
        rounds.append(torch.randperm(num_images, generator=generator))
    return torch.cat(rounds)[:size]


def split_batches(order: Tensor, batch_size: int, smallest: int = 1) -> list[Tensor]:
    """The images of an epoch in batches.

    Args:
        order: indices of the images.
        batch_size: images of a batch.
        smallest: a last batch of fewer images joins the one before it.
    """
    batches = list(order.split(batch_size))
    if len(batches[-1]) < smallest and len(batches) > 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def step_seed(config: TrainConfig, index: int, stream: str = BATCH) -> int:
    """A seed of 32 bits for one step or epoch; torch's generator on the CPU looks at no more.

    Args:
        config: with the seed of the run.
        index: of the step or epoch.
        stream: what is drawn; see `BATCH`.
    """
    text = f"{config.training.seed} {stream} {index}"
    digest = hashlib.blake2b(text.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")


def split(images: ImageSet, config: TrainConfig, device: torch.device) -> tuple[ImageSet, ImageSet]:
    """Images to train on and to validate with, on the device.

    The latter are as the model sees them: the middle of each, where there is a crop.

    Raises:
        DataError: one of them would be empty.
    """
    data = config.data
    seed = config.training.seed
    holdout = int(data.holdout) if data.holdout >= 1 else data.holdout
    train_images, val_images = images.train_val_split(holdout, seed)
    if data.per_class is not None:
        train_images = train_images.subset(few_labels(train_images.labels, data.per_class, seed))
    return train_images.to(device), cropped(val_images, data.crop).to(device)


def cropped(images: ImageSet, crop: int | None) -> ImageSet:
    """The middle `crop` x `crop` pixels of every image; the set itself where `crop` is None."""
    return images if crop is None else images.cropped(crop)
