"""Features of a frozen backbone: computed once, without augmentation, and kept in a file.

The file is memory-mapped, float16 `[images, features, rows, columns]`, beside a byte for each image
that says whether its features are there. It belongs to one backbone and one set of images, by
checksum: runs with other heads share it, and one that was stopped computes only what is missing.
"""

import hashlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from jaxtyping import Int64
from torch import Tensor, nn

from torchcaps.data import Dataset, Preprocess, refuse_augmentations
from torchcaps.data.augment import ordered_augmentations
from torchcaps.data.files import identities
from torchcaps.data.load import default_cache_dir
from torchcaps.data.targets import read_targets
from torchcaps.distributed import current, main_first
from torchcaps.errors import ArgumentError, TrainingError
from torchcaps.nn.head import as_map, check_features
from torchcaps.settings import TrainConfig
from torchcaps.training.files import checksum, make_folder
from torchcaps.transfer import device_of, evaluating
from torchcaps.types import spec_of

BATCH = 64  # images in a pass of the backbone
LARGEST = float(np.finfo(np.float16).max)
REASON = "features of a frozen backbone, which are computed once (--option freeze=false trains it)"


@dataclass(frozen=True)
class FeaturePreprocess(Preprocess, kind="features"):
    """Features of a backbone as inputs: any finite numbers, checked when they were computed."""

    @classmethod
    def check(cls, source: str, inputs: Tensor) -> None:
        """Nothing: that would read all of a file."""


class FeatureFile:
    """The file of the features that a model's frozen backbone gives of a set.

    Args:
        model: whose specification declares `features`.
        images: all of the set, in memory or on disk.
        folder: of such files; by default `features` in the cache folder.

    Raises:
        TrainingError: the file cannot be made, or is damaged.
    """

    def __init__(self, model: Any, images: Dataset, folder: Path | None = None) -> None:
        self.model = model
        self.images = images
        folder = default_cache_dir() / "features" if folder is None else folder
        make_folder(folder)
        self.path = folder / f"{_key(model, images)}.npy"
        self.lock = FileLock(self.path.with_suffix(".lock"))
        with self.lock:
            self.table = _open(self.path, np.float16, (len(images), *model.feature_shape))
            self.is_done = _open(self.path.with_suffix(".done.npy"), np.bool_, (len(images),))

    def features(self) -> Dataset:
        """The set of features; those that are missing have to be computed before they are read."""
        images = self.images
        return Dataset(
            torch.as_tensor(self.table),
            images.targets,
            images.classes,
            images.name,
            images.groups,
            images.notes,
            preprocess=FeaturePreprocess,
        )

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
            # Writing to a mapped file on a full disk would end the process.
            needed = len(missing) * self.table[:1].nbytes
            free = shutil.disk_usage(self.path.parent).free
            if needed > free:
                raise TrainingError(
                    f"{self.path}: the features of {len(missing):,} images take "
                    f"{needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
                )
            batches = missing.split(BATCH)
            device = device_of(self.model)
            with evaluating(self.model):
                for batch in self.images.batches(batches, {}):
                    features = self.model.features(batch.inputs.to(device))
                    if not features.abs().max() <= LARGEST:
                        raise ArgumentError(
                            "backbone", f"expected finite features of at most {LARGEST:.0f}"
                        )
                    indices = batch.indices.cpu().numpy()
                    self.table[indices] = features.cpu().numpy()
                    self.is_done[indices] = True
            self.table.flush()
            self.is_done.flush()


def _key(model: Any, images: Dataset) -> str:
    """A name for the features that this backbone gives of these images."""
    state = {name: x.cpu().contiguous() for name, x in model.backbone.state_dict().items()}
    inputs = identities(images)["inputs"].contiguous()
    checksums = [checksum(state), checksum({"images": inputs})]
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


def feature_set(features: Tensor, labels: Any, in_features: int) -> Dataset:
    """Features of one's own and their labels as a set.

    Args:
        features: maps, sequences or vectors; see `nn.CapsuleHead`.
        labels: as `fit` takes them.
        in_features: of each position.

    Raises:
        ArgumentError: features or labels of another shape.
    """
    check_features(features, in_features)
    targets = read_targets(labels)
    maps = as_map(features).movedim(-1, 1)
    return Dataset(maps, targets.tensors, targets.classes, "features", preprocess=FeaturePreprocess)


def can_store(model: nn.Module, images: Dataset) -> bool:
    """Whether the images of a model may be replaced by features that are computed once.

    Sets that make their images in training, such as overlaid digits, have no fixed features.
    """
    return spec_of(model).features and images.maker is None and images.preprocess is Preprocess


def without_augmentation(config: TrainConfig) -> TrainConfig:
    """A complete configuration without augmentations; ArgumentError for one that is asked for."""
    refuse_augmentations(config.augmentation, REASON)
    if config.data.crop is not None:
        raise ArgumentError("crop", f"expected none for {REASON}, got {config.data.crop}")
    switches = {}
    for augmentation in ordered_augmentations():
        for name in augmentation.switches:
            if amount := getattr(config.augmentation, name):
                switches[name] = type(amount)()  # 0 or False
    return config.updated(**switches)


def stored_features(model: nn.Module, images: Dataset, verbose: bool) -> Dataset:
    """A set with features in place of images, computed where they are missing.

    Args:
        model: with a frozen backbone.
        images: to train on, or to validate with.
        verbose: say on stderr what is computed, and where it is kept.
    """
    file = FeatureFile(model, images)
    if verbose:
        print(
            f"features of the frozen backbone for {len(images):,} images: "
            f"{(~file.is_done).sum():,} to be computed, the others in {file.path}",
            file=sys.stderr,
        )
    with main_first():
        if current().is_main:
            file.compute(torch.arange(len(images)))
    return file.features()
