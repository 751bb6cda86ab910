"""A square of zeros."""

from dataclasses import dataclass

import torch
from torch import Generator

from torchcaps.data.augment._registry import AXES, Images, register_augmentation
from torchcaps.errors import check_range, check_shape
from torchcaps.groups import setting


@dataclass(frozen=True)
class EraseSettings:
    """How much is erased."""

    erase: int = setting(
        0, "side of a square in pixels that is set to zero at a random place", low=0
    )


def random_erasing(images: Images, side: int, *, generator: Generator) -> Images:
    """Set a square of `side` × `side` pixels of each image to zero, its place drawn uniformly."""
    check_shape("images", images, AXES)
    check_range("side", side, low=0, high=min(images.shape[2:]))
    rows, columns = (
        torch.arange(length, device=generator.device)
        - torch.randint(
            length - side + 1, (len(images), 1), generator=generator, device=generator.device
        )
        for length in images.shape[2:]
    )
    in_rows = (rows >= 0) & (rows < side)
    in_columns = (columns >= 0) & (columns < side)
    square = (in_rows.unsqueeze(2) & in_columns.unsqueeze(1)).unsqueeze(1).to(images.device)
    return images.masked_fill(square, 0)


# After the crop, so that the square lies in what the model sees.
@register_augmentation("erase", EraseSettings, moves_pixels=True, order=70)
def _apply(images: Images, settings: EraseSettings, generator: Generator) -> Images:
    return random_erasing(images, settings.erase, generator=generator)
