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
from torch import Tensor, nn

from torchcaps.data import Dataset, Preprocess, refuse_augmentations
from torchcaps.data.augment import ordered_augmentations
from torchcaps.data.files import identities
from torchcaps.data.load import default_cache_dir
from torchcaps.data.targets import read_targets
from torchcaps.distributed import main_first
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


def _key(model: Any, images: Dataset) -> str:
    """A name for the features that this backbone gives of these images."""
    state = {name: x.cpu() for name, x in model.backbone.state_dict().items()}
    checksums = [checksum(state), checksum({"images": identities(images)["inputs"]})]
    text = f"{checksums} {model.backbone} {model.feature_shape} {model.image_shape}"
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def _open(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
    """A memory-mapped file, which is made where it is missing: zeros, without their space on disk.

    Raises:
        TrainingError: it cannot be made or read, or is of another shape.
    """
    try:
        mode = "r+" if path.exists() else "w+"
        table = np.lib.format.open_memmap(path, mode, dtype, shape)
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
    check_features(features, features=in_features)
    targets = read_targets(labels)
    return Dataset(
        as_map(features).movedim(-1, 1),
        targets.tensors,
        targets.classes,
        "features",
        preprocess=FeaturePreprocess,
    )


def can_store(model: nn.Module, images: Dataset) -> bool:
    """Whether the images of a model may be replaced by features that are computed once.

    Sets that make their images in training, such as overlaid digits, have no fixed features.
    """
    return spec_of(model).features and images.maker is None and images.preprocess is Preprocess


def without_augmentation(config: TrainConfig) -> TrainConfig:
    """A complete configuration without augmentations; ArgumentError for one that is asked for."""
    refuse_augmentations(config.augmentation, REASON)
    if config.data.crop:
        raise ArgumentError("crop", f"expected none for {REASON}, got {config.data.crop}")
    switches = {}
    for augmentation in ordered_augmentations():
        for name in augmentation.switches:
            if amount := getattr(config.augmentation, name):
                switches[name] = type(amount)()  # 0 or False
    return config.updated(**switches)


def stored_features(model: Any, images: Dataset, verbose: bool) -> Dataset:
    """A set with features in place of images, computed where they are missing.

    Args:
        model: with a frozen backbone, whose specification declares `features`.
        images: to train on, or to validate with, in memory or on disk.
        verbose: say on stderr what is computed, and where it is kept: `features` in the cache
            folder.

    Raises:
        TrainingError: the file cannot be made, or is damaged; or the disk is full.
        ArgumentError: features that are not finite in half precision.
    """
    folder = default_cache_dir() / "features"
    make_folder(folder)
    path = folder / f"{_key(model, images)}.npy"
    with main_first(), FileLock(path.with_suffix(".lock")):
        table = _open(path, np.float16, (len(images), *model.feature_shape))
        is_done = _open(path.with_suffix(".done.npy"), np.bool_, (len(images),))
        missing = torch.from_numpy(np.flatnonzero(~is_done))
        if verbose:
            print(
                f"features of the frozen backbone for {len(images):,} images: "
                f"{len(missing):,} to be computed, the others in {path}",
                file=sys.stderr,
            )
        # Writing to a mapped file on a full disk would end the process.
        needed = len(missing) * table[:1].nbytes
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise TrainingError(
                f"{path}: the features of {len(missing):,} images take {needed / 1e9:.1f} GB, "
                f"and {free / 1e9:.1f} GB are free"
            )
        with evaluating(model):
            for batch in images.batches(missing.split(BATCH) if len(missing) else (), {}):
                features = model.features(batch.inputs.to(device_of(model)))
                if not features.abs().max() <= LARGEST:
                    raise ArgumentError(
                        "backbone", f"expected finite features of at most {LARGEST:.0f}"
                    )
                indices = batch.indices.cpu().numpy()
                table[indices] = features.cpu().numpy()
                is_done[indices] = True
        table.flush()
        is_done.flush()
    return Dataset(
        torch.as_tensor(table),
        images.targets,
        images.classes,
        images.name,
        images.groups,
        images.notes,
        preprocess=FeaturePreprocess,
    )
