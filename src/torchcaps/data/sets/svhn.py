"""SVHN: digits of house numbers, photographed in the street (Netzer et al. 2011)."""

from __future__ import annotations

from pathlib import Path

from torchcaps.data._registry import Mirror, Passport, register_dataset
from torchcaps.data.dataset import ImageSet
from torchcaps.data.svhn import CLASSES, SHAPE, holds_svhn, read_svhn, svhn_file

PASSPORT = Passport(
    name="svhn",
    title="Street View House Numbers, cropped digits",
    classes=CLASSES,
    image_shape=SHAPE,
    train=73_257,
    test=26_032,
    licence="for non-commercial use only, as its authors state",
    source="http://ufldl.stanford.edu/housenumbers/",
    sha256={
        "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    },
    sources=(Mirror("http://ufldl.stanford.edu/housenumbers/", suffix=""),),
)


@register_dataset(PASSPORT)
def read_named_svhn(folder: Path, split: str) -> ImageSet | None:
    """SVHN from a folder of its `.mat` files; None when neither is there."""
    return read_svhn(svhn_file(folder, split), PASSPORT.name) if holds_svhn(folder) else None
