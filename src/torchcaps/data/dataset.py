"""The one shape that every data set takes: a tensor of images, a tensor of labels, the names of the classes.

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
from torchcaps.data.pixels import Size, check_floats, fit_images, to_float
from torchcaps.data.preprocess import Preprocess
from torchcaps.errors import (
    ArgumentError,
    DataError,
    UnknownNameError,
    check_range,
    check_shape,
    named_shape,
)

AXES = ("n", "channels", "height", "width")
MOST_CLASSES = 10_000
TEST_FRACTION = 0.2


class ImageBatch(NamedTuple):
    """A batch: images; the class or k classes of each; what each of the k looks like alone; the class of each pixel."""

    images: Shaped[Tensor, "batch channels height width"]
    labels: Int64[Tensor, " batch *k"]
    singles: Shaped[Tensor, "batch k channels height width"] | None = None
    masks: Int64[Tensor, "batch height width"] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """Images with their labels, whole in memory; DataError at construction where something breaks these rules."""

    images: Shaped[Tensor, "n channels height width"]  # uint8 in 0..255 or float32 in [0, 1]
    labels: Int64[Tensor, " n"]  # each an index into `classes`
    classes: tuple[str, ...]  # their names, in the order of the labels
    name: str  # what the set is called in tables and reports
    # What else is known of each image, by name: `[n]` numbers such as "azimuth" or "track".
    factors: Mapping[str, Shaped[Tensor, " n"]] = field(default_factory=dict)
    group: str | None = (
        None  # a factor: images of a class with equal values stay together in `train_val_split`
    )
    preprocess: ClassVar[type[Preprocess]] = Preprocess  # what prediction does to one of its inputs
    least_classes: ClassVar[int] = 2
    several: ClassVar[tuple[int, ...]] = ()  # sides of the labels of an image
    per_image: ClassVar[tuple[str, ...]] = (
        "images",
        "labels",
    )  # tensors with an entry for each image

    def __post_init__(self) -> None:
        self._check_images()
        self._check_labels()
        for name, values in self.factors.items():
            if values.shape != self.images.shape[:1]:
                found = list(values.shape)
                raise DataError(
                    f"{self.name}: expected a {name!r} for each of {len(self)} images, got {found}"
                )
        if self.group is not None and self.group not in self.factors:
            raise UnknownNameError("factor", self.group, self.factors)

    def _check_images(self) -> None:
        shape = self.images.shape
        if len(shape) != 4 or 0 in shape[1:]:
            raise DataError(
                f"{self.name}: expected images [{', '.join(AXES)}], got {named_shape(AXES, shape)}"
            )
        if len(self) == 0:
            raise DataError(f"{self.name}: there are no images")
        if self.images.dtype not in (torch.uint8, torch.float32):
            raise DataError(
                f"{self.name}: expected images of type uint8 or float32, got {self.images.dtype}"
            )
        check_floats(self.name, self.images)

    def _check_labels(self) -> None:
        if self.labels.dtype != torch.int64 or self.labels.shape != (len(self), *self.several):
            want = "two int64 labels" if self.several else "one int64 label"
            found = f"labels {list(self.labels.shape)} of {self.labels.dtype}"
            raise DataError(
                f"{self.name}: expected {want} for each of {len(self)} images, got {found}"
            )
        for labels in self.labels.reshape(len(self), -1).unbind(dim=1):
            check_labels(self.name, labels, self.classes, self.least_classes)

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        named = (
            self.classes if len(self.classes) <= 6 else (*self.classes[:4], "…", self.classes[-1])
        )
        kind = " × ".join(map(str, self.images.shape[1:])) + f" {self.images.dtype}".replace(
            "torch.", ""
        )
        classes = f"{self.num_classes} classes: {', '.join(named)}"
        return f"{type(self).__name__}({self.name!r}: {len(self):,} images {kind}, {classes})"

    @property
    def kind(self) -> str:
        """What is in it: "images", or what a subclass holds."""
        return self.preprocess.kind

    def make_preprocess(self, crop: int | None = None) -> Preprocess:
        """What prediction does, for a model that is trained on these images."""
        return self.preprocess(self.img_size, self.in_chans, crop)

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
        channels, height, width = self.images.shape[1:]
        colors = {1: "gray", 3: "color"}.get(channels, f"{channels} channels")
        return f"{width} × {height} pixels (width × height), {colors}"

    def resized(self, img_size: Size, in_chans: int | None) -> Self:
        """The set with images of this size and number of channels; see `fit_images`."""
        return replace(self, images=fit_images(self.images, img_size, in_chans))

    def subset(self, indices: Tensor | Sequence[int]) -> Self:
        """The images at `indices` (`[m]`, integers), in that order, with the same classes."""
        index = self._index(indices)
        factors = {name: values[index.to(values.device)] for name, values in self.factors.items()}
        return replace(
            self, **{name: getattr(self, name)[index] for name in self.per_image}, factors=factors
        )

    def train_val_split(self, fraction_or_count: float, seed: int = 0) -> tuple[ImageSet, ImageSet]:
        """(what stays, what is held out), by `stratified_split`: no `group` is on both sides."""
        groups = None if self.group is None else self.factors[self.group]
        kept, held = stratified_split(self.labels, fraction_or_count, seed, groups=groups)
        return self.subset(kept), self.subset(held)

    def singles(
        self, indices: Tensor | Sequence[int]
    ) -> Shaped[Tensor, "m k channels height width"] | None:
        """What each of the k classes of an image looks like alone, as the images are; None where that is not known."""
        return None

    @property
    def draws(self) -> Int64[Tensor, " n"] | None:
        """Images with the same number are no independent draws, as composites of one digit; None where all are."""
        return None

    def sample_batch(self, indices: Tensor | Sequence[int], *, generator: Generator) -> ImageBatch:
        """The images at `indices` (`[batch]`, integers) to train on; sets made on-line draw them anew."""
        return ImageBatch(self.float_images(indices), self.labels[self._index(indices)])

    def to(self, device: torch.device | str) -> Self:
        """The set with its images and labels on `device`; factors stay where they are."""
        return replace(self, **{name: getattr(self, name).to(device) for name in self.per_image})

    def cropped(self, side: int) -> Self:
        """The middle `side` × `side` pixels of every image."""
        return replace(self, images=center_crop(self.images, side).contiguous())

    def float_images(
        self, indices: Tensor | Sequence[int] | None = None
    ) -> Float[Tensor, "m channels height width"]:
        """The images at `indices` (all of them when None) as float32 in [0, 1]; not a copy where they are that."""
        return to_float(self.images if indices is None else self.images[self._index(indices)])

    def _index(self, indices: Tensor | Sequence[int]) -> Tensor:
        return torch.as_tensor(indices, dtype=torch.int64, device=self.images.device)


def check_labels(
    where: str, labels: Int64[Tensor, " n"], classes: tuple[str, ...], least: int = 2
) -> None:
    """Raise DataError, naming `where`, unless there are `least` classes or more and every label is the index of one."""
    check_count(where, len(classes))
    if len(set(classes)) != len(classes):
        raise DataError(f"{where}: two classes have the same name in {', '.join(classes)}")
    if len(classes) < least:
        raise DataError(
            f"{where}: expected at least two classes, got {', '.join(classes) or 'none'}"
        )
    outside = (labels < 0) | (labels >= len(classes))
    if outside.any():
        first, most = int(outside.nonzero()[0]), f"{len(classes)} classes (0 to {len(classes) - 1})"
        raise DataError(
            f"{where}: label {int(labels[first])} of image {first} lies outside the {most}"
        )


def check_count(where: str, classes: int) -> None:
    """Raise DataError, naming `where`, for more classes than a set may have."""
    if classes > MOST_CLASSES:
        raise DataError(
            f"{where}: expected at most {MOST_CLASSES:,} classes, got {classes:,}; number them from 0"
        )


def numbered(where: str, largest: int) -> tuple[str, ...]:
    """The names of classes that are numbers, "0" to `largest`; DataError where a set may not have so many."""
    check_count(where, largest + 1)
    return tuple(str(label) for label in range(largest + 1))


def stratified_split(
    labels: Tensor, fraction_or_count: float, seed: int = 0, *, groups: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Indices to keep and indices to hold out, in the same proportion from every class.

    The labels are `[n]` integers. A float in (0, 1) is the fraction of each class, at least one image of every class
    that has two; an int in 1..n-1 is the number in all, shared among the classes by largest remainder. The same `seed`,
    0 or more, gives the same split on every machine and version. Images of one class with equal values of `groups`
    (`[n]`, integers) stay together: the fraction is then one of the groups of each class, and a count is taken as the
    fraction it is of all images.

    Gives (kept, held out): int64 indices on the CPU, each ascending, together all of 0..n-1. DataError where nothing is
    left on one side.
    """
    array = labels.cpu().numpy()
    if groups is not None:  # each counts once
        pairs, member = np.unique(
            np.stack([array, groups.cpu().numpy()], axis=1), axis=0, return_inverse=True
        )
        share = (
            fraction_or_count / len(array)
            if isinstance(fraction_or_count, int)
            else fraction_or_count
        )
        sides = stratified_split(torch.from_numpy(pairs[:, 0].astype(np.int64)), share, seed)
        kept, out = (
            torch.from_numpy(np.flatnonzero(np.isin(member.reshape(-1), side.numpy())))
            for side in sides
        )
        return kept, out
    _, sizes = np.unique(array, return_counts=True)
    held = np.zeros(len(array), dtype=bool)
    held[_drawn(array, _quotas(sizes, fraction_or_count), seed)] = True
    if held.all() or not held.any():
        raise DataError(
            f"holdout: {fraction_or_count} of {len(array)} images leaves nothing on one side"
        )
    return torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))


def few_labels(labels: Tensor, per_class: int, seed: int = 0) -> Tensor:
    """`[classes * per_class]` ascending indices of random images of each class; a smaller choice is part of a larger.

    ValueError unless `labels` are `[n]` and `per_class` is from 1 to the images of the rarest class. The same seed, 0
    or more, gives the same images on every machine and version.
    """
    check_shape("labels", labels, ("n",))
    array = labels.cpu().numpy()
    classes, counts = np.unique(array, return_counts=True)
    check_range("per_class", per_class, low=1)
    if counts.min() < per_class:
        rarest = int(classes[counts.argmin()])
        raise ArgumentError(
            "per_class",
            f"expected at most {counts.min()}, the images of class {rarest}, got {per_class}",
        )
    return torch.from_numpy(np.sort(_drawn(array, np.full(len(classes), per_class), seed)))


def _drawn(labels: np.ndarray, quotas: np.ndarray, seed: int) -> np.ndarray:
    # RandomState is frozen by numpy's policy; default_rng and torch.randperm may change between versions.
    random = np.random.RandomState(seed)
    pairs = zip(np.unique(labels), quotas, strict=True)
    return np.concatenate(
        [random.permutation(np.flatnonzero(labels == label))[:quota] for label, quota in pairs]
    )


def default_split(name: str, labels: Tensor, split: str) -> Tensor:
    """Indices of "train" or "test", 80 : 20 by seed 0; DataError, naming `name`, where no class has two images."""
    try:
        return stratified_split(labels, TEST_FRACTION, seed=0)[split == "test"]
    except DataError:
        raise DataError(
            f"{name}: no class has two images, so that none can be held out to test on"
        ) from None


def _quotas(sizes: np.ndarray, fraction_or_count: float) -> np.ndarray:
    if isinstance(fraction_or_count, int):
        total, count = int(sizes.sum()), fraction_or_count
        if not 0 < count < total:
            raise DataError(f"holdout: expected a count from 1 to {total - 1}, got {count}")
        exact = sizes * (count / total)
        quotas = np.floor(exact).astype(np.int64)
        quotas[np.argsort(quotas - exact, kind="stable")[: count - int(quotas.sum())]] += (
            1  # to those most owed
        )
        return quotas
    if not 0 < fraction_or_count < 1:
        raise DataError(
            f"holdout: expected a fraction between 0 and 1 or a whole count, got {fraction_or_count}"
        )
    return np.minimum(np.maximum(np.rint(sizes * fraction_or_count), 1), sizes - 1).astype(np.int64)
