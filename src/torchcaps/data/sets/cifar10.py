"""CIFAR-10: small colour photographs (Krizhevsky 2009, "Learning multiple layers of features from tiny images")."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torchcaps.data._registry import Archive, Passport, register_dataset
from torchcaps.data.cifar import CLASSES, FOLDERS, SHAPE, holds_cifar, read_cifar
from torchcaps.data.dataset import ImageSet
from torchcaps.data.tar import read_tar

JPEG_COPY = "cifar10-jpg"

PASSPORT = Passport(
    name="cifar10",
    title="CIFAR-10 colour photographs",
    classes=CLASSES,
    image_shape=SHAPE,
    train=50_000,
    test=10_000,
    licence="none stated; its authors ask that their technical report of 2009 be cited",
    source="https://www.cs.toronto.edu/~kriz/cifar.html",
    sha256=dict.fromkeys((*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")),
    sources=(
        Archive(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            folder=FOLDERS[0],
            md5="c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    folders=(*FOLDERS, JPEG_COPY),
)


@register_dataset(PASSPORT)
def read_cifar10(folder: Path, split: str) -> ImageSet | None:
    """CIFAR-10 from its binary or Python batches, or from a copy of it as JPEGs, `cifar10-jpg.tar.gz`.

    JPEG loses detail: the copy is not the canonical release, and the set read from it is named "cifar10-jpg".
    None when neither is in the folder.
    """
    if holds_cifar(folder):
        return read_cifar(folder, split, PASSPORT.name)
    copy = folder / f"{JPEG_COPY}.tar.gz"
    return replace(read_tar(copy, split, in_chans=3), name=JPEG_COPY) if copy.is_file() else None
