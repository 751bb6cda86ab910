"""Training on a `Dataset` or a `DataLoader` of the caller, whose own transforms stay in force."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from torchcaps.data import Batch, Dataset, DiskDataset, match_classes
from torchcaps.data.dataset import select_rows
from torchcaps.data.splits import first_labels, stratified_split
from torchcaps.errors import ArgumentError
from torchcaps.evaluation.forward import device_of
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task
from torchcaps.training.inputs import (
    BATCH_SIZE,
    ModelSizes,
    Samples,
    dataset_targets,
    read_loader,
    target_tensors,
    to_batch,
)
from torchcaps.training.sampling import (
    SAMPLES,
    epoch_permutation,
    holdout_amount,
    split_batches,
    step_seed,
)

# What a loader over a part of a data set takes over from the loader of the whole.
KEPT_OPTIONS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "prefetch_factor",
    "persistent_workers",
    "generator",
)
# Settings that the loader of a caller decides.
DECIDED = ("batch_size", "balance", "epoch_size", "workers")


class LoaderData(NamedTuple):
    """A data set or loader, ready to train on.

    Attributes:
        images: the targets of the training samples, whose inputs are read when they are needed.
        val_images: to choose the epoch by, in memory.
        loader: from the task and the configuration to the loader of an epoch, counted from 0.
        note: a sentence where the epoch is not chosen by held-out samples; else empty.
    """

    images: Dataset
    val_images: Dataset
    loader: Callable[[Task, TrainConfig, int], DataLoader[Any]]
    note: str = ""


def loader_data(
    data: Any, validation: Dataset | None, config: TrainConfig, sizes: ModelSizes
) -> LoaderData:
    """Prepare a data set or a loader of the caller.

    A part is held out by class unless `validation` is given. Of a loader with a sampler of its own
    no part can be held out: the epoch is then chosen by training samples.

    Args:
        data: a map-style `Dataset`, or a `DataLoader` of one, whose order and workers are kept.
        validation: to choose the epoch by; its classes are matched by name.
        config: has the seed and the part to hold out.
        sizes: of the model.

    Raises:
        ArgumentError: an iterable data set, samples that are no images with labels, or a setting
            that a loader decides by itself.
        DataError: `validation` has a class that is not trained.
    """
    dataset: Any = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise ArgumentError(
            "data",
            "expected a map-style Dataset with a length, or a DataLoader of one, got an iterable; "
            "a folder of tar shards is read by its path",
        )
    classes, targets = target_tensors(dataset_targets(dataset), num_classes=sizes.num_classes)
    name = type(dataset).__name__
    rows = torch.arange(len(dataset))
    note = ""
    if validation is None:
        labels = [targets[key] for key in ("label", "labels") if key in targets] or [0 * rows]
        train_rows, val_rows = stratified_split(
            first_labels(labels[0]), holdout_amount(config), config.training.seed
        )
        if _can_divide(data):
            rows = train_rows
        else:
            note = (
                "the epoch is chosen by samples that are trained on, because the loader's sampler "
                "is its own; give validation=... to choose it by others"
            )
        held_out = DataLoader(
            Subset(dataset, val_rows.tolist()), batch_size=BATCH_SIZE, **_options(data)
        )
        validation = read_loader(held_out, classes, name)
    validation = match_classes(validation, classes)
    images = DiskDataset(
        Samples(dataset, rows, validation.inputs.shape[1:]),  # type: ignore[arg-type]
        select_rows(targets, rows),
        classes,
        name,
        preprocess=validation.preprocess,
    )

    def loader_of(task: Task, config: TrainConfig, epoch: int) -> DataLoader[Any]:
        if not isinstance(data, DataLoader):
            return _epoch_loader(images, task, config, epoch)
        if len(rows) == len(dataset):
            return data
        return DataLoader(
            Subset(dataset, rows.tolist()),
            batch_size=data.batch_size,
            drop_last=data.drop_last,
            shuffle=isinstance(data.sampler, RandomSampler),
            **_options(data),
        )

    return LoaderData(images, validation, loader_of, note)


def loader_config(data: Any, config: TrainConfig) -> TrainConfig:
    """The configuration with the batch size of a caller's loader.

    Raises:
        ArgumentError: a setting that the loader decides by itself.
    """
    if not isinstance(data, DataLoader):
        return config
    defaults = TrainConfig().flat()
    for name in DECIDED:
        setting = config.flat()[name]
        if setting != defaults[name]:
            raise ArgumentError(
                name, f"expected none beside a DataLoader, which decides it, got {setting}"
            )
    return config if data.batch_size is None else config.updated(batch_size=data.batch_size)


def _can_divide(data: Any) -> bool:
    """Whether a part of the data can be held out: its order is that of the samples, or random."""
    if not isinstance(data, DataLoader):
        return True
    has_own_batches = data.batch_size is None or type(data.batch_sampler) is not BatchSampler
    return not has_own_batches and type(data.sampler) in (RandomSampler, SequentialSampler)


def _options(data: Any) -> dict[str, Any]:
    """Options of a loader over a part of the data set of another one."""
    if not isinstance(data, DataLoader):
        return {}
    return {name: getattr(data, name) for name in KEPT_OPTIONS}


def _epoch_loader(
    images: DiskDataset, task: Task, config: TrainConfig, epoch: int
) -> DataLoader[Any]:
    """Samples of a caller's data set, in the order of (seed, epoch)."""
    samples: Any = images.inputs
    order = samples.rows[epoch_permutation(config, epoch, images.labels)]
    batches = split_batches(order, config.training.batch_size or 1, task.spec.smallest_batch)
    return DataLoader(
        samples.dataset,
        batch_sampler=[batch.tolist() for batch in batches],
        num_workers=config.data.workers or 0,
        generator=torch.Generator().manual_seed(step_seed(config, epoch, SAMPLES)),
    )


class LoaderBatches:
    """The batches of a loader; see `training.batches.BatchSource`.

    A step takes as many batches of the loader as the setting `accumulate` says.

    Args:
        data: from `loader_data`.
        task: names the targets.
        config: of the run.
    """

    def __init__(self, data: LoaderData, task: Task, config: TrainConfig) -> None:
        self.data = data
        self.task = task
        self.config = config

    def steps(self, epoch: int) -> int:
        """Number of steps of an epoch."""
        num_batches = len(self.data.loader(self.task, self.config, epoch))
        return -(-num_batches // self.config.optimizer.accumulate)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batch of each step, on the device of the model."""
        samples = iter(self.data.loader(self.task, self.config, number))
        step = 0
        while group := list(islice(samples, self.config.optimizer.accumulate)):
            if step >= start:
                batches = [to_batch(sample, self.data.images.classes) for sample in group]
                yield join_batches(batches, self.task.targets).to(device_of(self.task.model))
            step += 1


def join_batches(batches: list[Batch], names: tuple[str, ...]) -> Batch:
    """Several batches as one, with the targets of these names."""
    inputs = torch.cat([batch.inputs for batch in batches])
    targets: dict[str, Tensor] = {}
    for name in names:
        targets[name] = torch.cat([batch.targets[name] for batch in batches])
    return Batch(inputs, targets, torch.arange(len(inputs)))
