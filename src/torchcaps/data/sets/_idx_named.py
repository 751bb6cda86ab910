"""Reading a named set from IDX files, sure that they are that set's and not another's of the same file names."""

from __future__ import annotations

from pathlib import Path

from torchcaps.data._registry import Passport, dataset_info, list_datasets
from torchcaps.data.budget import sha256
from torchcaps.data.dataset import ImageSet
from torchcaps.data.idx import STEMS, find_idx, holds_idx, read_idx_set
from torchcaps.errors import DataError


def read_idx_named(passport: Passport, folder: Path, split: str) -> ImageSet | None:
    """One split of a named set from a folder of IDX files; None when none of them is there.

    Raises:
        DataError: as `read_idx_set`; or the labels are those of another named set.
    """
    if not holds_idx(folder):
        return None
    labels = find_idx(folder, split, "labels")
    if labels is not None:
        _refuse_another(passport, labels, f"{STEMS[split]}-labels-idx1-ubyte")
    return read_idx_set(folder, split, passport.name, passport.classes)


def _refuse_another(passport: Passport, path: Path, file: str) -> None:
    digest = sha256(path)
    for other in map(dataset_info, list_datasets()):
        if other.made_from is None and other.sha256.get(file) == digest != passport.sha256.get(file):
            raise DataError(f"{path}: these are the labels of {other.name!r}, not of {passport.name!r}")
