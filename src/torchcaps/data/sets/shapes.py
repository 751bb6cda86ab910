"""Shapes: rendered discs, squares and triangles that overlap, with their masks; only outlines tell them apart."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from torchcaps.data._registry import DatasetInfo, FetchProgress, ReadRequest, register_dataset
from torchcaps.data.dataset import ImageSet
from torchcaps.data.masks import MaskedSet, read_masks, write_mask
from torchcaps.data.sources import Rendering, writing
from torchcaps.errors import check_range

Floats = NDArray[np.float64]
CLASSES = ("background", "disc", "square", "triangle")
SIDE, COUNTS = 64, {"train": 2000, "test": 500}
FINE = 3  # rays of a pixel along each axis
NOISE, TRIES = (
    12,
    32,
)  # deviation of the noise, of 255; brightnesses drawn for a shape: the most distinct is kept
TABLE = "classes.txt"


def render_shapes(count: int, size: int = SIDE, *, seed: int = 0) -> MaskedSet:
    """Gray images of two to four shapes of random kind, place, size, turn and brightness, each laid over the last.

    Sides have `size` pixels, at least 16; the same seed, 0 or more, gives the same set on every machine and version.

    ValueError for a count below 1 or a size below 16.
    """
    check_range("count", count, low=1)
    check_range("size", size, low=16)
    drawn = [_scene(np.random.RandomState([seed, index]), size) for index in range(count)]
    images, masks = (torch.from_numpy(np.stack(parts)) for parts in zip(*drawn, strict=True))
    return MaskedSet.of(images.unsqueeze(1), masks, CLASSES, "shapes")


def _scene(random: np.random.RandomState, size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    along = (np.arange(size * FINE) + 0.5) / (size * FINE)
    y, x = np.meshgrid(along, along, indexing="ij")
    slope = random.uniform(-30, 30, 2)
    light = 128 + random.uniform(-60, 60) + slope[0] * (x - 0.5) + slope[1] * (y - 0.5)
    mask, levels = np.zeros(light.shape, dtype=np.uint8), [light.mean()]
    for _ in range(random.randint(2, 5)):
        kind = random.randint(1, len(CLASSES))
        inside = _shape(kind, x, y, random)
        levels.append(
            max(
                random.uniform(10, 245, TRIES),
                key=lambda new: min(abs(new - old) for old in levels),
            )
        )
        light[inside], mask[inside] = levels[-1], kind
    pixels = light.reshape(size, FINE, size, FINE).mean(axis=(1, 3)) + random.normal(
        0, NOISE, (size, size)
    )
    return pixels.round().clip(0, 255).astype(np.uint8), mask[
        FINE // 2 :: FINE, FINE // 2 :: FINE
    ].copy()


def _shape(kind: int, x: Floats, y: Floats, random: np.random.RandomState) -> NDArray[np.bool_]:
    """Where a shape is: all three kinds of one radius have about the same area."""
    center, radius, turn = (
        random.uniform(0.15, 0.85, 2),
        random.uniform(0.1, 0.22),
        random.uniform(0, 2 * np.pi),
    )
    x, y = x - center[0], y - center[1]
    if kind == 1:
        return x * x + y * y < radius * radius
    corners, reach = (
        (4, 0.886 * radius) if kind == 2 else (3, 0.778 * radius)
    )  # from the center to a side
    sides = turn + 2 * np.pi * np.arange(corners) / corners
    found: NDArray[np.bool_] = np.all(
        [x * np.cos(a) + y * np.sin(a) < reach for a in sides], axis=0
    )
    return found


def write_shapes(folder: str | Path, progress: FetchProgress | None = None) -> None:
    """Render both splits and write them as `read_masks` reads them, the table of classes last."""
    folder = Path(folder)
    with writing(folder):
        for split, count in COUNTS.items():
            shapes = render_shapes(count, seed=("train", "test").index(split))
            for part in ("images", "masks"):
                (folder / split / part).mkdir(parents=True, exist_ok=True)
            for index, (image, mask) in enumerate(zip(shapes.images, shapes.masks, strict=True)):
                name = f"{index:05d}.png"
                Image.fromarray(image[0].numpy()).save(folder / split / "images" / name)
                write_mask(folder / split / "masks" / name, mask.numpy(), len(CLASSES))
                if progress and index % 100 == 99:
                    progress(f"shapes {split}", index + 1, count)
        (folder / TABLE).write_text("\n".join(CLASSES) + "\n", encoding="utf-8")


INFO = DatasetInfo(
    name="shapes",
    title="rendered shapes that overlap, with masks",
    classes=CLASSES,
    image_shape=(1, SIDE, SIDE),
    train=COUNTS["train"],
    test=COUNTS["test"],
    license="Apache-2.0, rendered by this package",
    source="torchcaps.data.render_shapes",
    sources=(Rendering(write_shapes, "rendering"),),
    sha256={TABLE: None},  # rounding differs between processors, so that no digest holds everywhere
)


@register_dataset(INFO)
def _read(folder: Path, request: ReadRequest) -> ImageSet | None:
    if not ((folder / TABLE).is_file() and (folder / request.split / "masks").is_dir()):
        return None
    return read_masks(folder, request)
