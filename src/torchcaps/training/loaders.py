"""Training on a `Dataset` or a `DataLoader` of the caller, whose own transforms stay in force."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from torchcaps.data import ImageSet, match_classes, stratified_split
from torchcaps.errors import ArgumentError
from torchcaps.settings import TrainConfig
from torchcaps.training.inputs import ModelSizes, class_indices, image_tensor, make_set
from torchcaps.training.sampling import (
    SAMPLES,
    epoch_permutation,
    holdout_amount,
    split_batches,
    step_seed,
)

IMAGE_KEYS = ("image", "images", "pixel_values")
LABEL_KEYS = ("label", "labels", "target")
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
BATCH_SIZE = 64  # samples that are read together where they are not trained with
# Settings that the loader of a caller decides.
DECIDED = ("batch_size", "balance", "epoch_size", "workers")


class LoaderData(NamedTuple):
    """A data set or loader, ready to train on.

    Attributes:
        train_images: black images of the right size with the labels of the training samples; the
            pixels come from the loader.
        val_images: to choose the epoch by, in memory.
        loader: from the configuration to the loader of an epoch, which counts from 0.
        note: a sentence where the epoch is not chosen by held-out samples; else empty.
    """

    train_images: ImageSet
    val_images: ImageSet
    loader: Callable[[TrainConfig], Callable[[int], DataLoader[Any]]]
    note: str = ""


def is_loader(data: Any) -> bool:
    """Whether `loader_data` takes it."""
    return isinstance(data, Dataset | DataLoader)


def loader_data(
    data: Any, validation: ImageSet | None, config: TrainConfig, sizes: ModelSizes
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
    classes, labels = class_indices(dataset_labels(dataset), sizes.num_classes)
    train_indices = val_indices = torch.arange(len(dataset))
    note = ""
    if validation is None and _can_divide(data):
        train_indices, val_indices = stratified_split(
            labels, holdout_amount(config), config.training.seed
        )
    elif validation is None:
        _, val_indices = stratified_split(labels, holdout_amount(config), config.training.seed)
        note = (
            "the epoch is chosen by samples that are trained on, because the loader's sampler is "
            "its own; give validation=... to choose it by others"
        )
    name = type(dataset).__name__
    if validation is None:
        held_out = DataLoader(
            Subset(dataset, val_indices.tolist()), batch_size=BATCH_SIZE, **_options(data)
        )
        validation = read_loader(held_out, classes, name)
    validation = match_classes(validation, classes)
    shape = (len(train_indices), *validation.images.shape[1:])
    black = torch.zeros(1, *shape[1:], dtype=torch.uint8).expand(shape)
    train_images = ImageSet(black, labels[train_indices], classes, name)

    def loader_of(config: TrainConfig) -> Callable[[int], DataLoader[Any]]:
        if not isinstance(data, DataLoader):
            return lambda epoch: _epoch_loader(dataset, train_indices, labels, config, epoch)
        if len(train_indices) == len(dataset):
            return lambda _: data
        part = DataLoader(
            Subset(dataset, train_indices.tolist()),
            batch_size=data.batch_size,
            drop_last=data.drop_last,
            shuffle=isinstance(data.sampler, RandomSampler),
            **_options(data),
        )
        return lambda _: part

    return LoaderData(train_images, validation, loader_of, note)


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
    dataset: Dataset[Any], indices: Tensor, labels: Tensor, config: TrainConfig, epoch: int
) -> DataLoader[Any]:
    """Samples of a data set, with all its labels, in the order of (seed, epoch)."""
    order = indices[epoch_permutation(config, epoch, labels[indices])]
    return DataLoader(
        dataset,
        batch_sampler=[
            batch.tolist() for batch in split_batches(order, config.training.batch_size or 1)
        ],
        num_workers=config.data.workers or 0,
        generator=torch.Generator().manual_seed(step_seed(config, epoch, SAMPLES)),
    )


def read_loader(data: Any, classes: tuple[str, ...] = (), name: str = "") -> ImageSet:
    """All samples of a data set or a loader, in memory.

    Args:
        data: a map-style `Dataset`, or a `DataLoader` of one.
        classes: names of the classes; by default those of its labels.
        name: of the set.
    """
    loader = data if isinstance(data, DataLoader) else DataLoader(data, batch_size=BATCH_SIZE)
    batches = [image_and_label(batch) for batch in loader]
    images = torch.cat([image_tensor(batch_images) for batch_images, _ in batches])
    labels = [label for _, batch_labels in batches for label in _listed(batch_labels)]
    if not classes:
        classes, indices = class_indices(labels)
        return make_set(images, indices, classes, name or type(loader.dataset).__name__)
    return make_set(images, known_indices(labels, classes), classes, name)


def _listed(labels: Any) -> list[Any]:
    return labels.tolist() if hasattr(labels, "tolist") else list(labels)


class LoaderBatches:
    """The batches of a loader, a small set each; see `training.batches.BatchSource`.

    Args:
        loader: returns the loader of an epoch, which counts from 0.
        classes: names of the classes, as labels have them.
        name: of the sets.
        device: of the images.
    """

    def __init__(
        self,
        loader: Callable[[int], DataLoader[Any]],
        classes: tuple[str, ...],
        name: str,
        device: torch.device,
    ) -> None:
        self.loader = loader
        self.classes = classes
        self.name = name
        self.device = device

    def steps(self, epoch: int) -> int:
        """Number of steps of an epoch."""
        return len(self.loader(epoch))

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[ImageSet, Tensor]]:
        """A set and the indices of all of its images, for each step."""
        for step, batch in enumerate(self.loader(number)):
            if step >= start:
                images = batch_set(batch, self.classes, self.name).to(self.device)
                yield images, torch.arange(len(images), device=self.device)


def batch_set(batch: Any, classes: tuple[str, ...], name: str) -> ImageSet:
    """A batch as a set of images.

    Args:
        batch: (images, labels), more may follow; or a mapping with "image" and "label", or names
            as Hugging Face uses them.
        classes: names of the classes.
        name: of the set.

    Raises:
        ArgumentError: another batch.
    """
    images, labels = image_and_label(batch)
    return make_set(image_tensor(images), known_indices(labels, classes), classes, name)


def image_and_label(sample: Any) -> tuple[Any, Any]:
    """Image and label of a sample, or those of a batch. Raises ArgumentError for other samples."""
    if isinstance(sample, Mapping):
        images = [sample[key] for key in IMAGE_KEYS if key in sample]
        labels = [sample[key] for key in LABEL_KEYS if key in sample]
        if images and labels:
            return images[0], labels[0]
    elif isinstance(sample, tuple | list) and len(sample) >= 2:
        return sample[0], sample[1]
    raise ArgumentError(
        "data",
        f"expected samples (image, label) or a mapping with both, got {type(sample).__name__}",
    )


def known_indices(labels: Any, classes: tuple[str, ...]) -> Tensor:
    """Labels as indices into classes that are known already.

    Raises ArgumentError for a label that is none of them.
    """
    index = dict(zip(classes, range(len(classes)), strict=True))
    try:
        return torch.tensor([index[str(label)] for label in _listed(labels)])
    except KeyError as error:
        names = ", ".join(classes)
        raise ArgumentError("labels", f"expected one of {names}, got {error.args[0]}") from None


def dataset_labels(dataset: Any) -> list[Any]:
    """The label of every sample, without its image where the data set says so."""
    if isinstance(dataset, Subset):
        labels = dataset_labels(dataset.dataset)
        return [labels[index] for index in dataset.indices]
    for name in ("targets", "labels"):
        column = getattr(dataset, name, None)
        if column is not None and len(column) == len(dataset):
            return _listed(column)
    samples = (image_and_label(dataset[index])[1] for index in range(len(dataset)))
    return [label.item() if hasattr(label, "item") else label for label in samples]
