"""What a person has, as a data set: arrays of any usual layout, pictures, paths, labels, loaders."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset as TorchDataset, Subset

from torchcaps.data import Dataset, load_dataset
from torchcaps.data.images import check_size, decode_image
from torchcaps.data.pixels import to_channels, to_images
from torchcaps.data.preprocess import ArrayPreprocess, OwnSizePreprocess, Preprocess
from torchcaps.data.targets import (
    TARGET_KEYS,
    Form,
    Targets as TargetTensors,
    read_targets,
    to_array,
)
from torchcaps.errors import ArgumentError
from torchcaps.tasks import task_class
from torchcaps.types import Names, StrPath, declares, spec_of

NAME = "images in memory"
BATCH_SIZE = 64  # samples that are read together where they are not trained with
IMAGE_KEYS = ("image", "images", "inputs", "pixel_values")
PICTURES = (Image.Image, str, Path)
Array = ArrayLike | Tensor
Pictures = Sequence[Image.Image | StrPath]
Targets = Array | Sequence[str] | Mapping[str, Any]
Loader = TorchDataset[Any] | DataLoader[Any]
Data = Dataset | tuple[Array | Pictures, Targets] | Array | Pictures | StrPath | Loader


def model_size(model: Any, name: str) -> Any:
    """A size that a model of the library declares; attributes of other modules mean other things.

    Args:
        model: any, or None.
        name: "img_size", "in_chans" or "num_classes".
    """
    return getattr(model, name, None) if declares(model) else None


def expected_target(model: Any, task: str) -> str | None:
    """The target that decides how labels are read which may be of two forms; None if any may be.

    Args:
        model: any.
        task: of the run; "auto" leaves it to the targets, but of a model whose classes have a
            sigmoid each.
    """
    if task == "auto":
        return "labels" if spec_of(model).multilabel else None
    return next(iter(task_class(task, model).targets), None)


def is_loader(data: Any) -> bool:
    """Whether data is a data set or a loader of the caller."""
    return isinstance(data, TorchDataset | DataLoader) and not isinstance(data, Dataset)


def as_set(
    data: Data,
    labels: Any = None,
    model: Any = None,
    *,
    target: str | None = None,
    classes: Names = (),
) -> Dataset:
    """Images and what is known of them as a set in memory.

    Args:
        data: a set; the path of one; (images, labels); images; or a `Dataset` or `DataLoader` of
            the caller, which is read. Images are an array or a tensor
            `[n, channels, height, width]`, `[n, height, width, channels]` or `[n, height, width]`,
            uint8, uint16 or floats; or a list of pictures and paths of pictures.
        labels: of images alone, as `torchcaps.data.targets` lists them.
        model: that the images are for. Pictures and paths are brought to its size and channels.
        target: that the task takes, if known.
        classes: their names, where they are known.

    Returns:
        The set; its inputs are "arrays" where floats leave [0, 1], as after a normalization.

    Raises:
        ArgumentError: neither images nor labels.
        DataError: images and labels that make no set.
    """
    images: Any = data
    if labels is None:
        if isinstance(data, Dataset):
            return data
        if isinstance(data, StrPath):
            return load_dataset(
                data,
                "train",
                img_size=model_size(model, "img_size"),
                in_chans=model_size(model, "in_chans"),
            )
        if is_loader(data):
            return read_loader(data, classes, target)
        if not isinstance(data, tuple) or len(data) != 2:
            raise ArgumentError(
                "data",
                "expected a Dataset, a path, (images, labels), a DataLoader, or images with labels "
                f"beside them, got {type(data).__name__}",
            )
        images, labels = data
    sizes = None
    if _is_ragged(images):
        images = [image_tensor(image[None], model)[0] for image in images]
        sizes = torch.tensor([image.shape[1:] for image in images])
        images = _padded(images)
        if isinstance(labels, Mapping):
            labels = {name: _padded(rows) for name, rows in labels.items()}
        labels = _padded(labels)
    pixels = image_tensor(images, model)
    num_classes = model_size(model, "num_classes")
    read = read_targets(labels, classes, num_classes=num_classes, target=target)
    if sizes is None:
        return make_set(pixels, read.tensors, read.classes)
    targets = {**read.tensors, "size": sizes}
    return Dataset(pixels, targets, read.classes, NAME, preprocess=OwnSizePreprocess)


def _is_ragged(rows: Any) -> bool:
    """Whether rows are a list of arrays of several shapes."""
    return isinstance(rows, list | tuple) and len({getattr(row, "shape", 0) for row in rows}) > 1


def _padded(rows: Any) -> Any:
    """Arrays of several shapes as one, with zeros at the end of each axis; others as they are."""
    if not _is_ragged(rows):
        return rows
    arrays = list(map(np.asarray, rows))
    shape = np.max([array.shape for array in arrays], 0)
    padded = np.zeros((len(arrays), *shape), arrays[0].dtype)
    for index, array in enumerate(arrays):
        padded[index][tuple(map(slice, array.shape))] = array
    return padded


def make_set(
    pixels: Tensor, targets: Mapping[str, Tensor], classes: Names, name: str = NAME
) -> Dataset:
    """A set of images `[n, channels, height, width]`, of arrays where floats leave [0, 1].

    Whole numbers up to 255 as floats are pictures that are not scaled, which `Dataset` refuses.
    """
    preprocess: type[Preprocess] = Preprocess
    if pixels.is_floating_point() and pixels.numel():
        low, high = pixels.aminmax()
        highest = 255 if (pixels == pixels.round()).all() else 1
        if low < 0 or high > highest:
            preprocess = ArrayPreprocess
    return Dataset(pixels, targets, classes, name, preprocess=preprocess)


def image_tensor(images: Any, model: Any = None) -> Tensor:
    """Images of any usual layout as uint8 or float32 `[n, channels, height, width]`.

    Args:
        images: as in `as_set`.
        model: to whose size pictures and paths are brought.

    Raises:
        ArgumentError: no images.
        DataError: a picture that cannot be read, or pictures of several sizes.
    """
    if isinstance(images, list | tuple) and images and isinstance(images[0], PICTURES):
        return _decode(images, model)
    try:
        array = images if isinstance(images, Tensor) else np.asarray(images)
        return to_images(array, model_size(model, "in_chans"))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            "data", f"expected images as an array, a tensor or a list of pictures ({error})"
        ) from None


def _decode(pictures: Pictures, model: Any) -> Tensor:
    """Pictures and paths, at the size of the model if it is known."""
    decoded: list[Tensor] = []
    for index, picture in enumerate(pictures):
        name = str(picture) if isinstance(picture, StrPath) else f"image {index}"
        image = decode_image(
            picture, model_size(model, "img_size"), model_size(model, "in_chans"), name=name
        )
        decoded.append(image)
        check_size(name, image, decoded[0].shape[1:])
    channels = max(map(len, decoded))
    return torch.cat([to_channels(image.unsqueeze(0), channels) for image in decoded])


def split_sample(sample: Any) -> tuple[Any, Any]:
    """Images and targets of a sample or a batch. Raises ArgumentError for others."""
    fields = sample._asdict() if hasattr(sample, "_asdict") else sample
    if isinstance(fields, Mapping):
        images = [fields[key] for key in IMAGE_KEYS if key in fields]
        targets = {key: fields[key] for key in TARGET_KEYS if key in fields}
        if images and targets:
            return images[0], targets
    if isinstance(sample, tuple | list) and len(sample) >= 2:
        return sample[0], sample[1]
    raise ArgumentError(
        "data",
        f"expected samples (image, label) or a mapping with both, got {type(sample).__name__}",
    )


def read_loader(
    data: Any,
    classes: Names = (),
    target: str | None = None,
    forms: Mapping[str, Form] | None = None,
) -> Dataset:
    """All samples of a data set or a loader, in memory.

    Args:
        data: a map-style `Dataset`, or a `DataLoader` of one.
        classes: names of the classes; by default those of its labels.
        target: that the task takes, if known.
        forms: of the targets, if known.
    """
    loader = data if isinstance(data, DataLoader) else DataLoader(data, BATCH_SIZE)
    pixels, read = read_samples(loader, classes, target, forms)
    return make_set(pixels, read.tensors, read.classes, type(loader.dataset).__name__)


def read_samples(
    samples: Iterable[Any],
    classes: Names = (),
    target: str | None = None,
    forms: Mapping[str, Form] | None = None,
) -> tuple[Tensor, TargetTensors]:
    """Images and targets of a caller's batches.

    Args:
        samples: each (images, labels), more may follow; or a mapping or named tuple of images and
            targets by name, such as "image" and "label".
        classes: names of the classes; by default those of the labels.
        target: that the task takes, if known.
        forms: of the targets, if known.

    Raises:
        ArgumentError: other samples.
    """
    images, labels = zip(*map(split_sample, samples), strict=True)
    read = read_targets(join_targets(labels), classes, target=target, forms=forms)
    return torch.cat([image_tensor(batch) for batch in images]), read


def join_targets(batches: Sequence[Any]) -> Any:
    """The targets of several batches as those of one."""
    if isinstance(batches[0], Mapping):
        return {name: join_targets([batch[name] for batch in batches]) for name in batches[0]}
    return [row for batch in batches for row in to_array(batch)]


def dataset_targets(dataset: Any) -> Any:
    """The targets of every sample, without its image where the data set says so."""
    indices: Sequence[int] = range(len(dataset))
    while isinstance(dataset, Subset):
        indices = [dataset.indices[index] for index in indices]
        dataset = dataset.dataset
    for name in ("targets", "labels"):
        column = getattr(dataset, name, None)
        if not isinstance(column, Mapping | None) and len(column) == len(dataset):
            return to_array(column)[indices]
    samples = [split_sample(dataset[index])[1] for index in indices]
    if isinstance(samples[0], Mapping):
        return {name: [sample[name] for sample in samples] for name in samples[0]}
    return samples
