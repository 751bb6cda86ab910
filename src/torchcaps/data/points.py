"""Sets of points as images one pixel wide: channels are coordinates, rows are points.

They are read from `.npz` or `.csv`.
"""

import csv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.data._registry import SPLITS_WITH_VAL, ReadRequest, register_format
from torchcaps.data.arrays import open_arrays
from torchcaps.data.dataset import Dataset
from torchcaps.data.entries import in_split, row_split
from torchcaps.data.pixels import Size, size_pair
from torchcaps.data.preprocess import Picture, Preprocess
from torchcaps.data.reading import csv_rows

# Its format is registered first: of two that hold a path, the last one reads it.
from torchcaps.data.table import FLAT_COLUMNS
from torchcaps.errors import DataError, MissingSplitError, named_shape

RADIUS = 0.56  # root mean square distance from the center that every set is scaled to
MIN_RADIUS = 1e-6  # of a set whose largest coordinate is 1
AXES = ("n", "coordinates", "points", "1")
SUFFIXES = (".csv", ".npz")


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
        if not inputs.isfinite().all():
            raise DataError(f"{source}: holds NaN or infinite coordinates")

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
        return Path(path).suffix.lower() in SUFFIXES

    def __call__(self, image: Picture | bytes, name: str | None = None) -> Tensor:
        """One set as the model takes it, float32 `[coordinates, points, 1]`.

        Args:
            image: a `.csv` with the columns x, y and perhaps z, an `.npz` with one set in `points`,
                or an array or tensor `[points, coordinates]`.
            name: what errors call the set; None takes the path.

        Raises:
            DataError: unreadable, of several sets, or of another size than the model takes.
        """
        if isinstance(image, np.ndarray | Tensor):
            source = "points"
            sets = np.asarray(image)[None]
        elif isinstance(image, str | Path):
            source = str(image)
            sets = _read_single(Path(image))
        else:
            raise DataError(
                f"points: expected a file, an array or a tensor, got {type(image).__name__}"
            )
        points = standardized_points(source, sets)
        if len(points) != 1:
            raise DataError(
                f"{source}: expected one set of points, got {len(points)}; evaluate takes many"
            )
        self.check(source, points)
        return self.resize(source, points, self.img_size, self.in_chans)[0]


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
    is_bad = ~np.isfinite(points).all(axis=(1, 2))
    if is_bad.any():
        raise DataError(
            f"{source}: set {is_bad.argmax()} (one of {is_bad.sum()}) holds NaN or infinite "
            "coordinates"
        )
    largest = np.abs(points).max(axis=(1, 2), keepdims=True)
    points /= np.where(largest > 0, largest, 1.0)
    points -= points.mean(axis=1, keepdims=True)
    radius = np.sqrt(np.square(points).sum(axis=2, keepdims=True).mean(axis=1, keepdims=True))
    is_single = radius <= MIN_RADIUS
    if is_single.any():
        raise DataError(f"{source}: the points of set {is_single.argmax()} all lie in one place")
    scaled = (points * (RADIUS / radius)).astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(scaled.swapaxes(1, 2)))[..., None]


def read_points(path: str | Path, request: ReadRequest) -> Dataset:
    """Read sets of equally many points, in 2 or 3 dimensions, from `.npz` or `.csv`.

    An `.npz` holds `points` `[n, points, coordinates]`, or `points_train` and `points_test`. A
    `.csv` has a line for each point, with the columns `shape` (a name or number; lines of one shape
    need not be neighbors), `x`, `y` and perhaps `z`, and perhaps `split`, "train" or "test".
    Without splits 20 % of the sets are the test split, chosen by `stratified_split` with seed 0.

    Args:
        path: of the file.
        request: its split is read; sizes of images have no meaning here.

    Returns:
        The sets of points of that split, all of one class.

    Raises:
        DataError: damaged, a missing column or array, sets of different sizes, text or NaN for a
            number, or one point.
        MissingSplitError: there are no points of the split that is requested.
    """
    path = Path(path)
    split = request.split
    arrays = _read_arrays(path, ("shape", "x", "y"))
    name = f"points_{split}" if f"points_{split}" in arrays else "points"
    if name not in arrays:
        raise MissingSplitError(
            f"{path}: no points of the {split!r} split among {', '.join(arrays)}"
        )
    points = standardized_points(str(path), arrays[name])
    if name == "points":
        labels = torch.zeros(len(points), dtype=torch.int64)
        points = points[in_split(str(path), labels, request)]
    return point_set(points, path.stem)


def _read_single(path: Path) -> np.ndarray:
    """All sets of a file, which is expected to hold one: `[n, points, coordinates]`."""
    arrays = _read_arrays(path, ("x", "y"))
    if path.suffix.lower() == ".csv":
        return np.concatenate(list(arrays.values()))
    if "points" not in arrays:
        raise DataError(f"{path}: expected the array points, got {', '.join(arrays) or 'none'}")
    points = arrays["points"]
    return points[None] if points.ndim == 2 else points


def _read_arrays(path: Path, columns: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The sets of a file by split, "points" where it has none.

    Args:
        path: of an `.npz` or `.csv`.
        columns: that a `.csv` must have.
    """
    if path.suffix.lower() != ".csv":
        with open_arrays(path) as npz:
            return {name: npz[name] for name in npz if name.startswith("points")}
    sets: dict[tuple[str, str], list[list[float]]] = {}
    with csv_rows(path) as rows:
        header = rows.fieldnames or ()
        for column in columns:
            if column not in header:
                raise DataError(
                    f"{path}: no column {column!r}; expected shape,x,y, optionally z,split, "
                    f"got {','.join(header) or 'an empty file'}"
                )
        axes = [column for column in ("x", "y", "z") if column in header]
        for row in rows:
            line = f"{path} line {rows.line_num}"
            split = row_split(line, row)
            try:
                point = [float(row[column] or "") for column in axes]
            except ValueError:
                raise DataError(f"{line}: expected a number for each coordinate") from None
            key = f"points_{split}" if split else "points", (row.get("shape") or "").strip()
            sets.setdefault(key, []).append(point)
    sizes = {len(points): name for (_, name), points in sets.items()}
    if len(sizes) != 1:
        raise DataError(f"{path}: sets of points differ in size, or there are none: {sizes}")
    arrays: dict[str, list[Any]] = {}
    for (split, _), points in sets.items():
        arrays.setdefault(split, []).append(points)
    return {split: np.array(points) for split, points in arrays.items()}


def _holds_points(path: Path) -> bool:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES or not path.is_file():
        return False
    try:
        if suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                return any(name.startswith("points") for name in archive.namelist())
        with path.open(encoding="utf-8-sig") as text:
            columns = next(csv.reader([text.readline(10_000)]), [])
    except (OSError, ValueError, zipfile.BadZipFile, csv.Error):
        return False  # the reader of that ending says what is wrong
    is_table = not set(FLAT_COLUMNS).isdisjoint(columns)
    return not is_table and not {"shape", "x", "y"}.isdisjoint(columns)


register_format("an .npz or .csv of points", _holds_points, read_points, splits=SPLITS_WITH_VAL)
