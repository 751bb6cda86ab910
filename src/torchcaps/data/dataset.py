"""The one form of every data set: a tensor of images, a tensor of labels, the names of the classes.

Images are held out class by class, and the same way each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from torch import Generator, Tensor

from torchcaps.data.augment.crop import center_crop
from torchcaps.data.pixels import Size, check_pixels, fit_images, to_float
from torchcaps.data.preprocess import Preprocess
from torchcaps.errors import (
    ArgumentError,
    DataError,
    check_range,
    check_shape,
    named_shape,
)

AXES = ("n", "channels", "height", "width")
MAX_CLASSES = 10_000
NO_LABEL = -1  # in place of further labels of an image
TEST_FRACTION = 0.2


class ImageBatch(NamedTuple):
    """A batch to train on.

    Attributes:
        images: the images.
        labels: the class, or the k classes, of each image.
        singles: what each of the k classes looks like alone.
        masks: the class of each pixel.
    """

    images: Shaped[Tensor, "batch channels height width"]
    labels: Int64[Tensor, " batch *k"]
    singles: Shaped[Tensor, "batch k channels height width"] | None = None
    masks: Int64[Tensor, "batch height width"] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """Images with their labels, whole in memory.

    Attributes:
        images: uint8 in 0..255 or float32 in [0, 1].
        labels: indices into `classes`.
        classes: names of the classes, in the order of the labels.
        name: name of the set in tables and reports.
        factors: what else is known of each image, by name: `[n]` numbers such as "azimuth" or
            "track".
        groups: `[n]` integers, equal for images that depend on each other, as those of one toy,
            patient, digit or video; None where each image is by itself. They stay together in
            `train_val_split`, and a comparison of models counts them, not images.
        notes: sentences about what was read and what was left out.
        files: name of the file of each image, if known.
        preprocess: what prediction does to one of the inputs of a model trained on this.
        min_classes: the least number of classes of a set of this type.
        label_shape: axes of the labels of one image.
        per_image: names of the tensors with an entry for each image.

    Raises:
        DataError: at construction, where something breaks these rules.
    """

    images: Shaped[Tensor, "n channels height width"]
    labels: Int64[Tensor, " n"]
    classes: tuple[str, ...]
    name: str
    factors: Mapping[str, Shaped[Tensor, " n"]] = field(default_factory=dict)
    groups: Int64[Tensor, " n"] | None = None
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    preprocess: ClassVar[type[Preprocess]] = Preprocess
    min_classes: ClassVar[int] = 2
    label_shape: ClassVar[tuple[int, ...]] = ()
    per_image: ClassVar[tuple[str, ...]] = ("images", "labels")

    def __post_init__(self) -> None:
        self._check_images()
        self._check_labels()
        for factor, values in self.factors.items():
            if values.shape != self.images.shape[:1]:
                raise DataError(
                    f"{self.name}: expected a {factor!r} for each of {len(self)} images, "
                    f"got {list(values.shape)}"
                )
        groups = self.groups
        if groups is not None and (groups.dtype, groups.shape) != (torch.int64, (len(self),)):
            raise DataError(
                f"{self.name}: expected an int64 group for each of {len(self)} images, "
                f"got groups {list(groups.shape)} of {groups.dtype}"
            )

    def _check_images(self) -> None:
        check_images(self.name, self.images)
        check_pixels(self.name, self.images)

    def _check_labels(self) -> None:
        if self.labels.dtype != torch.int64 or self.labels.shape != (len(self), *self.label_shape):
            expected = "two int64 labels" if self.label_shape else "one int64 label"
            raise DataError(
                f"{self.name}: expected {expected} for each of {len(self)} images, "
                f"got labels {list(self.labels.shape)} of {self.labels.dtype}"
            )
        for labels in self.labels.reshape(len(self), -1).unbind(dim=1):
            check_labels(self.name, labels, self.classes, self.min_classes)

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        classes = self.classes
        if len(classes) > 6:
            classes = (*classes[:4], "…", classes[-1])
        shape = " × ".join(map(str, self.images.shape[1:]))
        dtype = str(self.images.dtype).removeprefix("torch.")
        return (
            f"{type(self).__name__}({self.name!r}: {len(self):,} images {shape} {dtype}, "
            f"{self.num_classes} classes: {', '.join(classes)})"
        )

    @property
    def img_size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return self.images.shape[2], self.images.shape[3]

    @property
    def in_chans(self) -> int:
        """Number of channels: 1 for gray, 3 for color."""
        return self.images.shape[1]

    @property
    def num_classes(self) -> int:
        """Number of classes, whether or not each has an image here."""
        return len(self.classes)

    @property
    def size_in_words(self) -> str:
        """Sides and channels of an image."""
        height, width = self.img_size
        colors = {1: "gray", 3: "color"}.get(self.in_chans, f"{self.in_chans} channels")
        return f"{width} × {height} pixels (width × height), {colors}"

    def resized(self, img_size: Size, in_chans: int | None) -> Self:
        """The set with images of another size and number of channels; see `fit_images`.

        Args:
            img_size: (height, width), or one side of a square; None keeps the size.
            in_chans: 1 or 3; None keeps the channels.

        Returns:
            The resized set.
        """
        return replace(self, images=fit_images(self.images, img_size, in_chans))

    def cropped(self, side: int) -> Self:
        """The set with the middle of every image.

        Args:
            side: pixels along a side of the square that is kept.

        Returns:
            The cropped set.
        """
        return replace(self, images=center_crop(self.images, side).contiguous())

    def subset(self, indices: Tensor | Sequence[int]) -> Self:
        """The set of some of the images, with the same classes.

        Args:
            indices: `[m]` integers; the images come in that order.

        Returns:
            The set of m images.
        """
        index = self._index(indices)
        factors = {name: values[index.to(values.device)] for name, values in self.factors.items()}
        groups = None if self.groups is None else self.groups[index.to(self.groups.device)]
        tensors = {name: getattr(self, name)[index] for name in self.per_image}
        files = tuple(self.files[row] for row in index.tolist()) if self.files else ()
        return replace(self, factors=factors, groups=groups, files=files, **tensors)

    def train_val_split(self, fraction_or_count: float, seed: int = 0) -> tuple[ImageSet, ImageSet]:
        """Training and validation images, by `stratified_split`: no group is on both sides.

        Args:
            fraction_or_count: of the validation images: a float in (0, 1) is a share of each class,
                an int a number in all.
            seed: of the split, 0 or more.

        Returns:
            The training set and the validation set.
        """
        strata, groups = split_units(self)
        train, val = stratified_split(strata, fraction_or_count, seed, groups=groups)
        return self.subset(train), self.subset(val)

    def sample_batch(self, indices: Tensor | Sequence[int], *, generator: Generator) -> ImageBatch:
        """Images to train on; sets that make their images in training draw new ones.

        Args:
            indices: `[batch]` integers.
            generator: of what is drawn.

        Returns:
            Float images in [0, 1] `[batch, channels, height, width]` with their labels.
        """
        return ImageBatch(self.float_images(indices), self.labels[self._index(indices)])

    def to(self, device: torch.device | str) -> Self:
        """The set with its images and labels on a device; factors and groups stay where they are.

        Args:
            device: of torch, such as "cuda".

        Returns:
            The moved set.
        """
        return replace(self, **{name: getattr(self, name).to(device) for name in self.per_image})

    def float_images(
        self, indices: Tensor | Sequence[int] | None = None
    ) -> Float[Tensor, "m channels height width"]:
        """The images at `indices` as float32 in [0, 1], not a copy where they are that already.

        Args:
            indices: `[m]` integers; None takes all images.

        Returns:
            `[m, channels, height, width]`.
        """
        return to_float(self.images if indices is None else self.images[self._index(indices)])

    def _index(self, indices: Tensor | Sequence[int]) -> Tensor:
        return torch.as_tensor(indices, dtype=torch.int64, device=self.images.device)


@dataclass(frozen=True, eq=False, repr=False)
class MultilabelSet(ImageSet):
    """Images of several classes each.

    Attributes:
        images: uint8 in 0..255 or float32 in [0, 1].
        labels: `[n, k]` different indices into `classes`, k at least 2. The rows of images with
            fewer classes end in `NO_LABEL`, -1.
        classes: names of the classes.
        name: name of the set in tables and reports.
        factors: what else is known of each image, by name.
        groups: `[n]` integers, equal for images of one thing; see `ImageSet`.
        notes: sentences about what was read and what was left out.
        files: name of the file of each image, if known.
    """

    labels: Int64[Tensor, "n k"]

    def _check_labels(self) -> None:
        labels = self.labels
        if labels.dtype != torch.int64 or labels.dim() != 2 or len(labels) != len(self):
            raise DataError(
                f"{self.name}: expected int64 labels [n={len(self)}, k], "
                f"got {list(labels.shape)} of {labels.dtype}"
            )
        is_label = labels != NO_LABEL
        is_label[:, 0] = True  # every image shows a class
        for column in labels.where(is_label, 0).unbind(dim=1):
            check_labels(self.name, column, self.classes)
        ordered = labels.sort(dim=1).values
        is_twice = ((ordered.diff(dim=1) == 0) & (ordered[:, 1:] != NO_LABEL)).any(dim=1)
        if is_twice.any():
            index = int(is_twice.nonzero()[0])
            twice = [self.classes[label] for label in labels[index].tolist()]
            raise DataError(
                f"{self.name}: expected different classes in image {index}, got {', '.join(twice)}"
            )


def check_images(source: str, images: Tensor) -> None:
    """Check that images are `[n, channels, height, width]`, n at least 1.

    Raises:
        DataError: it is not so; the message begins with `source`.
    """
    shape = images.shape
    if len(shape) != 4 or 0 in shape[1:]:
        raise DataError(
            f"{source}: expected images [{', '.join(AXES)}], got {named_shape(AXES, shape)}"
        )
    if len(images) == 0:
        raise DataError(f"{source}: there are no images")


def check_labels(
    source: str,
    labels: Int64[Tensor, " n"],
    classes: tuple[str, ...],
    min_classes: int = 2,
) -> None:
    """Check the names of classes, and that every label is the index of one.

    Raises:
        DataError: it is not so; the message begins with `source`.
    """
    count = len(classes)
    check_count(source, count)
    if len(set(classes)) != count:
        raise DataError(f"{source}: two classes have the same name in {', '.join(classes)}")
    if count < min_classes:
        raise DataError(
            f"{source}: expected at least two classes, got {', '.join(classes) or 'none'}"
        )
    is_outside = (labels < 0) | (labels >= count)
    if is_outside.any():
        image = int(is_outside.nonzero()[0])
        raise DataError(
            f"{source}: label {int(labels[image])} of image {image} lies outside the {count} "
            f"classes (0 to {count - 1})"
        )


def check_count(source: str, num_classes: int) -> None:
    """Check the number of classes of a set.

    Raises:
        DataError: there are more than `MAX_CLASSES`; the message begins with `source`.
    """
    if num_classes > MAX_CLASSES:
        raise DataError(
            f"{source}: expected at most {MAX_CLASSES:,} classes, got {num_classes:,}; "
            "number them from 0"
        )


def numbered(source: str, largest: int) -> tuple[str, ...]:
    """The names of classes that are numbers, "0" to `largest`; checked as by `check_count`."""
    check_count(source, largest + 1)
    return tuple(map(str, range(largest + 1)))


def stratified_split(
    labels: Tensor,
    fraction_or_count: float,
    seed: int = 0,
    *,
    groups: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Split images in two parts, in the same proportion from every class.

    Args:
        labels: `[n]` integers.
        fraction_or_count: a float in (0, 1) is the fraction of each class to hold out, at least one
            image of every class that has two. An int in 1..n-1 is the number in all, divided among
            the classes by largest remainder.
        seed: 0 or more. The same seed gives the same split on every machine and version.
        groups: `[n]` integers. Images of one class with equal values stay together: the fraction is
            then one of the groups of each class, and a count is taken as the fraction it is of all
            images.

    Returns:
        Indices to keep and indices to hold out: int64 on the CPU, each ascending, together all of
        0..n-1.

    Raises:
        DataError: nothing is left on one side.

    Example:
        >>> train, test = stratified_split(torch.tensor([0, 0, 0, 1, 1, 1]), 2)
        >>> len(train), len(test)
        (4, 2)
    """
    array = labels.cpu().numpy()
    num_images = len(array)
    if groups is None:
        _, sizes = np.unique(array, return_counts=True)
        quotas = _quotas(sizes, fraction_or_count)
        is_test = np.zeros(num_images, dtype=bool)
        is_test[_choose(array, quotas, seed)] = True
    else:  # each group counts once
        members = np.stack([array, groups.cpu().numpy()], axis=1)
        pairs, group_of_image = np.unique(members, axis=0, return_inverse=True)
        fraction = fraction_or_count
        if isinstance(fraction_or_count, int):
            fraction = fraction_or_count / num_images
        _, test_groups = stratified_split(torch.from_numpy(pairs[:, 0]), fraction, seed)
        is_test = np.isin(group_of_image.reshape(-1), test_groups.numpy())
    if is_test.all() or not is_test.any():
        raise DataError(
            f"holdout: {fraction_or_count} of {num_images} images leaves nothing on one side"
        )
    train = torch.from_numpy(np.flatnonzero(~is_test))
    return train, torch.from_numpy(np.flatnonzero(is_test))


def split_units(images: ImageSet) -> tuple[Tensor, Tensor | None]:
    """What `stratified_split` takes to split a set: the strata of its images, and their groups.

    Of images with several labels the first one counts.
    """
    labels = images.labels.reshape(len(images), -1)[:, 0]
    if images.groups is None:
        return labels, None
    return group_strata(labels, images.groups), images.groups


def group_strata(labels: Tensor, groups: Tensor) -> Int64[Tensor, " n"]:
    """The class by which each image is counted in a split that keeps groups together.

    A group whose images are of several classes counts for the rarest of them, which would else be
    easily missing on one side.

    Args:
        labels: `[n]` integers.
        groups: `[n]` integers.

    Returns:
        `[n]`, on the CPU: one class for all images of a group.
    """
    array = labels.cpu().numpy()
    rarest_first = np.argsort(np.bincount(array)[array], kind="stable")
    group_array = groups.cpu().numpy()[rarest_first]
    _, positions, group_of_image = np.unique(group_array, return_index=True, return_inverse=True)
    strata = np.empty_like(array)
    strata[rarest_first] = array[rarest_first][positions[group_of_image.reshape(-1)]]
    return torch.from_numpy(strata)


def few_labels(labels: Tensor, per_class: int, seed: int = 0) -> Tensor:
    """Choose random images of each class; a smaller choice is part of a larger one.

    Args:
        labels: `[n]` integers.
        per_class: from 1 to the images of the rarest class.
        seed: 0 or more. The same seed gives the same images on every machine and version.

    Returns:
        Ascending indices `[classes * per_class]`.

    Raises:
        ArgumentError: another shape of labels, or `per_class` out of range.
    """
    check_shape("labels", labels, ("n",))
    array = labels.cpu().numpy()
    classes, sizes = np.unique(array, return_counts=True)
    check_range("per_class", per_class, low=1)
    if sizes.min() < per_class:
        rarest = int(classes[sizes.argmin()])
        raise ArgumentError(
            "per_class",
            f"expected at most {sizes.min()}, the images of class {rarest}, got {per_class}",
        )
    indices = _choose(array, np.full(len(classes), per_class), seed)
    return torch.from_numpy(np.sort(indices))


def _choose(labels: np.ndarray, quotas: np.ndarray, seed: int) -> np.ndarray:
    """Random indices, so many of each class."""
    # RandomState is frozen by numpy's policy; default_rng and torch.randperm may change between
    # versions.
    random = np.random.RandomState(seed)
    choices = []
    for label, quota in zip(np.unique(labels), quotas, strict=True):
        choices.append(random.permutation(np.flatnonzero(labels == label))[:quota])
    return np.concatenate(choices)


def default_split(name: str, labels: Tensor, split: str, groups: Tensor | None = None) -> Tensor:
    """Indices of "train" or "test", 80 : 20 by seed 0.

    Args:
        name: name of the set, for errors.
        labels: the class of each image, `[n]`.
        split: "train" or "test".
        groups: the group of each image, `[n]`; no group is in both splits.

    Raises:
        DataError: no class has two images, or groups; the message begins with `name`.
    """
    strata = labels if groups is None else group_strata(labels, groups)
    try:
        train, test = stratified_split(strata, TEST_FRACTION, seed=0, groups=groups)
    except DataError:
        unit = "images" if groups is None else "groups"
        raise DataError(
            f"{name}: no class has two {unit}, so that none can be held out to test on"
        ) from None
    return test if split == "test" else train


def _quotas(sizes: np.ndarray, fraction_or_count: float) -> np.ndarray:
    """How many images of each class to hold out."""
    if isinstance(fraction_or_count, int):
        count = fraction_or_count
        total = int(sizes.sum())
        if not 0 < count < total:
            raise DataError(f"holdout: expected a count from 1 to {total - 1}, got {count}")
        exact = sizes * (count / total)
        quotas = np.floor(exact).astype(np.int64)
        remainders = np.argsort(quotas - exact, kind="stable")  # largest first
        quotas[remainders[: count - int(quotas.sum())]] += 1
        return quotas
    if not 0 < fraction_or_count < 1:
        raise DataError(
            "holdout: expected a fraction between 0 and 1 or a whole count, "
            f"got {fraction_or_count}"
        )
    rounded = np.rint(sizes * fraction_or_count)
    return np.minimum(np.maximum(rounded, 1), sizes - 1).astype(np.int64)
