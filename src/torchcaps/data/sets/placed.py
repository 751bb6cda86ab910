"""Digits on 40 × 40 black pixels, as in arXiv 1710.09829, section 5.2: placed, or first transformed as affNIST's.

The ranges are affNIST's; the order of the factors and the resampling are ours: figures are not figures on affNIST.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Generator, Tensor

from torchcaps.data._registry import register_derived
from torchcaps.data.augment.affine import inverse_map
from torchcaps.data.dataset import ImageBatch, ImageSet
from torchcaps.data.pixels import to_float
from torchcaps.data.sets.mnist import DIGITS, INFO as MNIST
from torchcaps.errors import DataError, check_range

CHUNK = 512  # images warped at a time
SIDE = 40
COPIES = 4  # of each test digit in the named sets
ROUNDS = 100  # of drawing again what did not fit
# What is drawn for a transformed copy, and its range where it is the same for all.
AMOUNTS = ("rotation", "shear", "scale_x", "scale_y", "top", "left")
LOW, HIGH = (-20.0, -0.2, 0.8, 0.8), (20.0, 0.2, 1.2, 1.2)


@dataclass(frozen=True, eq=False, repr=False)
class PlacedSet(ImageSet):
    """Images at random places of a black canvas; a training draws new places in every step."""

    content: tuple[int, int] = (
        0,
        0,
    )  # (height, width) of the image, whose place is in the factors "top" and "left"
    canvas: int = 0  # its side in pixels when they were placed

    def sample_batch(self, indices: Tensor | Sequence[int], *, generator: Generator) -> ImageBatch:
        index = self._index(indices)
        if self.img_size != (self.canvas, self.canvas):
            raise DataError(
                f"{self.name}: expected canvases of {self.canvas} pixels, as they were made, got {self!r}"
            )
        moves = []
        for name, side in zip(("top", "left"), self.content, strict=True):
            free = self.canvas - side + 1
            place = torch.randint(free, index.shape, generator=generator, device=generator.device)
            moves.append(place.to(index.device) - self.factors[name].to(index.device)[index])
        return ImageBatch(
            to_float(_place(self.images[index], moves[0], moves[1], self.canvas)),
            self.labels[index],
        )


def placed(
    source: ImageSet, size: int = 40, *, seed: int = 0, name: str | None = None
) -> PlacedSet:
    """A set with each image at a random place of a canvas of `size` × `size` black pixels, the same for one seed.

    ValueError for a canvas smaller than the images.
    """
    check_range("size", size, low=max(source.img_size))
    random = np.random.RandomState(seed)
    tops, lefts = (
        torch.from_numpy(random.randint(0, size - side + 1, len(source)))
        for side in source.img_size
    )
    images = _place(
        source.images, tops.to(source.images.device), lefts.to(source.images.device), size
    )
    return PlacedSet(
        images,
        source.labels,
        source.classes,
        name or f"placed-{source.name}",
        {**source.factors, "top": tops, "left": lefts},
        source.group,
        source.img_size,
        size,
    )


def affine_copies(
    source: ImageSet, copies: int = 32, size: int = 40, *, seed: int = 0, name: str | None = None
) -> ImageSet:
    """affNIST-like images: every image turned, sheared and scaled about its center, then placed with all ink inside.

    Uniform: rotation within ±20°, shear within ±0.2, both scales from 0.8 to 1.2, then the place. Sampled bilinearly;
    what is too large is drawn again. A point p goes to rotation · [[1, shear], [0, 1]] · diag(scales) p.

    The source has uint8 images of one channel; otherwise, or where one does not fit the canvas of `size` × `size`
    pixels, DataError. Its `copies`, 32 of each image in affNIST, are next to each other.

    The factors are "original" (index into the source; the group), "rotation" (degrees, clockwise), "shear", "scale_x",
    "scale_y", "top" and "left" (of the ink's box).
    """
    check_range("copies", copies, low=1)
    if source.images.dtype != torch.uint8 or source.in_chans != 1:
        raise DataError(f"{source.name}: expected uint8 images of one channel, got {source!r}")
    random = np.random.RandomState(seed)
    original = torch.arange(len(source)).repeat_interleave(copies)
    warped = [_fit_chunk(source, index, size, random) for index in original.split(CHUNK)]
    images, drawn = (torch.cat(parts) for parts in zip(*warped, strict=True))
    factors = {"original": original, **dict(zip(AMOUNTS, drawn.unbind(dim=1), strict=True))}
    name = name or f"affine-{source.name}"
    return ImageSet(
        images, source.labels.cpu()[original], source.classes, name, factors, group="original"
    )


def _fit_chunk(
    source: ImageSet, index: Tensor, size: int, random: np.random.RandomState
) -> tuple[Tensor, Tensor]:
    originals = source.images[index.to(source.images.device)].cpu().float()
    images = torch.zeros(len(index), 1, size, size, dtype=torch.uint8)
    amounts = torch.zeros(len(index), 6)
    left_over = torch.arange(len(index))
    for _ in range(ROUNDS):
        drawn = torch.from_numpy(random.uniform(LOW, HIGH, (len(left_over), 4))).float()
        pixels = _warp(originals[left_over], drawn)
        top, left, height, width = _ink_box(pixels)
        fits = (height <= size) & (width <= size)
        free = torch.stack([size - height, size - width], dim=1)[fits]
        corner = torch.from_numpy(random.randint(0, free.numpy() + 1))
        done = left_over[fits]
        images[done] = _place(
            pixels[fits], corner[:, 0] - top[fits], corner[:, 1] - left[fits], size
        )
        amounts[done] = torch.cat([drawn[fits], corner.float()], dim=1)
        left_over = left_over[~fits]
        if not len(left_over):
            return images, amounts
    raise DataError(
        f"{source.name}: image {int(index[left_over[0]])} does not fit a canvas of {size} × {size} pixels"
    )


def _warp(images: Tensor, drawn: Tensor) -> UInt8[Tensor, "batch 1 side side"]:
    """Images warped about their center, on a canvas twice as wide, which no warp in the ranges leaves."""
    inverse = inverse_map(drawn[:, 0] * (math.pi / 180), *drawn[:, 1:].unbind(dim=1))
    height, width = images.shape[2:]
    side = 2 * max(height, width)
    along = torch.arange(side) - (side - 1) / 2
    points = torch.stack(
        torch.meshgrid(along, along, indexing="xy"), dim=-1
    )  # [side, side, (x, y)] in pixels
    sources = torch.einsum("bij,yxj->byxi", inverse, points) * (2 / torch.tensor([width, height]))
    moved = F.grid_sample(
        images, sources, mode="bilinear", padding_mode="zeros", align_corners=False
    )
    return moved.round().clamp(0, 255).to(torch.uint8)


def _ink_box(images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, left, height and width of what is not black in each image, `[batch]` each; an empty image has size 0."""
    rows, columns = ((images > 0).any(dim=axis).any(dim=1).long() for axis in (3, 2))
    top, left = rows.argmax(dim=1), columns.argmax(dim=1)
    bottom, right = (ink.shape[1] - ink.flip(1).argmax(dim=1) for ink in (rows, columns))
    inked = rows.any(dim=1)
    return top, left, (bottom - top) * inked, (right - left) * inked


def _place(images: Tensor, tops: Tensor, lefts: Tensor, size: int) -> Tensor:
    """Canvases of `size` × `size` with pixel (0, 0) of each image at (top, left), which may lie outside."""
    along = torch.arange(size, device=images.device)
    rows, columns = (
        along - tops[:, None],
        along - lefts[:, None],
    )  # [batch, size]: where each pixel comes from
    height, width = images.shape[2:]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[
        :, None, :
    ]
    rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    sample = torch.arange(len(images), device=images.device)[:, None, None]
    pixels = images.movedim(1, -1)[sample, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)
    return pixels * inside[:, None].to(pixels.dtype)


def _place_split(source: ImageSet, split: str) -> ImageSet:
    return placed(source, SIDE, seed=0 if split == "train" else 1)


def _transform_test(source: ImageSet, split: str) -> ImageSet:
    return (
        _place_split(source, split)
        if split == "train"
        else affine_copies(source, COPIES, SIDE, seed=1)
    )


for _base, _digits in ((MNIST, "MNIST"), (DIGITS, "digits of the package")):
    register_derived(
        _base,
        _place_split,
        name=f"placed-{_base.name}",
        image_shape=(1, SIDE, SIDE),
        title=f"{_digits} at random places of 40 × 40",
    )
    register_derived(
        _base,
        _transform_test,
        name=f"affine-{_base.name}",
        image_shape=(1, SIDE, SIDE),
        test=_base.test * COPIES,
        title=f"trained on placed {_digits}, tested by affNIST's recipe",
    )
