"""GTSRB: German traffic signs, in tracks of frames from a driving car (Stallkamp et al. 2012)."""

from __future__ import annotations

from pathlib import Path

from torchcaps.data._registry import Passport, register_dataset
from torchcaps.data.dataset import ImageSet
from torchcaps.data.gtsrb import CLASSES, gtsrb_base, read_gtsrb

PASSPORT = Passport(
    name="gtsrb",
    title="German Traffic Sign Recognition Benchmark",
    classes=CLASSES,
    image_shape=(3, 32, 32),
    train=39_209,
    test=12_630,
    licence="none stated; its authors ask that Stallkamp et al. 2012 be cited",
    source="https://benchmark.ini.rub.de/gtsrb_dataset.html",
    sha256={"Final_Training/Images/00000/GT-00000.csv": None, "Final_Test/Images/GT-final_test.csv": None},
    folders=("GTSRB",),
)


@register_dataset(PASSPORT)
def read_named_gtsrb(folder: Path, split: str) -> ImageSet | None:
    """GTSRB at 32 × 32 from its unpacked folders; None when they are not there."""
    return read_gtsrb(folder, split, name=PASSPORT.name) if gtsrb_base(folder) is not None else None
