"""The novel-viewpoint sets that belong to a set of smallNORB's layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torchcaps.data._registry import Passport, dataset_reader, register_dataset
from torchcaps.data.dataset import ImageSet
from torchcaps.data.viewpoint import FAMILIAR, split_views

CODES = {"azimuth": 18, "elevation": 9}


def register_views(base: Passport) -> None:
    """Register `<base>-azimuth` and `<base>-elevation`, and each with `-familiar` behind it.

    All train on the familiar views of the training toys; the first two test on the novel views of the test toys, the
    `-familiar` ones on the familiar views of the same toys.
    """
    for by in FAMILIAR:
        for part in ("novel", "familiar"):
            _register(base, by, part)


def _register(base: Passport, by: str, part: str) -> None:
    name = f"{base.name}-{by}" if part == "novel" else f"{base.name}-{by}-familiar"
    known = base.train * len(FAMILIAR[by]) // CODES[by]
    short, others = base.title.split(",")[0], "the other two" if part == "novel" else "the same"
    title = f"{short}: trained on one third of the {by}s, tested on {others}"
    test = base.test - known if part == "novel" else known

    @register_dataset(replace(base, name=name, title=title, train=known, test=test, made_from=base.name))
    def read(folder: Path, split: str) -> ImageSet | None:
        whole = dataset_reader(base.name)(folder, split)
        if whole is None:
            return None
        views = split_views(whole, by)
        return replace(views.novel if split == "test" and part == "novel" else views.familiar, name=name)
