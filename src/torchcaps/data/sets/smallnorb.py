"""smallNORB: stereo photographs of fifty toys from 162 viewpoints under six lights (LeCun, Huang, Bottou 2004)."""

from __future__ import annotations

from pathlib import Path

from torchcaps.data._registry import Mirror, Passport, register_dataset
from torchcaps.data.dataset import ImageSet
from torchcaps.data.norb import CLASSES, STEMS, holds_norb, read_norb
from torchcaps.data.sets._views import register_views

CATEGORIES = "591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e"  # of both splits

PASSPORT = Passport(
    name="smallnorb",
    title="smallNORB, stereo photographs of toys",
    classes=CLASSES,
    image_shape=(2, 48, 48),
    train=24_300,
    test=24_300,
    licence="for research only, as its authors state",
    source="https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/",
    sha256={
        f"{STEMS['train']}-dat.mat": "4813bf104d229583fea8ed57fdc3e9258c927b8dfb43d75412e854a7a9588067",
        f"{STEMS['train']}-cat.mat": CATEGORIES,
        f"{STEMS['train']}-info.mat": "6b4075d3800ba0c6fa8c46a02f672572abe7b93f7ed82fb7668354a99ef03306",
        f"{STEMS['test']}-dat.mat": "2b1de646c57ffdc259b8fb973a6453e90915248a8fdb4d9df948786bdae72b34",
        f"{STEMS['test']}-cat.mat": CATEGORIES,
        f"{STEMS['test']}-info.mat": "318f817236b7c97af03cd90e07a9cbb4346e20ef83a1118a61eeb50e3b96db7e",
    },
    sources=(Mirror("https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"),),
)


@register_dataset(PASSPORT)
def read_smallnorb(folder: Path, split: str) -> ImageSet | None:
    """smallNORB at 48 × 48, both eyes, from its binary matrices, plain or .gz; None when none of them is there."""
    stem = PASSPORT.name
    return read_norb(folder, split, name=stem, stem=stem) if holds_norb(folder, stem) else None


register_views(PASSPORT)
