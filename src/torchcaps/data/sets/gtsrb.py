"""German Traffic Sign Recognition Benchmark (Stallkamp, Schlipsing, Salmen, Igel 2012): folders of tracks of frames.

Training: a folder `00000`, `00001`, … for each class, with images TRACK_FRAME.ppm and a `GT-<class>.csv`; test: one
folder with `GT-final_test.csv`. A track, the group of the set, is one sign in some thirty frames, nearly alike.
"""

import re
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.data._registry import DatasetInfo, register_directory_format
from torchcaps.data.budget import MemoryBudget, read_errors
from torchcaps.data.dataset import TEST_FRACTION, ImageSet, stratified_split
from torchcaps.data.entries import csv_rows
from torchcaps.data.images import decode_image, opened
from torchcaps.data.pixels import size_pair
from torchcaps.errors import DataError

CLASSES = (
    "limit 20",
    "limit 30",
    "limit 50",
    "limit 60",
    "limit 70",
    "limit 80",
    "end of limit 80",
    "limit 100",
    "limit 120",
    "no overtaking",
    "no overtaking by lorries",
    "right of way",
    "priority road",
    "give way",
    "stop",
    "no vehicles",
    "no lorries",
    "no entry",
    "danger",
    "bend left",
    "bend right",
    "double bend",
    "uneven road",
    "slippery road",
    "road narrows",
    "road works",
    "traffic signals",
    "pedestrians",
    "children",
    "bicycles",
    "ice",
    "wild animals",
    "end of limits",
    "right only",
    "left only",
    "straight only",
    "straight or right",
    "straight or left",
    "keep right",
    "keep left",
    "roundabout",
    "end of no overtaking",
    "end of no overtaking by lorries",
)
COLUMNS = ("Filename", "Width", "Height", "Roi.X1", "Roi.Y1", "Roi.X2", "Roi.Y2", "ClassId")
TRAINING = ("Final_Training/Images", "Training", "Train", "")
TESTING = ("Final_Test/Images", "Final_Test", "Test")
MOST_DIGITS = 18  # of an int64
TEST_TABLES = ("GT-final_test.csv", "../GT-final_test.csv")
INFO = DatasetInfo(
    name="gtsrb",
    title="German Traffic Sign Recognition Benchmark",
    classes=CLASSES,
    image_shape=(3, 32, 32),
    train=39_209,
    test=12_630,
    license="none stated; its authors ask that Stallkamp et al. 2012 be cited",
    source="https://benchmark.ini.rub.de/gtsrb_dataset.html",
    sha256={
        "Final_Training/Images/00000/GT-00000.csv": None,
        "Final_Test/Images/GT-final_test.csv": None,
    },
)


class _Sign(NamedTuple):
    file: Path
    label: int
    box: tuple[float, float, float, float]  # left, top, right, bottom, as shares of the image
    track: int
    frame: int


def _base(folder: Path) -> Path | None:
    return next((base for base in (folder, folder / "GTSRB") if _class_tables(base)), None)


def read_gtsrb(
    folder: str | Path,
    split: str = "train",
    *,
    img_size: int | tuple[int, int] = 32,
    roi: bool = False,
    name: str = "gtsrb",
    budget: MemoryBudget | None = None,
) -> ImageSet:
    """Read one split of GTSRB.

    The uint8 images `[n, 3, height, width]` have the factors "track" and "frame" (both -1 where unknown); the group is
    the track, except for test images, whose tracks are not published.

    `folder` holds `Final_Training/Images/00000/GT-00000.csv` (or `Training/…`, or the class folders themselves) and
    `Final_Test/Images/GT-final_test.csv`. Without a test table, whole tracks of the training images, 20 % of each
    class, are the test split, by `stratified_split` with seed 0. All images are resized to `img_size`, (height, width)
    or one side of a square; with `roi` the sign is cut out by its box before, which is scaled where the image has
    another size than the table says.

    DataError: no such folders, a damaged table, an absent or unreadable image, a class outside 0..42.
    """
    with read_errors(folder):
        base = _base(Path(folder))
        if base is None:
            raise DataError(
                f"{folder}: no Final_Training/Images/00000/GT-00000.csv, nor class folders with such tables"
            )
        budget = budget or MemoryBudget()
        return _read(_signs(base, split, budget), size_pair(img_size), roi, name, budget)


def _signs(base: Path, split: str, budget: MemoryBudget) -> list[_Sign]:
    tables = (base / place / table for place in TESTING for table in TEST_TABLES)
    test_table = next((path for path in tables if path.is_file()), None)
    if split == "test" and test_table is not None:
        return _rows(test_table, budget)
    signs = [sign for path in _class_tables(base) for sign in _rows(path, budget)]
    if test_table is not None:
        return signs
    labels = torch.tensor([sign.label for sign in signs])
    tracks = torch.tensor([sign.track for sign in signs])
    sides = stratified_split(labels, TEST_FRACTION, seed=0, groups=tracks)
    return [signs[i] for i in sides[split == "test"]]


def _class_tables(base: Path) -> list[Path]:
    found = (sorted((base / place).glob("[0-9]*/GT-*.csv")) for place in TRAINING)
    return next(filter(None, found), [])


def _rows(path: Path, budget: MemoryBudget) -> list[_Sign]:
    with csv_rows(path, budget, ";", "cannot be read as a table") as reader:
        missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
        if missing:
            raise DataError(f"{path}: no column {missing[0]!r}; expected {';'.join(COLUMNS)}")
        found = [_sign(path, reader.line_num, row) for row in reader]
    if not found:
        raise DataError(f"{path}: no image in this table")
    return found


def _sign(path: Path, line: int, row: dict[str, str | None]) -> _Sign:
    where = f"{path} line {line}"
    # Some copies have the test images in a folder beside their table.
    file, inside = (path.parent / folder / (row["Filename"] or "") for folder in ("", "Images"))
    file = inside if inside.is_file() and not file.is_file() else file
    try:
        width, height, left, top, right, bottom, label = (
            int(row[column] or "") for column in COLUMNS[1:]
        )
    except ValueError:
        raise DataError(f"{where}: expected whole numbers in {', '.join(COLUMNS[1:])}") from None
    if not 0 <= label < len(CLASSES):
        raise DataError(f"{where}: expected a ClassId from 0 to {len(CLASSES) - 1}, got {label}")
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        box = f"{left}, {top} to {right}, {bottom}"
        raise DataError(f"{where}: the box {box} does not lie in {width} × {height} pixels")
    if not file.is_file():
        raise DataError(f"{where}: no such file {file}")
    place = re.fullmatch(r"(\d+)_(\d+)", file.stem)
    if place and max(map(len, place.groups())) > MOST_DIGITS:
        raise DataError(
            f"{where}: expected a track and a frame of at most {MOST_DIGITS} digits, got {file.name}"
        )
    track, frame = (int(place[1]), int(place[2])) if place else (-1, -1)
    return _Sign(
        file, label, (left / width, top / height, right / width, bottom / height), track, frame
    )


def _read(
    signs: list[_Sign], size: tuple[int, int], roi: bool, name: str, budget: MemoryBudget
) -> ImageSet:
    images = torch.cat([_pixels(sign, size, roi, budget) for sign in signs])
    kinds = ("label", "track", "frame")
    labels, *factors = (torch.tensor([getattr(sign, kind) for sign in signs]) for kind in kinds)
    group = "track" if bool((factors[0] >= 0).all()) else None
    return ImageSet(
        images, labels, CLASSES, name, dict(zip(kinds[1:], factors, strict=True)), group
    )


def _pixels(sign: _Sign, size: tuple[int, int], roi: bool, budget: MemoryBudget) -> Tensor:
    with read_errors(sign.file):
        budget.add_file(sign.file.stat())
    with opened(sign.file) as image:
        if roi:  # at least one pixel either way
            sides = zip(sign.box, 2 * image.size, strict=True)
            left, top, right, bottom = (round(share * side) for share, side in sides)
            image = image.crop((left, top, max(right, left + 1), max(bottom, top + 1)))
        return decode_image(image, size, 3, name=str(sign.file), budget=budget).unsqueeze(0)


register_directory_format(
    INFO,
    "a folder of GTSRB",
    lambda folder: _base(folder) is not None,
    lambda folder, r, name: read_gtsrb(
        folder, r.split, img_size=r.img_size or 32, name=name, budget=r.budget
    ),
)
