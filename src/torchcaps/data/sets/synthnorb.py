"""synthNORB: rendered toys in smallNORB's layout; `fetch_dataset` renders it into the cache."""

from __future__ import annotations

from pathlib import Path

from torchcaps.data._registry import Passport, Rendering, register_dataset
from torchcaps.data.dataset import ImageSet
from torchcaps.data.norb import CLASSES, holds_norb, read_norb
from torchcaps.data.sets._views import register_views
from torchcaps.data.synthnorb import write_synthnorb
from torchcaps.data.synthnorb.make import NAMES

PASSPORT = Passport(
    name="synthnorb",
    title="rendered toys, a stand-in for smallNORB",
    classes=CLASSES,
    image_shape=(1, 48, 48),
    train=24_300,
    test=24_300,
    licence="Apache-2.0, rendered by this package",
    source="torchcaps.data.render_synthnorb",
    # Rounding differs between processors, so that no digest holds everywhere.
    sha256={f"{stem}-{kind}.mat": None for stem in NAMES.values() for kind in ("dat", "cat", "info")},
    sources=(Rendering(write_synthnorb, "rendering"),),
)


@register_dataset(PASSPORT)
def read_synthnorb(folder: Path, split: str) -> ImageSet | None:
    """synthNORB from the files that rendering it has left; None when none of them is there."""
    stem = PASSPORT.name
    return read_norb(folder, split, name=stem, stem=stem) if holds_norb(folder, stem) else None


register_views(PASSPORT)
