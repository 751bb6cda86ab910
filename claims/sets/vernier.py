"""Verniers, two bars of which the lower is offset to the left or right, and rows of outlines.

Adrien Doerig, Lynn Schmittwilken, Bilge Sayim, Mauro Manassi, Michael Herzog, "Capsule networks as
recurrent models of grouping and segmentation", PLoS Computational Biology 16(7), 2020, e1008017,
experiment 1. A network is trained on a vernier beside 1, 3 or 5 equal outlines. In the test the
vernier stands inside the middle one. One outline crowds it; more of them should set it free.
Differs from the authors' stimuli in: outlines have 13 pixels of 84 × 17, not 14 of 72 × 20; four
kinds of outlines; a label for each offset in place of a decoder of the vernier's capsule.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from torchcaps.data import Dataset, DatasetInfo, ReadRequest, register_dataset
from torchcaps.errors import check_known, check_range

Floats = NDArray[np.float64]
Random = np.random.RandomState

HEIGHT = 17
WIDTH = 84
RADIUS = 6  # pixels of an outline
OUTLINE = 2 * RADIUS + 1
BAR = 4  # pixels along a bar of a vernier
NOISE = 0.06  # standard deviation, of the brightness from 0 to 1
CONTRAST = (0.4, 0.7)  # brightness of lines above the background
BACKGROUND = 0.2
NUMBERS = (1, 3, 5)  # of outlines in a row
COUNTS = {"train": 20000, "test": 2000}

# Kind -> a norm that is 1 on the outline, of the distances from its middle.
OUTLINES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "square": np.maximum,
    "circle": np.hypot,
    "rhombus": lambda x, y: x + y,
    "hexagon": lambda x, y: np.maximum(x, 0.5 * x + 0.866 * y),
}
OFFSETS = ("left", "right")
CLASSES = (*OFFSETS, *OUTLINES)
ROWS = ("apart", "alone", "inside", "mixed")


class Row(NamedTuple):
    """What an image shows: see `render_verniers`."""

    arrangement: str
    number: int
    kind: int  # index into `OUTLINES`
    offset: int  # index into `OFFSETS`


def render_verniers(
    count: int, arrangement: str = "apart", *, number: int | None = None, seed: int = 0
) -> Dataset:
    """Images of a vernier and a row of outlines.

    Args:
        count: of images, at least 1.
        arrangement: "apart", the vernier beside equal outlines, as in training; "alone", without
            outlines; "inside", in the middle one of equal outlines; "mixed", the same where every
            second outline is of another kind.
        number: of outlines, odd; None is random among 1, 3 and 5.
        seed: 0 or more.

    Returns:
        Images of 17 × 84 pixels. Labels are the offset and the kind of the (middle) outline; of a
        vernier alone the second one means nothing.

    Raises:
        UnknownNameError: for another arrangement.
        ValueError: for a count or number out of range.
    """
    check_known("arrangement", arrangement, ROWS)
    check_range("count", count, low=1)
    if number is not None:
        check_range("number", number, low=1, high=5)
    random = Random([seed, ROWS.index(arrangement), number or 0])
    drawings = np.zeros((count, HEIGHT, WIDTH))
    labels = torch.zeros(count, len(CLASSES), dtype=torch.uint8)
    for k, drawing in enumerate(drawings):
        row_number = random.choice(NUMBERS) if number is None else number
        row = Row(arrangement, row_number, random.randint(len(OUTLINES)), random.randint(2))
        _draw(drawing, row, random)
        labels[k, [row.offset, len(OFFSETS) + row.kind]] = 1
    contrasts = random.uniform(*CONTRAST, (count, 1, 1))
    noise = random.normal(BACKGROUND, NOISE, drawings.shape)
    pixels = (255 * (contrasts * drawings + noise)).round().clip(0, 255).astype(np.uint8)
    images = torch.from_numpy(pixels).unsqueeze(1)
    return Dataset(images, {"labels": labels}, CLASSES, f"vernier-{arrangement}")


def _draw(drawing: Floats, row: Row, random: Random) -> None:
    """Draw the row of outlines and the vernier at random places that fit."""
    width = OUTLINE * row.number
    top = random.randint(0, HEIGHT - OUTLINE + 1)
    if row.arrangement == "apart":
        gaps = WIDTH - width - 3  # three columns of the vernier
        before = random.randint(gaps - 1)
        between = random.randint(1, gaps - before + 1)
        order = random.randint(2)
        left = before + (3 + between) * order
        column = before + 1 + (width + between) * (1 - order)
        middle = random.randint(BAR, HEIGHT - BAR)
    else:
        left = random.randint(0, WIDTH - width + 1)
        column = left + width // 2
        middle = top + RADIUS
    if row.arrangement != "alone":
        kinds = [row.kind] * row.number
        if row.arrangement == "mixed":
            # Every second one, counted from the middle.
            neighbor = (row.kind + random.randint(1, len(OUTLINES))) % len(OUTLINES)
            first = (row.number // 2 + 1) % 2
            kinds[first::2] = [neighbor] * len(kinds[first::2])
        for k, kind in enumerate(kinds):
            start = left + k * OUTLINE
            drawing[top : top + OUTLINE, start : start + OUTLINE] = BITMAPS[kind]
    side = 1 if OFFSETS[row.offset] == "right" else -1
    drawing[middle - BAR : middle, column - side] = 1
    drawing[middle + 1 : middle + 1 + BAR, column + side] = 1


def _bitmap(norm: Callable[[Floats, Floats], Floats]) -> Floats:
    """An outline of one pixel's width."""
    along = np.abs(np.arange(-RADIUS, RADIUS + 1, dtype=float))
    distance = norm(along[None, :], along[:, None])
    return (np.abs(distance - RADIUS) < 0.6).astype(float)


BITMAPS = [_bitmap(norm) for norm in OUTLINES.values()]


INFO = DatasetInfo(
    name="vernier",
    title="verniers beside rows of outlines",
    classes=CLASSES,
    image_shape=(1, HEIGHT, WIDTH),
    train=COUNTS["train"],
    test=COUNTS["test"],
    license="Apache-2.0, rendered when it is read",
    source=f"{__name__}.render_verniers",
    sha256={Path(__file__).name: None},  # its only file is this one
    embedded=Path(__file__).parent,
)


@register_dataset(INFO)
def _read(folder: Path, request: ReadRequest) -> Dataset | None:
    """Render the images of a split; no other folder than this one has them."""
    if folder != INFO.embedded:
        return None
    return render_verniers(COUNTS[request.split], seed=int(request.split == "test"))
