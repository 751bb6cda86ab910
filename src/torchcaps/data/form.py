"""The form of gray training images, and pictures brought into it: background, ink, size, place.

Ink is what stands out from the background, whichever of the two is darker.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from torchcaps.data.pixels import HeightWidth
from torchcaps.errors import DataError

Gray = Float[np.ndarray, "height width"]
Marks = Bool[np.ndarray, "height width"]
MAX_SIDE = 256  # pixels: a larger picture is looked at in this size
EDGE = 0.3  # share of the ink's strength above which a pixel belongs to a mark
EVEN = 0.1  # deviation from a level that is still this level
FAINT = 0.08  # contrast below which nothing is drawn
SPECK = 0.05  # share of the largest mark below which a mark is dirt
LOOSE = 0.1  # of the side: images whose centers are further away are not centered
COARSE = 24  # pixels of a side on which the background is found
REACH = 23  # of these pixels: more than ink covers, even in thick strokes
SIGMA = 1.4826  # of a normal distribution, by its median deviation
BLANK = "nothing stands out from its background"
UNEVEN = "its background is not even, as that of the training images is"


class Prepared(NamedTuple):
    """A picture as a model takes it, and how it came to be.

    Attributes:
        pixels: in [0, 1].
        changes: what was done to bring it into the form of the training images, in words; empty
            where it had that form.
        problem: why it shows nothing like them, in words; empty for no problem.
    """

    pixels: Float[Tensor, "channels height width"]
    changes: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Form:
    """What gray training images on an even background have in common; shares are of their side.

    Attributes:
        background: level of the background, in [0, 1].
        ink: level of the marks, in [0, 1]; images are light on dark where it is above `background`.
        border: largest share of the outermost pixels that are marks.
        size: usual longer side of the marks, a share.
        row: with `column` the mean center of mass, shares.
        column: see `row`.
        deviation: largest distance from it along an axis, a share; 1 where marks are anywhere.
        stroke: usual width of thin strokes, a share.
    """

    background: float
    ink: float
    border: float
    size: float
    row: float
    column: float
    deviation: float
    stroke: float

    def __post_init__(self) -> None:
        for name, share in vars(self).items():
            if type(share) not in (int, float) or not 0 <= share <= 1:
                raise DataError(f"form: {name}: expected a number in [0, 1], got {share!r}")
        if self.ink == self.background or self.size == 0:
            raise DataError(f"form: expected ink on a background, got {self}")

    def fits(self, image: Gray) -> bool:
        """Whether an image of the training images' size has their form already.

        Args:
            image: in [0, 1].
        """
        ink = (image - self.background) / (self.ink - self.background)
        border = (abs(ink[_ring(ink.shape)]) > EDGE).mean()
        if border > self.border or abs(ink.max() - 1) > EDGE:
            return False
        side = max(ink.shape)
        distance = abs(_place(ink)[1] / side - (self.row, self.column)).max()
        return bool(distance <= self.deviation + 1 / side)

    def bring(self, image: Gray, img_size: HeightWidth, invert: str = "auto") -> Prepared:
        """A picture in this form: its ink alone, in the size and place of the training images.

        The background may be shaded and noisy. Strokes that are thinner than usual become thicker.

        Args:
            image: in [0, 1], of any size.
            img_size: (height, width) of the outcome.
            invert: "auto" takes as ink what stands out most; "yes" and "no" take what the training
                images have as background or as ink.

        Returns:
            `[1, height, width]`; of a picture with a problem, the background alone.
        """
        from scipy import ndimage

        image = _resized(image, min(MAX_SIDE / max(image.shape), 1))
        # A median that reaches far takes the ink away, and leaves shades.
        coarse = ndimage.median_filter(_resized(image, (COARSE, COARSE)), REACH, mode="nearest")
        difference = image - _resized(coarse, image.shape)
        noise = SIGMA * float(np.median(abs(difference)))
        floor = max(4 * noise, FAINT / 2)
        is_light = self.ink > self.background
        is_inverted = invert == "yes"
        if invert == "auto":
            is_inverted = is_light != ((difference * (abs(difference) > floor)).sum() > 0)
        ink = (difference if is_light != is_inverted else -difference).clip(0)
        strength = _strength(ink, floor)
        edge = max(EDGE * strength, floor)
        problem = ""
        if noise > EVEN or (abs(difference) > edge)[_ring(image.shape)].mean() > self.border:
            problem = UNEVEN
        elif strength < max(FAINT, 5 * noise):
            problem = BLANK
        if problem:
            return Prepared(torch.full((1, *img_size), self.background), "", problem)

        marks, _ = ndimage.label(ink > edge, np.ones((3, 3)))
        areas = np.bincount(marks[marks > 0])
        marks = (areas >= SPECK * areas.max())[marks]
        ink = (ink / strength).clip(0, 1) * ndimage.binary_dilation(marks, np.ones((3, 3)))
        changes = "inverted, " if is_inverted else ""
        if self.deviation < 1:
            ink = self._centered(ink, img_size)
            changes += "cropped and centered"
        else:
            ink = _resized(ink, img_size)
            changes += "background made even"
        picture = self.background + (self.ink - self.background) * ink
        return Prepared(torch.from_numpy(picture).float()[None], changes)

    def _centered(self, ink: Gray, img_size: HeightWidth) -> Gray:
        """The ink in the size and place of the training images."""
        from scipy import ndimage

        side = max(img_size)
        box = _box(ink)
        length = max(ink[box].shape)
        # Strokes that are too thin grow to the usual width of thin ones.
        reach = max(round(self.stroke * length / self.size - _stroke_width(ink)), 0)
        ink = ndimage.maximum_filter(np.pad(ink[box], reach + 1), reach + 1)
        ink = _resized(ink, self.size * side / (length + reach))
        ink = (ink / _strength(ink, EDGE * ink.max())).clip(0, 1)
        # The window of this size in which the ink has its place.
        place = np.multiply(side, (self.row, self.column))
        top, left = (_place(ink)[1] - place).round().astype(int) + side
        return np.pad(ink, side)[top : top + img_size[0], left : left + img_size[1]]


def measure_form(images: Float[Tensor, "n channels height width"]) -> Form | None:
    """The form that images have in common.

    Args:
        images: in [0, 1].

    Returns:
        The form; None where they are not gray, or have no even background with marks on it that are
        all lighter, or all darker.
    """
    gray = images[:, 0].cpu().numpy()
    edges = gray[:, _ring(gray.shape[1:])]
    background = float(np.median(edges))
    difference = gray - background
    peaks = (difference.min((1, 2)), difference.max((1, 2)))
    opposite, strength = sorted(map(np.median, peaks), key=abs)
    evenness = (abs(np.median(edges, 1) - background) <= EVEN).mean()
    is_drawing = evenness > 1 - EVEN and abs(strength) > EDGE and abs(opposite) < EVEN
    if not is_drawing or (images != images[:, :1]).any():
        return None
    side = max(gray.shape[1:])
    drawings = [ink for ink in difference / strength if ink.max() > EDGE]
    sizes, centers = zip(*map(_place, drawings), strict=True)
    center = np.mean(centers, 0) / side
    deviation = abs(np.divide(centers, side) - center).max()
    figures = (
        background,
        background + strength,
        np.quantile((abs(edges - background) > abs(EDGE * strength)).mean(1), 0.99) + EVEN,
        np.median(sizes) / side,
        *center,
        deviation if deviation < LOOSE else 1,
        np.quantile(list(map(_stroke_width, drawings)), 0.25) / side,
    )
    return Form(*np.clip(figures, 0, 1).round(4).tolist())


def _ring(shape: tuple[int, ...]) -> Marks:
    """The outermost pixels, at least one on each side."""
    width = math.ceil(min(shape) / 28)
    is_outside = np.ones(shape, bool)
    is_outside[width:-width, width:-width] = False
    return is_outside


def _strength(ink: Gray, floor: float) -> float:
    """How far marks stand out: nearly the most."""
    return float(np.quantile(ink[ink > floor], 0.9)) if (ink > floor).any() else 0.0


def _stroke_width(ink: Gray) -> float:
    """Mean width of strokes in pixels: their area over half of their outline."""
    outline = sum(abs(np.diff(np.pad(ink, 1), axis=axis)).sum() for axis in (0, 1))
    return float(8 / math.pi * ink.sum() / outline)  # along the axes it is 4 / pi times as long


def _box(ink: Gray) -> tuple[slice, slice]:
    """The rows and the columns that hold the marks."""
    from scipy import ndimage

    return ndimage.find_objects((ink > EDGE).astype(int))[0]


def _place(ink: Gray) -> tuple[int, Float[np.ndarray, " axes"]]:
    """The longer side of the marks, and (row, column) of the center of mass, in pixels."""
    positions = np.indices(ink.shape) + 0.5
    return max(ink[_box(ink)].shape), (positions * ink).sum((1, 2)) / ink.sum()


def _resized(image: Gray, size: float | HeightWidth) -> Gray:
    """An image at another size, or at a share of its own, by antialiased interpolation."""
    if not isinstance(size, tuple):
        height, width = (max(1, round(side * size)) for side in image.shape)
        size = (height, width)
    pixels = torch.from_numpy(np.ascontiguousarray(image, np.float32))[None, None]
    return torch.nn.functional.interpolate(pixels, size, mode="bilinear", antialias=True)[
        0, 0
    ].numpy()
