"""Sets of points, read from `.npz`, as images one pixel wide: channels are coordinates, rows points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcaps.data._registry import ReadRequest
from torchcaps.data.dataset import Dataset
from torchcaps.data.entries import in_split
from torchcaps.data.form import Prepared
from torchcaps.data.pixels import Array, Size, check_finite, size_pair
from torchcaps.data.preprocess import Picture, Preprocess
from torchcaps.data.reading import open_arrays
from torchcaps.errors import DataError, named_shape
from torchcaps.types import StrPath

RADIUS = 0.56  # root mean square distance from the center that every set is scaled to
MIN_RADIUS = 1e-6  # of a set whose largest coordinate is 1
AXES = ("n", "coordinates", "points", "1")


@dataclass(frozen=True)
class PointPreprocess(Preprocess, kind="points"):
    """Preprocessing of sets of points.

    `img_size` is (points, 1), and `in_chans` the number of coordinates. There is no crop.
    """

    @classmethod
    def check(cls, source: str, inputs: Tensor) -> None:
        shape = inputs.shape
        is_valid = len(shape) == 4 and shape[1] in (2, 3) and shape[2] >= 2 and shape[3] == 1
        if not is_valid or inputs.dtype != torch.float32:
            raise DataError(
                f"{source}: expected float32 [{', '.join(AXES)}] with 2 or 3 coordinates, "
                f"got {named_shape(AXES, shape)} of {inputs.dtype}"
            )
        check_finite(source, inputs, "set")

    @classmethod
    def resize(cls, source: str, inputs: Tensor, img_size: Size, in_chans: int | None) -> Tensor:
        _, dim, points, _ = inputs.shape
        num_points = points if img_size is None else size_pair(img_size)[0]
        if (num_points, in_chans or dim) != (points, dim):
            raise DataError(
                f"{source}: expected {num_points} points in {in_chans or dim} dimensions, "
                f"got {cls.size_in_words(inputs.shape)}; sets of points are not resized"
            )
        return inputs

    @classmethod
    def size_in_words(cls, shape: Sequence[int]) -> str:
        return f"{shape[2]:,} points in {shape[1]} dimensions each"

    def is_input(self, path: str) -> bool:
        return Path(path).suffix.lower() == ".npz"

    def prepare(
        self, image: Picture | bytes, name: str | None = None, invert: str = "auto"
    ) -> Prepared:
        """One set as the model takes it, float32 `[coordinates, points, 1]`.

        Args:
            image: an `.npz` with one set in `points`, or an array or tensor
                `[points, coordinates]`.
            name: what errors call the set; None takes the path.
            invert: of pictures alone.

        Raises:
            DataError: unreadable, of several sets, or of another size than the model takes.
        """
        if isinstance(image, Array):
            source = "points"
            sets = np.asarray(image)[None]
        elif isinstance(image, StrPath):
            source = str(image)
            with open_arrays(Path(source)) as arrays:
                sets = arrays.get("points", np.zeros(0))
            if sets.ndim == 2:
                sets = sets[None]
        else:
            raise DataError(
                f"points: expected a file, an array or a tensor, got {type(image).__name__}"
            )
        points = standardized_points(source, sets)
        if len(points) != 1:
            raise DataError(
                f"{source}: expected one set of points, got {len(points)}; evaluate takes many"
            )
        return Prepared(self.resize(source, points, self.img_size, self.in_chans)[0])


def point_set(points: Tensor, name: str, class_name: str = "points") -> Dataset:
    """A set of sets of points, which have no labels.

    Args:
        points: float32 `[n, 2 or 3, points, 1]`.
        name: name of the set.
        class_name: name of what the points are.

    Returns:
        The set.
    """
    return Dataset(points, {}, (class_name,), name, preprocess=PointPreprocess)


def standardized_points(source: str, sets: np.ndarray) -> Tensor:
    """Center every set of points and scale it to `RADIUS`.

    Args:
        source: what the sets come from, for errors.
        sets: `[n, points, coordinates]`.

    Returns:
        float32 `[n, coordinates, points, 1]`.

    Raises:
        DataError: other axes, fewer than two points, NaN, or a set whose points are all the same.
    """
    if sets.ndim != 3 or sets.shape[0] < 1 or sets.shape[1] < 2 or sets.shape[2] not in (2, 3):
        shape = named_shape(("n", "points", "coordinates"), sets.shape)
        raise DataError(
            f"{source}: expected [n, points, coordinates] with 2 points or more "
            f"and 2 or 3 coordinates, got {shape}"
        )
    if sets.dtype.kind not in "iuf":
        raise DataError(f"{source}: expected coordinates that are numbers, got {sets.dtype}")
    points = sets.astype(np.float64)
    check_finite(source, torch.from_numpy(points), "set")
    largest = abs(points).max(axis=(1, 2), keepdims=True)
    points /= np.where(largest > 0, largest, 1.0)
    points -= points.mean(axis=1, keepdims=True)
    radius = np.sqrt(np.square(points).sum(axis=2, keepdims=True).mean(axis=1, keepdims=True))
    is_single = radius <= MIN_RADIUS
    if is_single.any():
        raise DataError(f"{source}: the points of set {is_single.argmax()} all lie in one place")
    scaled = torch.from_numpy(points * (RADIUS / radius)).float()
    return scaled.mT.contiguous().unsqueeze(-1)


def select_points(
    path: Path, arrays: Mapping[str, np.ndarray], request: ReadRequest
) -> Dataset | None:
    """The sets of points of a split in an `.npz`; None where there are none.

    Args:
        path: of the file.
        arrays: in it, by name: "points" `[n, points, 2 or 3]`, or "points_train" and "points_test".
        request: its split is read. Without splits 20 % of the sets are the test split.

    Raises:
        DataError: text or NaN for a number, or one point.
    """
    is_split = f"points_{request.split}" in arrays
    name = f"points_{request.split}" if is_split else "points"
    if name not in arrays:
        return None
    sets = point_set(standardized_points(str(path), arrays[name]), path.stem)
    return sets if is_split else sets.subset(in_split(str(path), sets.labels, request))
