"""Rendered discs, squares and triangles that overlap, with masks; only outlines tell them apart."""

from pathlib import Path

import numpy as np
import torch

from torchcaps.data._registry import SPLITS, FetchProgress, ReadRequest, register_dataset
from torchcaps.data.dataset import Dataset
from torchcaps.data.masks import masked_set
from torchcaps.data.reading import open_arrays
from torchcaps.data.sources import Rendering, published_set, writing
from torchcaps.errors import check_positive, check_range
from torchcaps.types import Json

FINE = 3  # rays of a pixel along each axis
NOISE = 12  # standard deviation, of 255
TRIES = 32  # brightnesses drawn for a shape: the most distinct is taken
FILE = "shapes.npz"


def render_shapes(count: int, size: int = 64, *, seed: int = 0) -> Dataset:
    """Gray images of two to four shapes, each laid over the last.

    Their kinds, places, sizes, turns and brightnesses are random.

    Args:
        count: of images, at least 1.
        size: of a side in pixels, at least 16.
        seed: 0 or more; gives the same set on every machine and version.

    Returns:
        The images, with masks of the kinds of shapes.

    Raises:
        ValueError: for a count or size out of range.
    """
    check_positive(count=count)
    check_range("size", size, low=16)
    scenes = (_render_scene(np.random.RandomState([seed, k]), size) for k in range(count))
    images, masks = (torch.from_numpy(np.stack(column)) for column in zip(*scenes, strict=True))
    return masked_set(images.unsqueeze(1), masks, INFO.classes, INFO.name)


def _render_scene(random: np.random.RandomState, size: int) -> tuple[np.ndarray, np.ndarray]:
    """An image and its mask.

    Args:
        random: draws the shapes.
        size: of a side in pixels.

    Returns:
        `[size, size]` each.
    """
    along = (np.arange(size * FINE) + 0.5) / (size * FINE)
    x, y = np.meshgrid(along, along)
    slope_x, slope_y = random.uniform(-30, 30, 2)
    light = 128 + random.uniform(-60, 60) + slope_x * (x - 0.5) + slope_y * (y - 0.5)
    mask = np.zeros(light.shape, np.uint8)
    levels = [light.mean()]
    for _ in range(random.randint(2, 5)):
        kind = random.randint(1, len(INFO.classes))
        is_inside = _draw_shape(kind, x, y, random)
        candidates = random.uniform(10, 245, TRIES)
        differences = abs(np.subtract.outer(levels, candidates))
        levels.append(candidates[differences.min(axis=0).argmax()])
        light[is_inside] = levels[-1]
        mask[is_inside] = kind
    pixels = light.reshape(size, FINE, size, FINE).mean(axis=(1, 3))
    pixels += random.normal(0, NOISE, (size, size))
    middle = slice(FINE // 2, None, FINE)
    return pixels.round().clip(0, 255).astype(np.uint8), mask[middle, middle]


def _draw_shape(
    kind: int,
    x: np.ndarray,
    y: np.ndarray,
    random: np.random.RandomState,
) -> np.ndarray:
    """Where a shape is; all three kinds of one radius have about the same area.

    Args:
        kind: number of the class.
        x: of each ray, from 0 to 1.
        y: of each ray, from 0 to 1.
        random: draws its place, size and turn.
    """
    center = random.uniform(0.15, 0.85, 2)
    radius = random.uniform(0.1, 0.22)
    turn = random.uniform(0, 2 * np.pi)
    x = x - center[0]
    y = y - center[1]
    if INFO.classes[kind] == "disc":
        return x * x + y * y < radius * radius
    # The share of the radius from the center to a side.
    num_corners, reach = (3, 0.778) if INFO.classes[kind] == "triangle" else (4, 0.886)
    is_inside = np.ones(x.shape, bool)
    for angle in turn + 2 * np.pi * np.arange(num_corners) / num_corners:
        is_inside &= x * np.cos(angle) + y * np.sin(angle) < reach * radius
    return is_inside


def write_shapes(folder: Path, progress: FetchProgress) -> None:
    """Render both splits and write them into one file.

    Args:
        folder: of the file.
        progress: called with "shapes train", the images so far, and the images in all.

    Raises:
        DataError: where the file cannot be written.
    """
    arrays: Json = {}
    for seed, split in enumerate(SPLITS):
        count = getattr(INFO, split)
        shapes = render_shapes(count, seed=seed)
        arrays[f"{split}_images"] = shapes.images.numpy()
        arrays[f"{split}_masks"] = shapes.targets["mask"].numpy()
        if progress:
            progress(f"shapes {split}", count, count)
    with writing(folder / FILE):
        np.savez_compressed(folder / FILE, **arrays)


INFO = published_set("shapes", sources=(Rendering(write_shapes),))


@register_dataset(INFO)
def _read(folder: Path, request: ReadRequest) -> Dataset | None:
    if not (folder / FILE).is_file():
        return None
    with open_arrays(folder / FILE) as arrays:
        images, masks = (arrays[f"{request.split}_{kind}"] for kind in ("images", "masks"))
    return masked_set(torch.from_numpy(images), torch.from_numpy(masks), INFO.classes, INFO.name)
