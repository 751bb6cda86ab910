"""German Traffic Sign Recognition Benchmark: folders of tracks of frames.

Stallkamp, Schlipsing, Salmen, Igel, "Man vs. computer: Benchmarking machine learning algorithms for
traffic sign recognition", 2012. Training: a folder `00000`, `00001`, ... for each class, with
images TRACK_FRAME.ppm and a `GT-<class>.csv`. Test: one folder with `GT-final_test.csv`. A track,
the group of the set, is one sign in some thirty frames, nearly alike.
"""

import re
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

from torchcaps.data._registry import DatasetInfo, register_directory_format
from torchcaps.data.dataset import Dataset
from torchcaps.data.images import decode_image, opened
from torchcaps.data.pixels import size_pair
from torchcaps.data.reading import csv_rows
from torchcaps.data.splits import TEST_FRACTION, stratified_split
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
TEST_TABLES = (
    "Final_Test/Images/GT-final_test.csv",
    "Final_Test/GT-final_test.csv",
    "GT-final_test.csv",
    "Test/GT-final_test.csv",
)
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
    """A row of a table.

    Attributes:
        file: the image.
        label: of its class.
        box: left, top, right and bottom of the sign, as shares of the image.
        track: its number, or -1.
        frame: its number in the track, or -1.
    """

    file: Path
    label: int
    box: tuple[float, float, float, float]
    track: int
    frame: int


def _find_base(folder: Path) -> Path | None:
    """The folder that holds tables of classes, `folder` itself or one in it."""
    return next(filter(_class_tables, (folder, folder / "GTSRB")), None)


def read_gtsrb(
    folder: str | Path,
    split: str = "train",
    *,
    img_size: int | tuple[int, int] = 32,
    roi: bool = False,
    name: str = "gtsrb",
) -> Dataset:
    """Read one split of GTSRB.

    Without a test table, whole tracks of the training images, 20 % of each class, are the test
    split, by `stratified_split` with seed 0.

    Args:
        folder: holds `Final_Training/Images/00000/GT-00000.csv` (or `Training/...`, or the class
            folders themselves) and `Final_Test/Images/GT-final_test.csv`.
        split: "train" or "test".
        img_size: (height, width) or one side of a square that all images are resized to.
        roi: cut the sign out by its box before, which is scaled where the image has another size
            than the table says.
        name: of the set.

    Returns:
        uint8 images `[n, 3, height, width]` with the targets "track" and "frame" (both -1 where
        unknown). A group, also the target "object", is a track of any class; test images,
        whose tracks are not published, have none.

    Raises:
        DataError: no such folders, a damaged table, an absent or unreadable image, a class outside
            0 to 42.
    """
    base = _find_base(Path(folder))
    if base is None:
        expected = "Final_Training/Images/00000/GT-00000.csv, nor class folders with such tables"
        raise DataError(f"{folder}: no {expected}")
    signs = _read_signs(base, split)
    size = size_pair(img_size)
    images = torch.stack([_read_image(sign, size, roi) for sign in signs])
    labels, tracks, frames = torch.tensor(
        [(sign.label, sign.track, sign.frame) for sign in signs]
    ).unbind(dim=1)
    targets = {"label": labels, "track": tracks, "frame": frames}
    objects = None
    if bool((tracks >= 0).all()):  # they are numbered from 0 in each class
        objects = labels * (1 + int(tracks.max())) + tracks
        targets["object"] = objects
    return Dataset(images, targets, CLASSES, name, objects)


def _read_signs(base: Path, split: str) -> list[_Sign]:
    """The signs of a split, by its own table or by whole tracks of the training tables."""
    test_table = next(filter(Path.is_file, map(base.joinpath, TEST_TABLES)), None)
    if split == "test" and test_table is not None:
        return _read_table(test_table)
    signs = [sign for path in _class_tables(base) for sign in _read_table(path)]
    if test_table is not None:
        return signs
    labels, tracks = torch.tensor([(sign.label, sign.track) for sign in signs]).unbind(dim=1)
    sides = stratified_split(labels, TEST_FRACTION, seed=0, groups=tracks)
    return [signs[k] for k in sides[split == "test"]]


def _class_tables(base: Path) -> list[Path]:
    """The tables of the classes, in the first of the usual places that has some."""
    for place in TRAINING:
        if tables := sorted((base / place).glob("[0-9]*/GT-*.csv")):
            return tables
    return []


def _read_table(path: Path) -> list[_Sign]:
    """The signs of one table."""
    with csv_rows(path, ";", "cannot be read as a table") as rows:
        for column in COLUMNS:
            if column not in (rows.fieldnames or ()):
                raise DataError(f"{path}: no column {column!r}; expected {';'.join(COLUMNS)}")
        signs = []
        for row in rows:
            signs.append(_read_row(f"{path} line {rows.line_num}", path.parent, row))
    if not signs:
        raise DataError(f"{path}: no image in this table")
    return signs


def _read_row(line: str, folder: Path, row: dict[str, str | None]) -> _Sign:
    """The sign of a row; `line` names it in errors, and `folder` has the images."""
    name, *numbers = [row[column] or "" for column in COLUMNS]
    try:
        width, height, left, top, right, bottom, label = map(int, numbers)
    except ValueError:
        raise DataError(f"{line}: expected whole numbers in {', '.join(COLUMNS[1:])}") from None
    if not 0 <= label < len(CLASSES):
        raise DataError(f"{line}: expected a ClassId from 0 to {len(CLASSES) - 1}, got {label}")
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        problem = f"the box {left}, {top} to {right}, {bottom} does not lie in"
        raise DataError(f"{line}: {problem} {width} × {height} pixels")
    # Some copies have the test images in a folder beside their table.
    file = folder / name
    if not file.is_file():
        file = folder / "Images" / name
    if not file.is_file():
        raise DataError(f"{line}: no such file {folder / name}")
    box = (left / width, top / height, right / width, bottom / height)
    place = re.fullmatch(r"(\d{1,18})_(\d{1,18})", file.stem)  # digits of an int64
    track, frame = map(int, place.groups()) if place else (-1, -1)
    return _Sign(file, label, box, track, frame)


def _read_image(sign: _Sign, size: tuple[int, int], roi: bool) -> UInt8[Tensor, "3 height width"]:
    with opened(sign.file) as image:
        if roi:  # at least one pixel either way
            left, top, right, bottom = (
                round(share * side) for share, side in zip(sign.box, 2 * image.size, strict=True)
            )
            image = image.crop((left, top, max(right, left + 1), max(bottom, top + 1)))
        return decode_image(image, size, 3, name=str(sign.file))


register_directory_format(
    INFO,
    "a folder of GTSRB",
    lambda folder: _find_base(folder) is not None,
    lambda folder, request, name: read_gtsrb(
        folder,
        request.split,
        img_size=request.img_size or 32,
        name=name,
    ),
)
