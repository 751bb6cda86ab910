"""The one form of every data set: inputs, targets by name, the names of the classes.

Images are held out class by class, and the same way each time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Generator, Tensor
from torch.utils._pytree import tree_map_only

from torchcaps.data.classes import (
    Labels,
    Names,
    first_labels,
    group_strata,
    stratified_split,
    unknown_classes,
)
from torchcaps.data.pixels import HeightWidth, Size, center_crop, resize_masks, to_float
from torchcaps.data.preprocess import Preprocess
from torchcaps.errors import DataError
from torchcaps.types import Tensors
from torchcaps.words import join_names

MAX_CLASSES = 10_000


class Batch(NamedTuple):
    """Some items of a data set.

    Attributes:
        inputs: float32; pictures in [0, 1].
        targets: what is known of each item, by name, a row an item.
        indices: rows of the data set.
    """

    inputs: Float[Tensor, "batch channels *space"]
    targets: Tensors
    indices: Int64[Tensor, " batch"]

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on a device.

        Args:
            device: of torch, such as "cuda".

        Returns:
            The moved batch.
        """
        return tree_map_only(Tensor, lambda tensor: tensor.to(device), self)

    def by_size(self) -> list["Batch"]:
        """Divide the batch by the sizes of its items, and cut their padding off.

        Returns:
            A batch for each size in the target "size"; without this target the batch itself.
        """
        sizes = self.targets.get("size")
        if sizes is None:
            return [self]
        groups = []
        pairs, group_of = sizes.unique(dim=0, return_inverse=True)
        for group, (height, width) in enumerate(pairs.tolist()):
            rows = (group_of == group).nonzero().squeeze(1)
            targets = select_rows(self.targets, rows)
            del targets["size"]
            if "mask" in targets:
                targets["mask"] = targets["mask"][:, :height, :width]
            groups.append(Batch(self.inputs[rows, :, :height, :width], targets, self.indices[rows]))
        return groups


class Maker:
    """Draws the items of a set anew for every batch of a training, such as pairs of digits."""

    def draw(self, images: "Dataset", indices: Tensor, generator: Generator) -> Batch:
        """New items in place of those of the set.

        Args:
            images: the set that carries this.
            indices: `[batch]` rows of the set, on its device.
            generator: source of the random numbers.

        Returns:
            The batch, with all targets that it has.
        """
        raise NotImplementedError

    def split(
        self, images: "Dataset", fraction_or_count: float, seed: int
    ) -> tuple["Dataset", "Dataset"]:
        """The two parts of `Dataset.train_val_split`.

        Args:
            images: the set that carries this.
            fraction_or_count: see `Dataset.train_val_split`.
            seed: of the split.

        Returns:
            The training set and the validation set.
        """
        # Of several classes of an item the first one counts, and the rarest of a group.
        strata = group_strata(first_labels(images.labels), images.groups)
        train, val = stratified_split(strata, fraction_or_count, seed, groups=images.groups)
        return images.subset(train), images.subset(val)

    def to(self, device: torch.device | str) -> Self:
        """The same, which draws on a device.

        Args:
            device: of torch, such as "cuda".

        Returns:
            The maker.
        """
        return self


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(torch.utils.data.Dataset[tuple[Tensor, Tensors]]):
    """Items with what is known of each of them, whole in memory.

    Attributes:
        inputs: uint8 in 0..255 or float32; what else holds of them, `preprocess` says.
        targets: by name, each with a row an item: "label", int64 `[n]` indices into `classes`;
            "labels", 0 or 1 `[n, classes]`, of items of several classes; "mask", uint8
            `[n, height, width]` class of each pixel; "size" `[n, 2]` of padded pictures; "value",
            the floats that a regression predicts; and further numbers of a set, such as "azimuth",
            the angle of the camera, or "track", the number of the filmed traffic sign.
        classes: names of the classes, in the order of the labels.
        name: name of the set in tables and reports.
        groups: `[n]` integers, equal for items that depend on each other, as those of one toy,
            patient, digit or video; None where each item is by itself. They stay together in
            `train_val_split`, and a comparison of models counts them, not items.
        notes: sentences about what was read and what was left out.
        files: name of the file of each item, if known.
        preprocess: form of the inputs, into which prediction brings a picture.
        maker: draws the items of a training anew; None where they stay as they are.

    Raises:
        DataError: at construction, where something breaks these rules.
    """

    inputs: Shaped[Tensor, "n channels *space"]
    targets: Mapping[str, Shaped[Tensor, "n ..."]]
    classes: Names
    name: str
    groups: Labels | None = None
    notes: Names = ()
    files: Names = ()
    preprocess: type[Preprocess] = Preprocess
    maker: Maker | None = None

    def __post_init__(self) -> None:
        if isinstance(self.inputs, Tensor):  # others are checked when they are read
            self.preprocess.check(self.name, self.inputs)
        check_targets(self)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensors]:
        """A float input and its targets by name."""
        targets = {name: target[index] for name, target in self.targets.items()}
        return self.float_images([index])[0], targets

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name!r}: {len(self):,} images "
            f"{' × '.join(map(str, self.inputs.shape[1:]))} "
            f"{str(self.inputs.dtype).removeprefix('torch.')}, "
            f"{self.num_classes} classes: {join_names(self.classes)})"
        )

    @property
    def images(self) -> Shaped[Tensor, "n channels *space"]:
        """The inputs."""
        return self.inputs

    @property
    def labels(self) -> Shaped[Tensor, "n ..."]:
        """The target "label" or "labels"; else the main class of each mask; else zeros `[n]`."""
        return set_labels(self.targets, len(self), self.num_classes)

    @property
    def img_size(self) -> HeightWidth:
        """(height, width) in pixels."""
        return self.inputs.shape[2], self.inputs.shape[3]

    @property
    def in_chans(self) -> int:
        """Number of channels: 1 for gray, 3 for color."""
        return self.inputs.shape[1]

    @property
    def num_classes(self) -> int:
        """Number of classes, whether or not each has an image here."""
        return len(self.classes)

    def resized(self, img_size: Size, in_chans: int | None) -> Self:
        """The set with inputs and masks of another size, and another number of channels.

        Args:
            img_size: (height, width), or one side of a square; None keeps the size.
            in_chans: 1 or 3; None keeps the channels.

        Returns:
            The resized set.

        Raises:
            DataError: inputs, such as points, that have another size and are not resized.
        """
        if img_size is None and in_chans is None:
            return self
        inputs = self.preprocess.resize(self.name, self.inputs, img_size, in_chans)
        targets = dict(self.targets)
        if "mask" in targets:
            targets["mask"] = resize_masks(targets["mask"], inputs.shape[2:])
        return replace(self, inputs=inputs, targets=targets)

    def cropped(self, side: int) -> Self:
        """The set with the middle of every input, and of its mask.

        Args:
            side: pixels along a side of the square that is kept.

        Returns:
            The cropped set.
        """
        targets = dict(self.targets)
        if "mask" in targets:
            targets["mask"] = center_crop(targets["mask"][None], side)[0].contiguous()
        return replace(self, inputs=center_crop(self.inputs, side).contiguous(), targets=targets)

    def subset(self, indices: Tensor | Sequence[int]) -> Self:
        """The set of some of the items, with the same classes.

        Args:
            indices: `[m]` integers; the items come in that order.

        Returns:
            The set of m items.
        """
        index = self._index(indices)
        groups = None if self.groups is None else self.groups[index.to(self.groups.device)]
        files = tuple(self.files[row] for row in index.tolist()) if self.files else ()
        targets = select_rows(self.targets, index)
        return replace(self, inputs=self.inputs[index], targets=targets, groups=groups, files=files)

    def train_val_split(
        self, fraction_or_count: float, seed: int = 0
    ) -> tuple["Dataset", "Dataset"]:
        """Training and validation items, by `stratified_split`: no group is on both sides.

        Args:
            fraction_or_count: of the validation items: a share of each class, or a count in all.
            seed: of the split, 0 or more.

        Returns:
            The training set and the validation set.
        """
        return (self.maker or Maker()).split(self, fraction_or_count, seed)

    def batches(
        self,
        index_batches: Sequence[Tensor],
        targets: Mapping[str, Tensor],
        generators: Iterable[Generator] | None = None,
        shard: Callable[[int], slice] = slice,
    ) -> Iterator[Batch]:
        """Batches of items, as floats.

        Args:
            index_batches: rows of each batch.
            targets: by name, of all items; a batch has the rows of its own. A maker makes others.
            generators: of each batch of a training, for the maker of a set that has one.
            shard: for a set on disk, gives the items to decode from the size of a batch.

        Returns:
            The batches, in order.
        """
        if self.maker is not None and generators is not None:
            for indices, generator in zip(index_batches, generators, strict=True):
                yield self.maker.draw(self, self._index(indices), generator)
            return
        for indices in map(self._index, index_batches):
            yield Batch(self.float_images(indices), select_rows(targets, indices), indices)

    def to(self, device: torch.device | str) -> Self:
        """The set with its inputs and targets on a device; groups stay where they are.

        Args:
            device: of torch, such as "cuda".

        Returns:
            The moved set.
        """
        targets = {name: target.to(device) for name, target in self.targets.items()}
        maker = self.maker and self.maker.to(device)
        return replace(self, inputs=self.inputs.to(device), targets=targets, maker=maker)

    def float_images(
        self, indices: Tensor | Sequence[int] | None = None
    ) -> Float[Tensor, "m channels height width"]:
        """The inputs at `indices` as float32, not a copy where they are that already.

        Args:
            indices: `[m]` integers; None takes all inputs.

        Returns:
            `[m, channels, height, width]`.
        """
        return to_float(self.inputs if indices is None else self.inputs[self._index(indices)])

    def _index(self, indices: Tensor | Sequence[int]) -> Tensor:
        return torch.as_tensor(indices, dtype=torch.int64, device=self.inputs.device)


def concatenate(parts: Sequence[Dataset]) -> Dataset:
    """Sets with the same classes and targets as one, without names of files.

    Equal groups of two sets become one. The notes are those of the first set.
    """
    first = parts[0]
    groups = [part.groups for part in parts if part.groups is not None]
    return replace(
        first,
        inputs=torch.cat([part.inputs for part in parts]),
        targets={name: torch.cat([x.targets[name] for x in parts]) for name in first.targets},
        groups=torch.cat(groups) if groups else None,
        files=(),
    )


def match_classes(images: Dataset, classes: Names) -> Dataset:
    """The set with the classes of a model, matched by name.

    Args:
        images: the set.
        classes: names of the classes of the model. Some of them may have no images here.

    Returns:
        The set with labels and masks that refer to `classes`.

    Raises:
        DataError: images are of a class that is not among these; the message names it.
    """
    if images.classes == classes:
        return images
    positions = {name: index for index, name in enumerate(classes)}
    new_indices = torch.tensor([positions.get(name, -1) for name in images.classes])
    targets = dict(images.targets)
    for target in {"label", "labels", "mask"} & targets.keys():
        rows = targets[target]
        is_hot = target == "labels"
        indices = rows.any(dim=0).nonzero().flatten() if is_hot else rows.long().unique()
        unknown = [images.classes[index] for index in indices.tolist() if new_indices[index] < 0]
        if unknown:
            raise unknown_classes(images.name, unknown, classes)
        mapping = new_indices.to(rows.device)
        if is_hot:
            targets[target] = rows.new_zeros(len(rows), len(classes))
            targets[target][:, mapping[indices]] = rows[:, indices]
        else:
            targets[target] = mapping[rows.long()].to(rows.dtype)
    return replace(images, classes=classes, targets=targets)


def set_labels(
    targets: Mapping[str, Tensor], count: int, num_classes: int
) -> Shaped[Tensor, "n ..."]:
    """What `Dataset.labels` is of `count` items with these targets."""
    for name in ("label", "labels"):
        if name in targets:
            return targets[name]
    if "mask" in targets:
        return main_classes(targets["mask"], num_classes)
    return torch.zeros(count, dtype=torch.int64)


def main_classes(masks: Tensor, num_classes: int) -> Tensor:
    """The class with most pixels of each mask, the background only where there is no other.

    Args:
        masks: class indices `[n, height, width]`.
        num_classes: number of classes with the background.

    Returns:
        Class indices `[n]`.
    """
    pixel_counts = torch.column_stack(
        [(masks == index).flatten(1).sum(dim=1) for index in range(1, num_classes)]
    )
    return torch.where(pixel_counts.sum(dim=1) > 0, 1 + pixel_counts.argmax(dim=1), 0)


def select_targets(images: Dataset, names: Iterable[str]) -> Tensors:
    """The targets of these names, and the sizes of the items where they have several."""
    sizes = ("size",) if "size" in images.targets else ()
    return {name: images.targets[name] for name in (*names, *sizes)}


def select_rows(targets: Mapping[str, Tensor], index: Tensor) -> Tensors:
    """Rows of every target, on the target's device."""
    return {name: target[index.to(target.device)] for name, target in targets.items()}


def check_targets(images: Dataset) -> None:
    """Check that there is a row for each item, and the targets that refer to classes.

    Raises:
        DataError: a target has another type or shape, or refers to classes that there are not; or
            two classes have one name.
    """
    name = images.name
    count = len(images)
    rows_by_name = {**images.targets}
    if images.groups is not None:
        rows_by_name["group"] = images.groups
    for target, rows in rows_by_name.items():
        shape = [count, *rows.shape[1:]]
        dtype = rows.dtype
        if target in ("label", "group"):
            shape, dtype = [count], torch.int64
        elif target == "labels":
            shape = [count, images.num_classes]
        elif target == "mask":
            shape, dtype = [count, *images.img_size], torch.uint8
        if (list(rows.shape), rows.dtype) != (shape, dtype):
            raise DataError(
                f"{name}: expected a {target!r} for each of {count} images, {shape} of {dtype}, "
                f"got {list(rows.shape)} of {rows.dtype}"
            )
        if target in ("labels", "mask"):
            check_classes(name, images.classes)
        if target == "label":
            check_labels(name, rows, images.classes)
        elif target == "labels":
            empty = (rows.any(dim=1) == 0).nonzero()
            if len(empty):
                raise DataError(
                    f"{name}: expected one or more classes for each image, got none for "
                    f"{len(empty):,} of them, the first is image {int(empty[0])}; give these a "
                    "class of their own, or leave them out"
                )
            if not ((rows == 0) | (rows == 1)).all():
                raise DataError(f"{name}: expected labels of 0 and 1, got others")
        elif target == "mask" and (largest := int(rows.max())) >= images.num_classes:
            raise DataError(f"{name}: class {largest} of a mask is none of {images.num_classes}")


def check_labels(
    source: str,
    labels: Labels,
    classes: Names,
) -> None:
    """Check the names of classes, and that every label is the index of one.

    Raises:
        DataError: it is not so; the message begins with `source`.
    """
    check_classes(source, classes)
    count = len(classes)
    outside = ((labels < 0) | (labels >= count)).nonzero()
    if len(outside):
        raise DataError(
            f"{source}: label {int(labels[outside[0]])} of image {int(outside[0])} lies outside the "
            f"{count} classes (0 to {count - 1})"
        )


def check_classes(source: str, classes: Names) -> None:
    """Check that there are two or more classes, each with a name of its own.

    Raises:
        DataError: it is not so; the message begins with `source`.
    """
    count = len(classes)
    check_count(source, count)
    if len(set(classes)) != count:
        raise DataError(f"{source}: two classes have the same name in {', '.join(classes)}")
    if count < 2:
        raise DataError(
            f"{source}: expected at least two classes, got {', '.join(classes) or 'none'}"
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


def numbered(source: str, largest: int) -> Names:
    """The names of classes that are numbers, "0" to `largest`; checked as by `check_count`."""
    check_count(source, largest + 1)
    return tuple(map(str, range(largest + 1)))
