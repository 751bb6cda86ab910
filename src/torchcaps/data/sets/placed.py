"""Digits on 40 × 40 black pixels: placed at random, or first transformed as affNIST's are.

Sabour, Frosst, Hinton, "Dynamic Routing Between Capsules", arXiv 1710.09829, section 5.2. The
ranges are affNIST's; the order of the factors and the resampling are ours, so that accuracies are
not accuracies on affNIST.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int64
from torch import Generator, Tensor

from torchcaps.data._registry import register_derived, set_facts
from torchcaps.data.augment.changes import inverse_map
from torchcaps.data.dataset import Batch, Dataset, Maker, select_rows
from torchcaps.data.pixels import HeightWidth, Images, random_offsets, to_float, windows_at
from torchcaps.data.sets.mnist import DIGITS, INFO as MNIST
from torchcaps.errors import DataError, check_positive, check_range
from torchcaps.transfer import to_device

CHUNK = 512  # images warped at a time
COPIES = 4  # of each test digit in the named sets
ROUNDS = 100  # of drawing again what did not fit
# What is drawn for a transformed copy, and its range where it is the same for all.
FACTORS = ("rotation", "shear", "scale_x", "scale_y", "top", "left")
LOW = (-20.0, -0.2, 0.8, 0.8)
HIGH = (20.0, 0.2, 1.2, 1.2)


@dataclass(frozen=True)
class PlaceMaker(Maker):
    """Draws new places of images on their black canvases.

    Attributes:
        content: (height, width) of an image, whose place is in the targets "top" and "left".
        canvas: side of a canvas in pixels.
    """

    content: HeightWidth
    canvas: int

    def draw(self, images: Dataset, indices: Tensor, generator: Generator) -> Batch:
        """Images at new random places; DataError where the set was cropped or resized."""
        if images.img_size != (self.canvas, self.canvas):
            raise DataError(
                f"{images.name}: expected the canvases of {self.canvas} pixels, got {images!r}"
            )
        targets = select_rows(images.targets, indices)
        corners = [
            random_offsets(len(indices), self.canvas, side, generator) for side in self.content
        ]
        places = to_device(torch.column_stack(corners), indices.device)
        moves = places - torch.column_stack([targets["top"], targets["left"]])
        targets["top"], targets["left"] = places.unbind(dim=1)
        margin = self.canvas - min(self.content)
        canvases = place_images(images.inputs[indices], images.img_size, moves, margin)
        return Batch(to_float(canvases), targets, indices)


def place_images(
    images: Images,
    size: Sequence[int],
    corners: Int64[Tensor, "batch 2"],
    margin: int | None = None,
) -> Images:
    """Black canvases of `size` (rows, columns), each with an image at a place.

    Args:
        images: of any type.
        size: of a canvas in pixels.
        corners: (top, left) of each image on its canvas; parts outside are cut off.
        margin: pixels around an image with which every canvas is a window of it. It spares a GPU
            the question how many these are.
    """
    # A canvas is a window of an image with a black margin that all windows lie in.
    if margin is None or images.device.type == "cpu":  # there the smallest margin costs nothing
        room = corners.new_tensor(size) - corners.new_tensor(images.shape[2:])
        margin = int(torch.cat([corners, room - corners, corners.new_zeros(1, 2)]).max())
    return windows_at(F.pad(images, (margin,) * 4), size, *(margin - corners).unbind(dim=1))


def placed(
    source: Dataset,
    size: int = 40,
    *,
    seed: int = 0,
    name: str | None = None,
) -> Dataset:
    """A set with each image at a random place of a black canvas.

    Args:
        source: the images.
        size: sides of the canvas in pixels.
        seed: 0 or more; gives the same places on every machine.
        name: by default "placed-" and the source's.

    Returns:
        The set, with the targets "top" and "left" of its images beside the source's.

    Raises:
        ValueError: for a canvas smaller than the images.
    """
    check_range("size", size, low=max(source.img_size))
    random = np.random.RandomState(seed)
    tops, lefts = (
        torch.from_numpy(random.randint(0, size - side + 1, len(source)))
        for side in source.img_size
    )
    corners = torch.column_stack([tops, lefts]).to(source.images.device)
    return Dataset(
        place_images(source.images, (size, size), corners),
        {**source.targets, "top": tops, "left": lefts},
        source.classes,
        name or f"placed-{source.name}",
        source.groups,
        source.notes,
        maker=PlaceMaker(source.img_size, size),
    )


def affine_copies(
    source: Dataset,
    copies: int = 32,
    size: int = 40,
    *,
    seed: int = 0,
    name: str | None = None,
) -> Dataset:
    """Images like affNIST's: turned, sheared and scaled about the center, then placed.

    All are drawn uniformly: a rotation within ±20°, a shear within ±0.2, two scales from 0.8 to
    1.2, then the place, with all ink inside. What is too large is drawn again. A point p goes to
    rotation · [[1, shear], [0, 1]] · diag(scales) p, sampled bilinearly.

    Args:
        source: uint8 images of one channel.
        copies: of each image, next to each other; affNIST has 32.
        size: sides of the canvas in pixels.
        seed: 0 or more.
        name: by default "affine-" and the source's.

    Returns:
        The set. Its targets are "label", "original" (index into the source), "rotation" (degrees,
        clockwise), "shear", "scale_x", "scale_y", "top" and "left" (of the ink's box).

    Raises:
        DataError: for other images, or one that does not fit the canvas.
    """
    check_positive(copies=copies)
    if source.images.dtype != torch.uint8 or source.in_chans != 1:
        raise DataError(f"{source.name}: expected uint8 images of one channel, got {source!r}")
    random = np.random.RandomState(seed)
    original = torch.arange(len(source)).repeat_interleave(copies)
    images = torch.empty(len(original), 1, size, size, dtype=torch.uint8)
    amounts = torch.empty(len(original), len(FACTORS))
    for index in torch.arange(len(original)).split(CHUNK):
        images[index], amounts[index] = _copy_chunk(source, original[index], size, random)
    targets = {"label": source.labels.cpu()[original], "original": original}
    return Dataset(
        images,
        targets | dict(zip(FACTORS, amounts.unbind(dim=1), strict=True)),
        source.classes,
        name or f"affine-{source.name}",
        original if source.groups is None else source.groups.cpu()[original],
    )


def _copy_chunk(
    source: Dataset, index: Tensor, size: int, random: np.random.RandomState
) -> tuple[Tensor, Tensor]:
    """Transformed copies of some images.

    Args:
        source: the images.
        index: `[batch]`, which of them.
        size: sides of the canvas in pixels.
        random: draws transformations and places.

    Returns:
        The copies, uint8 `[batch, 1, size, size]`, and their factors, `[batch, 6]` in the order of
        `FACTORS`.
    """
    originals = source.images[index.to(source.images.device)].cpu().float()
    images = torch.zeros(len(index), 1, size, size, dtype=torch.uint8)
    amounts = torch.zeros(len(index), len(FACTORS))
    pending = torch.arange(len(index))
    for _ in range(ROUNDS):
        warps = torch.from_numpy(random.uniform(LOW, HIGH, (len(pending), 4))).float()
        pixels = _warp(originals[pending], warps)
        ink_corners, ink_sizes = _ink_boxes(pixels)
        fits = (ink_sizes <= size).all(dim=1)

        # What fits goes to a random place, by the corner of its ink.
        corners = torch.from_numpy(random.randint(0, (size - ink_sizes[fits]).numpy() + 1))
        rows = pending[fits]
        images[rows] = place_images(pixels[fits], (size, size), corners - ink_corners[fits])
        amounts[rows] = torch.cat([warps[fits], corners.float()], dim=1)
        pending = pending[~fits]
        if not len(pending):
            return images, amounts
    raise DataError(
        f"{source.name}: image {index[pending[0]]} does not fit a canvas of {size} × {size} pixels"
    )


def _warp(images: Tensor, warps: Tensor) -> Tensor:
    """Images warped about their center, on a canvas twice as wide, which no warp leaves.

    Args:
        images: `[batch, 1, height, width]`.
        warps: `[batch, 4]`: rotation in degrees, shear, both scales.
    """
    degrees, shear, scale_x, scale_y = warps.unbind(dim=1)
    inverse = inverse_map(degrees.deg2rad(), shear, scale_x, scale_y)
    height, width = images.shape[2:]
    side = 2 * max(height, width)
    along = torch.arange(side) - (side - 1) / 2
    points = torch.stack(torch.meshgrid(along, along, indexing="xy"), dim=-1)  # (x, y) in pixels
    grid = torch.einsum("bij,yxj->byxi", inverse, points) * (2 / torch.tensor([width, height]))
    return F.grid_sample(images, grid, align_corners=False).round().clamp(0, 255).byte()


def _ink_boxes(images: Tensor) -> tuple[Tensor, Tensor]:
    """(top, left) and (height, width), `[batch, 2]`, of what is not black.

    An empty image has size 0.
    """
    is_ink = images > 0
    corners = []
    sizes = []
    for axis in (3, 2):
        has_ink = is_ink.any(dim=axis).any(dim=1).long()
        corners.append(has_ink.argmax(dim=1))
        end = has_ink.shape[1] - has_ink.flip(1).argmax(dim=1)
        sizes.append((end - corners[-1]) * has_ink.amax(dim=1))
    return torch.column_stack(corners), torch.column_stack(sizes)


for _base in (MNIST, DIGITS):
    register_derived(
        _base,
        lambda source, split: placed(source, seed=int(split == "test")),
        **set_facts(f"placed-{_base.name}"),
    )
    register_derived(  # placed digits to train on, transformed ones to test on
        _base,
        lambda source, split: (
            affine_copies(source, COPIES, seed=1) if split == "test" else placed(source)
        ),
        **set_facts(f"affine-{_base.name}"),
    )
