"""Which images a training takes: the split for validation, the order of an epoch, its batches.

The loop takes its steps from `DatasetBatches` or `LoaderBatches`, and knows nothing else of the
training images. Both serve an epoch from any step on, in the same order each time, so that a run
continues bit for bit. Every epoch has equally many steps.

Every random choice comes from (seed, step) or (seed, epoch) alone, so that there is no state of
random generators to save. `step_seed` makes such a seed. What is chosen in the same step for
different purposes has different *streams* of random numbers, whose names go into the seed.
"""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.utils._pytree import tree_map_only

from torchcaps.data import Batch, Dataset, DiskDataset, few_labels, load_dataset, stratified_folds
from torchcaps.data.classes import first_labels
from torchcaps.data.dataset import select_targets
from torchcaps.data.files import default_workers
from torchcaps.distributed import current
from torchcaps.errors import ArgumentError, MissingSplitError, check_range
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task
from torchcaps.transfer import device_of, to_device

DEFAULT_HOLDOUT = 0.1  # share of the training images that is held out

# Names of the streams.
BATCH = "0"  # random changes of the images of a batch
ORDER = "1"  # the order of the images of an epoch
DROPOUT = "2"  # what a model drops out
SAMPLES = "3"  # random changes that a data set of the caller makes of its samples
ITEMS = "4"  # items that a set makes anew for a batch


class Rows(NamedTuple):
    """A batch whose items are on the device already: the host has their indices alone.

    Attributes:
        indices: `[batch]` rows of the data set, on the CPU.
    """

    indices: Tensor


class DatasetBatches:
    """The batches of a data set, in the order of (seed, epoch).

    Args:
        images: to train on.
        task: names the targets; a last batch of fewer images than its model takes joins the one
            before it.
        config: has the seed, and the number of images of an epoch and of a batch.
    """

    def __init__(self, images: Dataset, task: Task, config: TrainConfig) -> None:
        self.images = images
        self.task = task
        self.config = config
        self.generator = Generator()  # of the items that a set makes anew

    def steps(self, epoch: int) -> int:
        """Number of steps of an epoch, which counts from 0."""
        return len(self._indices(epoch))

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch | Rows]:
        """What `load` takes for each step of an epoch, of all ranks together.

        Args:
            number: of the epoch, counted from 0.
            start: number of steps that are left out at its beginning, because they are done.
        """
        index_batches = self._indices(number)[start:]
        if not isinstance(self.images, DiskDataset):
            yield from map(Rows, index_batches)
            return
        targets = select_targets(self.images, self.task.targets)
        yield from self.images.batches(index_batches, targets, shard=current().padded_shard)

    def seed(self, step: int) -> None:
        """Let the next `load` draw the items of a step, which counts from 0."""
        self.generator.manual_seed(step_seed(self.config, step, ITEMS))

    def load(self, item: Batch | Rows) -> Batch:
        """The batch of a step, on the device of the model; the host reads nothing of it.

        Args:
            item: from `epoch`.
        """
        device = device_of(self.task.model)
        if isinstance(item, Batch):
            return tree_map_only(Tensor, lambda tensor: to_device(tensor, device), item)
        rows = to_device(item.indices, self.images.inputs.device)
        [batch] = self.images.batches(
            [rows], select_targets(self.images, self.task.targets), [self.generator]
        )
        return batch.to(device)

    def _indices(self, epoch: int) -> list[Tensor]:
        """Indices `[samples]` of the images of each step of an epoch."""
        order = epoch_permutation(self.config, epoch, self.images.labels)
        images_per_step = (self.config.training.batch_size or 1) * self.config.optimizer.accumulate
        return split_batches(order, images_per_step, self.task.spec.smallest_batch)


def epoch_permutation(config: TrainConfig, epoch: int, labels: Tensor) -> Tensor:
    """Indices of the images that an epoch takes, in its order.

    Args:
        config: has the seed; `epoch_size`, the number of images of an epoch (None for all); and
            `balance`, whether all classes are equally frequent.
        epoch: its number, counted from 0.
        labels: `[n]` of the training images; with `balance`, a class each.

    Returns:
        `[epoch_size]` integers on the CPU.
    """
    generator = Generator().manual_seed(step_seed(config, epoch, ORDER))
    num_images = len(labels)
    epoch_size = config.data.epoch_size or num_images
    if not config.data.balance:
        return repeated_permutation(num_images, epoch_size, generator)

    labels = labels.cpu()
    classes, images_per_class = labels.unique(return_counts=True)
    members = labels.argsort(stable=True).split(images_per_class.tolist())
    # The class of each image of the epoch. Which classes have one image more differs by the epoch.
    class_order = repeated_permutation(len(classes), epoch_size, generator)
    order = torch.empty_like(class_order)
    for index, class_members in enumerate(members):
        is_class = class_order == index
        order[is_class] = class_members[
            repeated_permutation(len(class_members), int(is_class.sum()), generator)
        ]
    return order


def repeated_permutation(size: int, count: int, generator: Generator) -> Tensor:
    """`[count]` indices below `size`: all of them in random order, and again in another one."""
    permutations = [torch.arange(0)]
    for _ in range(0, count, size):
        permutations.append(torch.randperm(size, generator=generator))
    return torch.cat(permutations)[:count]


def split_batches(order: Tensor, batch_size: int, smallest: int) -> list[Tensor]:
    """Divide the images of an epoch into batches.

    Args:
        order: `[n]` indices of the images.
        batch_size: number of images of a batch.
        smallest: a last batch of fewer images joins the one before it.

    Returns:
        The indices of each batch.
    """
    batches = list(order.split(batch_size))
    if len(batches[-1]) < smallest and len(batches) > 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def step_seed(config: TrainConfig, index: int, stream: str = BATCH) -> int:
    """A seed of 32 bits for one step or epoch; torch's generator on the CPU uses no more.

    Args:
        config: has the seed of the run.
        index: number of the step or epoch, counted from 0.
        stream: name of the stream, such as `BATCH`.
    """
    text = f"{config.training.seed} {stream} {index}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")


def select_fold(images: Dataset, config: TrainConfig, *, is_tested: bool) -> Dataset:
    """The training images of the fold of a run, which it is tested on, or all others.

    Args:
        images: all training images. A run without folds trains on all of them.
        config: of the run.
        is_tested: whether those of the fold are taken.

    Raises:
        ArgumentError: only one of the settings is there, or there is no such fold.
    """
    settings = config.data
    if not is_tested and settings.folds is None and settings.fold is None:
        return images
    if settings.folds is None or settings.fold is None:
        raise ArgumentError(
            "fold",
            f"expected the numbers of folds and of one fold, got {settings.folds} and "
            f"{settings.fold}; cross_validate trains for all",
        )
    check_range("fold", settings.fold, low=1, high=settings.folds)
    folds = stratified_folds(
        first_labels(images.labels), settings.folds, config.training.seed, groups=images.groups
    )
    rows = ((folds == settings.fold - 1) == is_tested).nonzero().flatten()
    return images.subset(rows)


def load_images(config: TrainConfig, split: str) -> Dataset:
    """One split of the data set of a run, read as the run says.

    Args:
        config: of the run.
        split: "train", "test" or "val".
    """
    settings = config.data
    workers = settings.workers
    return load_dataset(
        settings.name,
        split,
        settings.root,
        img_size=settings.img_size,
        max_bytes=settings.max_bytes,
        storage=settings.storage,
        workers=default_workers(current().world_size) if workers is None else workers,
        **settings.options,
    )


def read_images(config: TrainConfig) -> tuple[TrainConfig, Dataset, Dataset]:
    """Read the images of a run.

    Args:
        config: of the run.

    Returns:
        The configuration, in which `holdout` is None only where the official validation split is
        used; the images to train on, with a note on the split; and those to validate with.

    Raises:
        DataError: they cannot be read, or one of the two sets would be empty.
    """
    images = load_images(config, "train")
    official_val = None
    if config.data.holdout is None and config.data.folds is None:  # these come first
        with suppress(MissingSplitError):
            official_val = load_images(config, "val")
    train_images, val_images = split(images, config, official_val)
    if official_val is None:
        return config.filled({"holdout": DEFAULT_HOLDOUT}), train_images, val_images
    note = (
        f"{images.name}: validation with its official split of {len(val_images):,} images; "
        "give holdout (--holdout) to hold out training images instead"
    )
    return config, replace(train_images, notes=(*images.notes, note)), val_images


def split(
    images: Dataset, config: TrainConfig, val_images: Dataset | None = None
) -> tuple[Dataset, Dataset]:
    """Images to train on and images to validate with.

    Images to validate with are as the model sees them: where the run crops, the middle of each.
    Images to train on are cropped at random in each step.

    Args:
        images: all training images. Those of the fold of the run are left out.
        config: has the seed; `holdout`, a share below 1 or a number of images to validate with;
            `per_class`, the number of images of each class to train on, None for all; and `crop`.
        val_images: images to validate with, instead of a part of `images`.

    Raises:
        DataError: one of the two sets would be empty.
    """
    seed = config.training.seed
    if val_images is None:
        images = select_fold(images, config, is_tested=False)
        images, val_images = images.train_val_split(holdout_amount(config), seed)
    if config.data.per_class:
        images = images.subset(few_labels(images.labels, config.data.per_class, seed))
    return images, cropped(val_images, config.data.crop)


def holdout_amount(config: TrainConfig) -> float:
    """What to hold out: an int is a number of images, a float a share."""
    holdout = config.data.holdout or DEFAULT_HOLDOUT
    return int(holdout) if holdout >= 1 else holdout


def cropped(images: Dataset, crop: int | None) -> Dataset:
    """The middle `crop` x `crop` pixels of every image; the set itself where `crop` is None."""
    if crop and "size" in images.targets:
        raise ArgumentError("crop", f"expected None for images of several sizes, got {crop}")
    return images.cropped(crop) if crop else images
