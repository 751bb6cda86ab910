"""Training on a `Dataset` or a `DataLoader` of the caller, whose own transforms stay in force."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, Subset

from torchcaps.data import Batch, Dataset, DiskDataset
from torchcaps.data.classes import first_labels, stratified_split
from torchcaps.data.dataset import select_rows, set_labels
from torchcaps.data.files import EncodedImages
from torchcaps.data.pixels import to_float
from torchcaps.data.targets import Form, read_targets
from torchcaps.errors import ArgumentError, DataError
from torchcaps.settings import TrainConfig, known_settings
from torchcaps.tasks import Task
from torchcaps.training.inputs import (
    BATCH_SIZE,
    PICTURES,
    dataset_targets,
    expected_target,
    image_tensor,
    model_size,
    read_loader,
    read_samples,
    split_sample,
)
from torchcaps.training.sampling import (
    SAMPLES,
    DatasetBatches,
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
# Settings that a data set of the caller decides, and those that a loader decides.
DECIDED_BY_SET = ("per_class", "folds", "fold", "img_size")
DECIDED_BY_LOADER = (*DECIDED_BY_SET, "batch_size", "balance", "epoch_size", "workers")


@dataclass(frozen=True, eq=False)
class Samples(EncodedImages):
    """Inputs of a caller's map-style data set, which are read when they are needed.

    Attributes:
        files: `[n]` indices into the data set.
        in_chans, img_size, is_resized, crop, open_image: as of `EncodedImages`.
        dataset: of the caller.
        forms: of the targets.
    """

    dataset: Any = None
    forms: Mapping[str, Form] | None = None
    dtype: ClassVar[torch.dtype] = torch.float32

    def decode(self) -> Tensor:
        samples = [split_sample(self.dataset[row])[0] for row in self.files.tolist()]
        return image_tensor(samples if isinstance(samples[0], PICTURES) else np.stack(samples))


def loader_data(
    data: Any, validation: Callable[..., Dataset | None], config: TrainConfig, model: Any
) -> tuple[Dataset, Dataset, list[str]]:
    """Prepare a data set or a loader of the caller.

    A part is held out by class unless `validation` gives images. Of a loader with a sampler of its
    own no part can be held out: the epoch is then chosen by training samples.

    Args:
        data: a map-style `Dataset`, or a `DataLoader` of one, whose order and workers are kept.
        validation: reads the images to choose the epoch by, for the name of a target and those of
            its classes; None of them holds a part out.
        config: has the seed and the part to hold out.
        model: whose number of classes counts, if it declares one.

    Returns:
        The targets of the training samples, whose inputs are read when they are needed; the images
        to choose the epoch by, in memory; and a sentence where these are no held-out samples.

    Raises:
        ArgumentError: an iterable data set, or samples that are no images with labels.
        DataError: `validation` has a class that is not trained.
    """
    dataset: Any = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise ArgumentError(
            "data",
            "expected a map-style Dataset with a length, or a DataLoader of one, got an iterable; "
            "a folder of tar shards is read by its path",
        )
    classes, targets, forms = read_targets(
        dataset_targets(dataset),
        num_classes=model_size(model, "num_classes"),
        target=expected_target(model, config.task.name),
    )
    rows = torch.arange(len(dataset))
    notes = []
    val_images = validation(next(iter(targets)), classes)
    if val_images is None:
        labels = set_labels(targets, len(rows), len(classes))
        train_rows, val_rows = stratified_split(
            first_labels(labels), holdout_amount(config), config.training.seed
        )
        # A part can be held out where the order is that of the samples, or random.
        if not isinstance(data, DataLoader) or (
            data.batch_size is not None  # a batch sampler of the caller leaves none
            and type(data.sampler) in (RandomSampler, SequentialSampler)
        ):
            rows = train_rows
        else:
            notes.append(
                "the epoch is chosen by samples that are trained on, because the loader's sampler "
                "is its own; give validation=... to choose it by others"
            )
        val_images = read_loader(
            _part_loader(data, val_rows, batch_size=BATCH_SIZE), classes, forms=forms
        )
    channels, height, width = val_images.inputs.shape[1:]
    samples = Samples(
        rows.numpy(), channels, (height, width), is_resized=False, dataset=dataset, forms=forms
    )
    images = DiskDataset(
        samples,
        select_rows(targets, rows),
        classes,
        type(dataset).__name__,
        preprocess=val_images.preprocess,
    )
    return images, val_images, notes


def loader_config(data: Any, config: TrainConfig) -> TrainConfig:
    """The configuration with the batch size of a caller's loader.

    Raises:
        ArgumentError: a setting that the loader or the set decides by itself.
    """
    for name in DECIDED_BY_LOADER if isinstance(data, DataLoader) else DECIDED_BY_SET:
        setting = config.flat()[name]
        if setting not in (known_settings()[name].default, getattr(data, name, None)):
            raise ArgumentError(
                name,
                f"expected none beside a {type(data).__name__}, which decides it, got {setting}",
            )
    if not isinstance(data, DataLoader):
        return config
    batch_size = data.batch_size
    if batch_size is None and data.batch_sampler is not None:  # a sampler of the caller's: the mean
        dataset: Any = data.dataset
        batch_size = math.ceil(len(dataset) / len(data))
    return config.updated(batch_size=batch_size)


def _part_loader(data: Any, rows: Any, **options: Any) -> DataLoader[Any]:
    """A loader of these samples, with the other options of the caller's loader where it is one."""
    dataset = data
    if isinstance(data, DataLoader):
        dataset = data.dataset
        options |= {name: getattr(data, name) for name in KEPT_OPTIONS}
    return DataLoader(Subset(dataset, rows.tolist()), **options)


class LoaderBatches(DatasetBatches):
    """The batches of a data set or a loader of the caller; see `DatasetBatches`.

    Samples of a data set come in the order of (seed, epoch). A step takes as many batches as the
    setting `accumulate` says.

    Args:
        data: of the caller.
        images: its training samples, from `loader_data`.
        task: names the targets.
        config: of the run.
    """

    def __init__(self, data: Any, images: Dataset, task: Task, config: TrainConfig) -> None:
        super().__init__(images, task, config)
        self.data = data
        self.samples: Any = images.inputs

    def steps(self, epoch: int) -> int:
        """Number of steps of an epoch."""
        return -(-len(self._loader(epoch)) // self.config.optimizer.accumulate)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batch of each step."""
        samples = iter(self._loader(number))
        step = 0
        while group := list(islice(samples, self.config.optimizer.accumulate)):
            if step >= start:
                pixels, read = read_samples(group, self.images.classes, forms=self.samples.forms)
                yield Batch(to_float(pixels), read.tensors, torch.arange(len(pixels)))
            step += 1
        if step < self.steps(number):  # which goes by the length that the loader states
            raise DataError(f"data: expected {self.steps(number)} steps in an epoch, got {step}")

    def _loader(self, epoch: int) -> DataLoader[Any]:
        """The loader of an epoch, counted from 0."""
        data = self.data
        samples = self.samples
        config = self.config
        if not isinstance(data, DataLoader):
            order = torch.from_numpy(samples.files)
            order = order[epoch_permutation(config, epoch, self.images.labels)]
            batches = split_batches(
                order, config.training.batch_size or 1, self.task.spec.smallest_batch
            )
            return DataLoader(
                data,
                batch_sampler=[batch.tolist() for batch in batches],
                num_workers=config.data.workers or 0,
                generator=torch.Generator().manual_seed(step_seed(config, epoch, SAMPLES)),
            )
        if len(samples) == len(samples.dataset):
            return data
        return _part_loader(
            data,
            samples.files,
            batch_size=data.batch_size,
            drop_last=data.drop_last,
            shuffle=isinstance(data.sampler, RandomSampler),
        )
