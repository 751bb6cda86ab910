"""Images with labels: named data sets, readers of files and folders, splits, random changes.

    digits = load_dataset("digits", "train")  # comes with the package: 6,000 images
    own = load_dataset("photos/", "test", img_size=(64, 64))

Readers return a `Dataset`: inputs, targets such as labels and masks, the names of the classes. What
a training needs is imported here; the sets, their readers and other names when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchcaps.data._registry import ReadOptions as ReadOptions
from torchcaps.data.augment import (
    Transforms as Transforms,
    refuse_augmentations as refuse_augmentations,
)
from torchcaps.data.classes import (
    LabelTree as LabelTree,
    label_tree as label_tree,
    match_classes as match_classes,
    multi_hot as multi_hot,
)
from torchcaps.data.dataset import Dataset as Dataset
from torchcaps.data.files import DiskDataset as DiskDataset
from torchcaps.data.images import decode_image as decode_image
from torchcaps.data.load import load_dataset as load_dataset
from torchcaps.data.preprocess import Preprocess as Preprocess
from torchcaps.data.splits import few_labels as few_labels, stratified_folds as stratified_folds
from torchcaps.data.types import Batch as Batch

if TYPE_CHECKING:
    from torchcaps.data._lazy import *  # noqa: F403


def __getattr__(name: str) -> Any:
    lazy = import_module("torchcaps.data._lazy")
    if name in (*lazy.__all__, "__all__"):
        return getattr(lazy, name)
    raise AttributeError(f"module 'torchcaps.data' has no attribute {name!r}")
