"""Which reader a path needs, told from what it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torchcaps.data.affnist import affnist_files, join_affnist
from torchcaps.data.arrays import read_arrays
from torchcaps.data.cifar import FOLDERS, holds_cifar, read_cifar
from torchcaps.data.dataset import ImageSet
from torchcaps.data.folder import read_folder
from torchcaps.data.gtsrb import gtsrb_base, read_gtsrb
from torchcaps.data.idx import holds_idx, read_idx_set
from torchcaps.data.norb import holds_norb, read_norb
from torchcaps.data.pixels import fit_images
from torchcaps.data.svhn import holds_svhn, read_svhn, svhn_file
from torchcaps.data.table import read_table
from torchcaps.data.tar import SUFFIXES, read_tar
from torchcaps.errors import DataError


def read_path(
    path: Path, split: str, *, img_size: int | tuple[int, int] | None = None, in_chans: int | None = None
) -> ImageSet:
    """Read one split of the data set at a path.

    Args:
        path: an existing file or folder, of a kind that `load_dataset` lists.
        split: "train" or "test".
        img_size: (height, width) or one side of a square to resize to.
        in_chans: 1 or 3.

    Raises:
        DataError: no reader takes it, or the reader's own errors.
    """
    tensors = _read_tensors(path, split)
    if tensors is not None:
        return replace(tensors, images=fit_images(tensors.images, img_size, in_chans))
    if path.is_dir() and gtsrb_base(path) is not None:
        found = read_gtsrb(path, split, img_size=img_size or 32, name=path.resolve().name)
        return replace(found, images=fit_images(found.images, None, in_chans))
    if path.is_dir():
        return read_folder(path, split, img_size=img_size, in_chans=in_chans)
    if path.name.lower().endswith(SUFFIXES):
        return read_tar(path, split, img_size=img_size, in_chans=in_chans)
    if path.suffix.lower() == ".csv":
        return read_table(path, split, img_size=img_size, in_chans=in_chans)
    raise DataError(
        f"{path}: not a data set; expected a folder of class folders, of IDX files, of CIFAR-10 batches or of another "
        f"published layout, or a file ending in .npz, .npy, .csv, {', '.join(SUFFIXES)}"
    )


def _read_tensors(path: Path, split: str) -> ImageSet | None:
    """What is stored as arrays, of one size as it stands; None when `path` is something else."""
    if path.suffix.lower() in (".npz", ".npy"):
        return read_arrays(path, split)
    if holds_idx(path):
        return read_idx_set(path, split, path.resolve().name)
    name = path.resolve().name
    if holds_norb(path):
        return read_norb(path, split, name=name)
    if holds_svhn(path):
        return read_svhn(svhn_file(path, split), name)
    if path.is_dir() and affnist_files(path, split):
        return join_affnist(affnist_files(path, split), name)
    batches = next((folder for folder in (path, *(path / name for name in FOLDERS)) if holds_cifar(folder)), None)
    return read_cifar(batches, split, path.resolve().name) if batches else None
