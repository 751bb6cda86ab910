"""The novel-viewpoint protocols of smallNORB (Hinton, Sabour, Frosst, ICLR 2018, section 5; table 2).

Train on one third of the views of the training toys; test on the same views of the test toys, the familiar ones, and on
the other two thirds, the novel ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from torchcaps.data.dataset import ImageSet
from torchcaps.errors import DataError, UnknownNameError

# Codes of the familiar views: azimuths of 300° to 40° (in tens of degrees), elevations of 30° to 40°.
FAMILIAR = {"azimuth": (30, 32, 34, 0, 2, 4), "elevation": (0, 1, 2)}


class Views(NamedTuple):
    """A set in two parts: `familiar` views, of which a model is trained on those of the training split, and `novel`."""

    familiar: ImageSet
    novel: ImageSet


def split_views(images: ImageSet, by: str) -> Views:
    """Part a set by viewpoint.

    Train on `split_views(train, by).familiar`, test on both parts of `split_views(test, by)`.

    Args:
        images: with the factor `by` in smallNORB's codes.
        by: "azimuth" (familiar: 300° to 40°, six of eighteen) or "elevation" (familiar: 30° to 40°, three of nine).

    Raises:
        UnknownNameError: for another `by`.
        DataError: the set does not have this factor, or all of its images are on one side.
    """
    if by not in FAMILIAR:
        raise UnknownNameError("viewpoint", by, FAMILIAR)
    if by not in images.factors:
        raise DataError(f"{images.name}: expected the factor {by!r}, got {', '.join(images.factors) or 'none'}")
    known = torch.isin(images.factors[by], torch.tensor(FAMILIAR[by]))
    if known.all() or not known.any():
        raise DataError(f"{images.name}: all of its images are {'familiar' if known.all() else 'novel'} by {by}")
    return Views(images.subset(known.nonzero().flatten()), images.subset((~known).nonzero().flatten()))
