"""Features of a frozen backbone: computed once, without augmentation, and kept in a file.

The file is memory-mapped, float16 `[images, features, rows, columns]`, beside a byte for each image
that says whether its features are there. It belongs to one backbone and one set of images, by
checksum: runs with other heads share it, and one that was stopped computes only what is missing.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from filelock import FileLock
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.data import ImageFiles, ImageSet, refuse_augmentations
from torchcaps.data.augment import ordered_augmentations
from torchcaps.data.files import stream
from torchcaps.data.load import default_cache_dir
from torchcaps.distributed import current, main_first
from torchcaps.errors import ArgumentError, TrainingError
from torchcaps.evaluation.forward import device_of, evaluating
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task
from torchcaps.training.files import checksum, make_folder

BATCH = 64  # images in a pass of the backbone
LARGEST = float(np.finfo(np.float16).max)
REASON = "features of a frozen backbone, which are computed once (--option freeze=false trains it)"


@dataclass(frozen=True, eq=False)
class StoredFeatures:
    """Rows of a file of features, in place of a tensor `[n, features, rows, columns]`.

    Attributes:
        table: the features of all images of a set, in the file.
        rows: `[n]` indices into the table.
        device: where features that are read go.
    """

    table: np.ndarray
    rows: Int64[Tensor, " n"]
    device: torch.device | str = "cpu"
    dtype: ClassVar[torch.dtype] = torch.float32

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> torch.Size:
        """Of all features together."""
        return torch.Size((len(self), *self.table.shape[1:]))

    def __getitem__(self, indices: Tensor) -> Self:
        return replace(self, rows=self.rows[indices.cpu()])

    def to(self, device: torch.device | str) -> Self:
        """The same features, which are read to another device."""
        return replace(self, device=device)

    def read(self) -> Float[Tensor, "n features rows columns"]:
        """The features as float32, on the device."""
        return torch.from_numpy(self.table[self.rows.numpy()]).to(self.device).float()


@dataclass(frozen=True, eq=False, repr=False)
class FeatureSet(ImageSet):
    """A set whose images are stored features; see `ImageSet`."""

    images: StoredFeatures  # type: ignore[assignment]

    def _check_images(self) -> None:
        """Features are any finite numbers, which were checked when they were computed."""

    def float_images(self, indices: Any = None) -> Float[Tensor, "m features rows columns"]:
        images = self.images if indices is None else self.images[self._index(indices)]
        return images.read()


def feature_set(images: ImageSet, table: np.ndarray) -> FeatureSet:
    """A set with a table of features in place of its images."""
    stored = StoredFeatures(table, torch.arange(len(images)))
    return FeatureSet(
        stored,
        images.labels,
        images.classes,
        images.name,
        images.factors,
        images.groups,
        images.notes,
    )


class FeatureFile:
    """The file of the features that a model's frozen backbone gives of a set.

    Args:
        model: whose specification declares `features`.
        images: all of the set, in memory or on disk.
        folder: of such files; by default `features` in the cache folder.

    Raises:
        TrainingError: the file cannot be made, or is damaged.
    """

    def __init__(self, model: Any, images: ImageSet, folder: Path | None = None) -> None:
        self.model = model
        self.images = images
        folder = default_cache_dir() / "features" if folder is None else folder
        make_folder(folder)
        self.path = folder / f"{_key(model, images)}.npy"
        self.lock = FileLock(self.path.with_suffix(".lock"))
        with self.lock:
            self.table = _open(self.path, np.float16, (len(images), *model.feature_shape))
            self.is_done = _open(self.path.with_suffix(".done.npy"), np.bool_, (len(images),))

    def features(self) -> FeatureSet:
        """The set of features; those that are missing have to be computed before they are read."""
        return feature_set(self.images, self.table)

    def num_missing(self, rows: Int64[Tensor, " n"]) -> int:
        """Number of these images whose features are not there yet."""
        return int((~self.is_done[rows.numpy()]).sum())

    def compute(self, rows: Int64[Tensor, " n"]) -> None:
        """Compute the features that are missing.

        Args:
            rows: indices of images that are needed.

        Raises:
            TrainingError: the disk is full.
            ArgumentError: features that are not finite in half precision.
        """
        with self.lock:
            missing = rows[torch.from_numpy(~self.is_done[rows.numpy()])].sort().values
            if len(missing) == 0:
                return
            self._check_space(len(missing))
            batches = missing.split(BATCH)
            device = device_of(self.model)
            with evaluating(self.model):
                sets = stream(self.images, batches)
                for batch, (batch_set, indices) in zip(batches, sets, strict=True):
                    features = self.model.features(batch_set.float_images(indices).to(device))
                    if not features.abs().max() <= LARGEST:
                        raise ArgumentError(
                            "backbone", f"expected finite features of at most {LARGEST:.0f}"
                        )
                    self.table[batch.numpy()] = features.cpu().numpy()
                    self.is_done[batch.numpy()] = True
            self.table.flush()
            self.is_done.flush()

    def _check_space(self, num_images: int) -> None:
        """Raise TrainingError where the disk is full: writing to a mapped file would end us."""
        needed = num_images * self.table[:1].nbytes
        free = shutil.disk_usage(self.path.parent).free
        if needed > free:
            raise TrainingError(
                f"{self.path}: the features of {num_images:,} images take {needed / 1e9:.1f} GB, "
                f"and {free / 1e9:.1f} GB are free"
            )


def _key(model: Any, images: ImageSet) -> str:
    """A name for the features that this backbone gives of these images."""
    state = {name: x.cpu().contiguous() for name, x in model.backbone.state_dict().items()}
    pixels: Any = images.images
    content = pixels.fingerprint() if isinstance(images, ImageFiles) else pixels.cpu().contiguous()
    checksums = [checksum(state), checksum({"images": content})]
    text = f"{checksums} {model.backbone} {model.feature_shape} {model.image_shape}"
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def _open(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
    """A memory-mapped file, which is made where it is missing: zeros, without their space on disk.

    Raises:
        TrainingError: it cannot be made or read, or is of another shape.
    """
    try:
        if not path.exists():
            return np.lib.format.open_memmap(path, "w+", dtype, shape)
        table = np.lib.format.open_memmap(path, "r+")
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path}: is no readable file of features ({error})") from error
    if table.shape != shape or table.dtype != dtype:
        raise TrainingError(f"{path}: expected features {list(shape)}; delete this file")
    return table


def can_store(task: Task, images: ImageSet) -> bool:
    """Whether the images of a task may be replaced by features that are computed once.

    Sets that make their images in training, such as overlaid digits, have no fixed features.
    """
    return task.spec.features and type(images) in (ImageSet, ImageFiles)


def without_augmentation(task: Task) -> None:
    """Switch all augmentations of a task off; ArgumentError for one that a run asked for."""
    config: TrainConfig = task.config
    refuse_augmentations(config.augmentation, REASON)
    if config.data.crop is not None:
        raise ArgumentError("crop", f"expected none for {REASON}, got {config.data.crop}")
    task.transforms.steps.clear()
    switches = {}
    for augmentation in ordered_augmentations():
        for name in augmentation.switches:
            amount = getattr(config.augmentation, name)
            if amount:
                switches[name] = type(amount)()  # 0 or False
    task.config = config.updated(**switches)


def stored_features(task: Task, images: ImageSet, message: Callable[[str], None]) -> ImageSet:
    """A set with features in place of images, computed where they are missing.

    Args:
        task: whose model has a frozen backbone.
        images: to train on, or to validate with.
        message: is told what is computed, and where it is kept.
    """
    file = FeatureFile(task.model, images)
    rows = torch.arange(len(images))
    message(
        f"features of the frozen backbone for {len(images):,} images: {file.num_missing(rows):,} "
        f"to be computed, the others in {file.path}"
    )
    with main_first():
        if current().is_main:
            file.compute(rows)
    return file.features().to(device_of(task.model))
