"""affNIST as published (Tieleman 2013): MNIST under small affine transformations, on 40 × 40."""

from __future__ import annotations

from pathlib import Path

from torchcaps.data._registry import Passport, register_dataset
from torchcaps.data.affnist import CLASSES, SIDE, affnist_files, join_affnist
from torchcaps.data.dataset import ImageSet

PASSPORT = Passport(
    name="affnist",
    title="affNIST, MNIST under affine transformations",
    classes=CLASSES,
    image_shape=(1, SIDE, SIDE),
    train=1_920_000,
    test=320_000,
    licence="none stated",
    source="https://www.cs.toronto.edu/~tijmen/affNIST/",
    sha256={"transformed/training_and_validation_batches/1.mat": None, "transformed/test_batches/1.mat": None},
)


@register_dataset(PASSPORT)
def read_named_affnist(folder: Path, split: str) -> ImageSet | None:
    """affNIST from its unpacked `.mat` files, all that are there; None when there are none."""
    files = affnist_files(folder, split)
    return join_affnist(files, PASSPORT.name) if files else None
