"""German Traffic Sign Recognition Benchmark: folders of tracks of frames.

Stallkamp, Schlipsing, Salmen, Igel, "Man vs. computer: Benchmarking machine learning algorithms for
traffic sign recognition", 2012. Training: a folder `00000`, `00001`, ... for each class, with
images TRACK_FRAME.ppm and a `GT-<class>.csv`. Test: one folder with `GT-final_test.csv`. A track,
the group of the set, is one sign in some thirty frames, nearly alike.
"""

import re
from dataclasses import replace
from pathlib import Path

import torch

from torchcaps.data._registry import ReadRequest, register_directory_format
from torchcaps.data.dataset import Dataset
from torchcaps.data.entries import Entry, read_entries
from torchcaps.data.reading import csv_rows
from torchcaps.data.sources import published_set
from torchcaps.errors import DataError
from torchcaps.types import StrPath

SIDE = 32  # pixels that images are resized to
TRAINING = ("Final_Training/Images", "Training", "Train", "")
TEST_TABLES = (
    "Final_Test/Images/GT-final_test.csv",
    "Final_Test/GT-final_test.csv",
    "GT-final_test.csv",
    "Test/GT-final_test.csv",
)
INFO = published_set("gtsrb")


def _find_base(folder: Path) -> Path | None:
    """The folder that holds tables of classes, `folder` itself or one in it."""
    return next(filter(_class_tables, (folder, folder / "GTSRB")), None)


def read_gtsrb(folder: StrPath, request: ReadRequest, name: str = "gtsrb") -> Dataset:
    """Read one split of GTSRB.

    Without a test table, whole tracks of the training images, 20 % of each class, are the test
    split, as in `read_folder`.

    Args:
        folder: holds `Final_Training/Images/00000/GT-00000.csv` (or `Training/...`, or the class
            folders themselves) and `Final_Test/Images/GT-final_test.csv`.
        request: without a size, images are resized to 32 × 32; without channels, they are in color.
        name: of the set.

    Returns:
        The images, with the targets "track" and "frame" (both -1 where unknown). A group, also the
        target "object", is a track of any class; test images, whose tracks are not published, have
        none.

    Raises:
        DataError: no such folders, a damaged table, an absent or unreadable image, a class outside
            0 to 42.
    """
    base = _find_base(Path(folder))
    if not base:
        raise DataError(
            f"{folder}: no Final_Training/Images/00000/GT-00000.csv, nor class folders with such tables"
        )
    test_table = next(filter(Path.is_file, map(base.joinpath, TEST_TABLES)), None)
    split = request.split if test_table else None
    tables = [test_table] if test_table and split == "test" else _class_tables(base)
    entries = [entry for table in tables for entry in _read_table(table, split)]
    matches = [re.fullmatch(r"(\d{1,18})_(\d{1,18})", Path(e.file).stem) for e in entries]
    tracks = [[int(m[1]), int(m[2])] if m else [-1, -1] for m in matches]
    if all(matches):  # tracks are numbered from 0 in each class
        entries = [
            entry._replace(group=f"{entry.labels[0]} {track[0]}")
            for entry, track in zip(entries, tracks, strict=True)
        ]
    track, frame = torch.tensor(tracks).unbind(dim=1)
    return read_entries(
        name,
        entries,
        replace(request, img_size=request.img_size or SIDE, in_chans=request.in_chans or 3),
        classes=INFO.classes,
        targets={"track": track, "frame": frame},
    )


def _class_tables(base: Path) -> list[Path]:
    """The tables of the classes, in the first of the usual places that has some."""
    for place in TRAINING:
        if tables := sorted((base / place).glob("[0-9]*/GT-*.csv")):
            return tables
    return []


def _read_table(path: Path, split: str | None) -> list[Entry]:
    """The images of one table."""
    entries = []
    with csv_rows(path, ";", "cannot be read as a table") as rows:
        for row in rows:
            # Some copies have the test images in a folder beside their table.
            name = row["Filename"]
            places = (path.parent / name, path.parent / "Images" / name)
            file = next(filter(Path.is_file, places), None)
            label = row["ClassId"]
            if file is None or not label.isdecimal() or int(label) >= len(INFO.classes):
                raise DataError(
                    f"{path} line {rows.line_num}: expected a file that is there and a ClassId "
                    f"from 0 to {len(INFO.classes) - 1}, got {places[0]} and {label!r}"
                )
            entries.append(Entry(str(file), (INFO.classes[int(label)],), split))
    if not entries:
        raise DataError(f"{path}: no image in this table")
    return entries


register_directory_format(
    INFO,
    "a folder of GTSRB",
    lambda folder: _find_base(folder) is not None,
    read_gtsrb,
)
