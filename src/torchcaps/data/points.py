"""Sets of points as images one pixel wide: channels are coordinates, rows are points; `.npz` or `.csv`."""

import csv
import zipfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from torchcaps.data._registry import register_format
from torchcaps.data.arrays import npz_arrays
from torchcaps.data.budget import MemoryBudget, read_errors
from torchcaps.data.dataset import ImageSet, default_split
from torchcaps.data.entries import csv_rows, row_split
from torchcaps.data.pixels import Size, size_pair
from torchcaps.data.preprocess import Picture, Preprocess, files_in
from torchcaps.data.table import (
    REQUIRED,
)  # its format comes first: of two that hold a path, the last reads it
from torchcaps.errors import DataError, named_shape

RADIUS = 0.56  # root mean square distance from the center that every set is scaled to
AXES = ("n", "coordinates", "points", "1")
SUFFIXES = (".csv", ".npz")


@dataclass(frozen=True)
class PointPreprocess(Preprocess, kind="points"):
    """For sets of points: `img_size` is (points, 1), `in_chans` the number of coordinates; there is no crop."""

    def files(self, paths: Iterable[str | Path]) -> list[Path]:
        return files_in(
            paths,
            lambda name: Path(name).suffix.lower() in SUFFIXES,
            "file of points",
            ".csv or .npz",
        )

    def __call__(self, image: Picture) -> Tensor:
        """One set as the model takes it, float32 `[coordinates, points, 1]`.

        It is a `.csv` with the columns x, y and perhaps z, an `.npz` with one set in `points`, or an array or tensor
        `[points, coordinates]`. DataError: unreadable, of several sets, or of another size than the model takes.
        """
        if isinstance(image, np.ndarray | Tensor):
            where, sets = "points", np.asarray(image)[None]
        elif isinstance(image, str | Path):
            where, sets = str(image), _read_all(Path(image))
        else:
            raise DataError(
                f"points: expected a file, an array or a tensor, got {type(image).__name__}"
            )
        points = standardized_points(where, sets)
        if len(points) != 1:
            raise DataError(
                f"{where}: expected one set of points, got {len(points)}; evaluate takes many"
            )
        return PointSet.of(points, where).resized(self.img_size, self.in_chans).images[0]


@dataclass(frozen=True, eq=False, repr=False)
class PointSet(ImageSet):
    """Sets of equally many points; `images` are float32 `[n, 2 or 3, points, 1]`, any finite numbers."""

    preprocess: ClassVar[type[Preprocess]] = PointPreprocess
    least_classes: ClassVar[int] = 1

    def _check_images(self) -> None:
        x = self.images
        if (
            x.ndim != 4
            or x.shape[1] not in (2, 3)
            or x.shape[2] < 2
            or x.shape[3] != 1
            or x.dtype != torch.float32
        ):
            came = f"{named_shape(AXES, x.shape)} of {x.dtype}"
            raise DataError(
                f"{self.name}: expected float32 [{', '.join(AXES)}] with 2 or 3 coordinates, got {came}"
            )
        if not x.isfinite().all():
            raise DataError(f"{self.name}: holds NaN or infinite coordinates")

    @classmethod
    def of(cls, points: Tensor, name: str, what: str = "points") -> Self:
        """A set of these `images`, all of the one class `what`."""
        return cls(points, torch.zeros(len(points), dtype=torch.int64), (what,), name)

    @property
    def size_in_words(self) -> str:
        return f"{self.images.shape[2]:,} points in {self.images.shape[1]} dimensions each"

    def resized(self, img_size: Size, in_chans: int | None) -> Self:
        want = self.img_size if img_size is None else size_pair(img_size), in_chans or self.in_chans
        if want != (self.img_size, self.in_chans):
            found = f"{self.size_in_words}; sets of points are not resized"
            raise DataError(
                f"{self.name}: expected {want[0][0]} points in {want[1]} dimensions, got {found}"
            )
        return self


def standardized_points(where: str, sets: np.ndarray) -> Tensor:
    """Sets `[n, points, coordinates]` centered, scaled to `RADIUS`, as float32 `[n, coordinates, points, 1]`.

    DataError, naming `where`, for other axes, fewer than two points, NaN, or a set whose points are all the same.
    """
    if sets.ndim != 3 or sets.shape[0] < 1 or sets.shape[1] < 2 or sets.shape[2] not in (2, 3):
        want = "[n, points, coordinates] with 2 points or more and 2 or 3 coordinates"
        raise DataError(
            f"{where}: expected {want}, got {named_shape(('n', 'points', 'coordinates'), sets.shape)}"
        )
    if sets.dtype.kind not in "iuf":
        raise DataError(f"{where}: expected coordinates that are numbers, got {sets.dtype}")
    values = sets.astype(np.float64)
    bad = ~np.isfinite(values).all(axis=(1, 2))
    if bad.any():
        raise DataError(
            f"{where}: set {int(bad.argmax())} (one of {bad.sum()}) holds NaN or infinite coordinates"
        )
    largest = np.abs(values).max(axis=(1, 2), keepdims=True)
    values = values / np.where(largest > 0, largest, 1.0)
    values -= values.mean(axis=1, keepdims=True)
    radius = np.sqrt(np.square(values).sum(axis=2, keepdims=True).mean(axis=1, keepdims=True))
    if not (radius > 1e-6).all():
        raise DataError(
            f"{where}: the points of set {int((radius <= 1e-6).argmax())} all lie in one place"
        )
    scaled = (values * (RADIUS / radius)).astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(scaled.swapaxes(1, 2)))[..., None]


def read_points(
    path: str | Path, split: str = "train", budget: MemoryBudget | None = None
) -> PointSet:
    """Read sets of equally many points, in 2 or 3 dimensions, from `.npz` or `.csv`.

    An `.npz` holds `points` `[n, points, coordinates]`, or `points_train` and `points_test`. A `.csv` has a line for
    each point, with the columns `shape` (a name or number; lines of one shape need not be neighbors), `x`, `y` and
    perhaps `z`, and perhaps `split`, "train" or "test". Without splits 20 % of the sets are the test split, chosen by
    `stratified_split` with seed 0.

    DataError: damaged, a missing column or array, sets of different sizes, text or NaN for a number, or one point.
    """
    path = Path(path)
    is_npz = path.suffix.lower() == ".npz"
    budget = budget or MemoryBudget()
    arrays = _arrays(path, budget) if is_npz else _table(path, budget)
    key = f"points_{split}" if f"points_{split}" in arrays else "points"
    if key not in arrays:
        raise DataError(f"{path}: no points of the {split!r} split among {', '.join(arrays)}")
    points = standardized_points(str(path), arrays[key])
    if key == "points":
        points = points[
            default_split(str(path), torch.zeros(len(points), dtype=torch.int64), split)
        ]
    return PointSet.of(points, path.stem)


def _read_all(path: Path) -> np.ndarray:
    budget = MemoryBudget()
    if path.suffix.lower() == ".csv":
        return np.concatenate([*_table(path, budget, single=True).values()])
    arrays = _arrays(path, budget)
    if "points" not in arrays:
        raise DataError(f"{path}: expected the array points, got {', '.join(arrays) or 'none'}")
    points = arrays["points"]
    return points[None] if points.ndim == 2 else points


def _arrays(path: Path, budget: MemoryBudget) -> dict[str, np.ndarray]:
    with ExitStack() as files, read_errors(path, "cannot be read as an .npz of plain arrays"):
        members = npz_arrays(path, files, budget)
        return {name: read() for name, read in members if name.startswith("points")}


def _table(path: Path, budget: MemoryBudget, *, single: bool = False) -> dict[str, np.ndarray]:
    """The sets of a CSV by split, "points" where it has none; `single` allows a file of one set without names."""
    sets: dict[tuple[str, str], list[list[float]]] = {}
    with csv_rows(path, budget) as rows:
        columns = rows.fieldnames or ()
        for column in ("x", "y") if single else ("shape", "x", "y"):
            if column not in columns:
                found = ",".join(columns) or "an empty file"
                raise DataError(
                    f"{path}: no column {column!r}; expected shape,x,y, optionally z,split, got {found}"
                )
        for row in rows:
            split = row_split(f"{path} line {rows.line_num}", row)
            try:
                place = [
                    float(row[column] or "")
                    for column in ("x", "y", *(("z",) if "z" in columns else ()))
                ]
            except ValueError:
                raise DataError(
                    f"{path} line {rows.line_num}: expected a number for each coordinate"
                ) from None
            key = f"points_{split}" if split else "points"
            sets.setdefault((key, (row.get("shape") or "").strip()), []).append(place)
    if not sets:
        raise DataError(f"{path}: there are no points")
    (_, first), count = next(iter(sets)), len(next(iter(sets.values())))
    for (_, name), points in sets.items():
        if len(points) != count:
            found = f"{first!r} has {count:,}, {name!r} has {len(points):,}"
            raise DataError(f"{path}: sets of points differ in size ({found})")
    return {
        key: np.array([p for (of, _), p in sets.items() if of == key])
        for key in {of: 0 for of, _ in sets}
    }


def _holds(path: Path) -> bool:
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        return False
    try:
        if path.suffix.lower() == ".npz":
            with zipfile.ZipFile(path) as archive:
                return any(name.startswith("points") for name in archive.namelist())
        with path.open(encoding="utf-8-sig") as text:
            columns = next(csv.reader([text.readline(10_000)]), [])
            return {*REQUIRED}.isdisjoint(columns) and not {"shape", "x", "y"}.isdisjoint(columns)
    except (OSError, ValueError, zipfile.BadZipFile, csv.Error):
        return False  # the reader of that ending says what is wrong


register_format(
    "an .npz or .csv of points",
    _holds,
    lambda path, request: read_points(path, request.split, request.budget),
)
