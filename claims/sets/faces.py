"""Faces, houses, cars and clocks of four parts each, whole or with parts out of place.

The picture in many introductions to capsules is a face whose mouth and eyes have changed places: a
capsule network ought to reject it, a convolutional one to accept it. Here the gaps between parts
are wider than a window of 17 pixels, that of a primary capsule of CapsNet, so that no window sees
how two parts lie. Noise, weak contrast and an occluding patch keep whole objects from being
recognized in every case.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from torchcaps.data import Dataset, DatasetInfo, ReadRequest, register_dataset
from torchcaps.errors import check_known, check_range

SIDE = 64
PART = 8  # pixels along a side of a part
JITTER = 1  # pixels by which an object lies off the middle, and each part off its place
FIRST_PLACE = 2 * JITTER
LAST_PLACE = SIDE - PART - FIRST_PLACE
BACKGROUND = 0.2
NOISE = 0.13  # standard deviation, of the brightness from 0 to 1
CONTRAST = (0.15, 0.7)  # brightness of an object above the background
PATCH = (16, 37)  # pixels along the sides of what occludes half of the images
CLEARANCE = PART + 2  # pixels from a moved part to any other
COUNTS = {"train": 2000, "test": 500}  # images of an object, and of a kind of "other"

# Brightness of the pixels of a part: 0 to 9. None looks the same turned by a right angle.
GLYPHS = {
    "eye": "06999960 90000009 00999900 09000090 90077009 90077009 09000090 00999900",
    "nose": "00090000 00090000 00990000 00900000 00900000 09900000 90000990 99999990",
    "mouth": "00000000 90000009 99000099 09999990 09000090 00999900 00066000 00000000",
    "roof": "00099000 00999900 09900990 99000099 90000009 99999999 00000000 70707070",
    "window": "99999999 90090009 90090009 99999999 90090009 90090009 99999999 00777700",
    "door": "09999990 09000090 09000090 09000990 09000090 09000090 09000090 99999999",
    "cabin": "00999990 09000099 90000009 90000009 99999999 90000000 99999999 00000000",
    "wheel": "00999900 09000090 90099009 90990009 90099009 90000009 09000090 00999900",
    "lamp": "00000099 00009990 00999090 99900090 99900090 00999090 00009990 00000099",
    "twelve": "90009990 90000090 90009990 90009000 90009990 00000000 99999999 00000000",
    "hands": "00090000 00090000 00090000 00099990 00090000 00900000 09000000 90000000",
    "three": "09999900 00000990 00000990 00999900 00000990 00000990 09999900 00007700",
    "six": "00009900 00990000 09000000 99999900 90000090 90000090 90000090 09999900",
    # Parts of no object.
    "stairs": "99000000 09000000 09990000 00090000 00099900 00000900 00000999 00000009",
    "arrow": "00009000 00009900 99999990 99999999 99999990 00009900 00009000 00000000",
    "hook": "99999990 90000090 90000090 90000000 90000000 90000000 99000000 00000000",
    "comb": "99999999 90909090 90909090 90909090 00000000 00000000 99000000 99000000",
}
CLUTTER = ("stairs", "arrow", "hook", "comb")

# (part, row, column) of the corners of the parts of each object.
OBJECTS = {
    "face": (("eye", 2, 8), ("eye", 2, 40), ("nose", 28, 24), ("mouth", 54, 24)),
    "house": (("roof", 2, 28), ("window", 28, 8), ("window", 28, 44), ("door", 54, 28)),
    "car": (("cabin", 8, 28), ("wheel", 40, 2), ("lamp", 40, 28), ("wheel", 40, 54)),
    "clock": (("twelve", 2, 28), ("hands", 28, 28), ("three", 28, 54), ("six", 54, 28)),
}
CLASSES = tuple(OBJECTS)
OTHER = "other"  # a fifth class, of images that show no whole object

Random = np.random.RandomState


class Part(NamedTuple):
    """A part of a drawing: its glyph, the row and column of its corner, and right angles."""

    glyph: str
    row: int
    column: int
    turns: int = 0


Parts = list[Part]
Arrange = Callable[[str, Random], Parts]


def _whole(name: str, _random: Random) -> Parts:
    return [Part(*place) for place in OBJECTS[name]]


def _swapped(name: str, random: Random) -> Parts:
    """Two different parts have changed places."""
    parts = _whole(name, random)
    while True:
        first, second = random.choice(len(parts), 2, replace=False)
        if parts[first].glyph != parts[second].glyph:
            break
    changed = list(parts)
    changed[first] = parts[first]._replace(glyph=parts[second].glyph)
    changed[second] = parts[second]._replace(glyph=parts[first].glyph)
    return changed


def _turned(name: str, random: Random) -> Parts:
    """Two parts are turned where they are."""
    parts = _whole(name, random)
    for index in random.choice(len(parts), 2, replace=False):
        parts[index] = parts[index]._replace(turns=random.randint(1, 4))
    return parts


def _foreign(name: str, random: Random) -> Parts:
    """Two parts of another object stand in their places."""
    parts = _whole(name, random)
    donor = OBJECTS[random.choice([other for other in CLASSES if other != name])]
    for index in random.choice(len(parts), 2, replace=False):
        glyph = donor[random.randint(len(donor))][0]
        parts[index] = parts[index]._replace(glyph=glyph)
    return parts


def _moved(name: str, random: Random) -> Parts:
    """One part lies at another place, clear of the others."""
    parts = _whole(name, random)
    index = random.randint(len(parts))
    while True:
        row, column = random.randint(FIRST_PLACE, LAST_PLACE + 1, 2)
        gaps = [max(abs(row - part.row), abs(column - part.column)) for part in parts]
        if min(gaps) >= CLEARANCE:
            parts[index] = parts[index]._replace(row=row, column=column)
            return parts


def _upside_down(name: str, random: Random) -> Parts:
    """The whole object is turned by 180°."""
    last = SIDE - PART
    return [
        Part(part.glyph, last - part.row, last - part.column, 2) for part in _whole(name, random)
    ]


def _permuted(name: str, random: Random) -> Parts:
    """The parts stand at each other's places in any order, the right one among them."""
    parts = _whole(name, random)
    order = random.permutation(len(parts))
    return [part._replace(glyph=parts[k].glyph) for part, k in zip(parts, order, strict=True)]


def _scrambled(name: str, random: Random) -> Parts:
    """At least three of the four places have the wrong part."""
    parts = _whole(name, random)
    while True:
        scrambled = _permuted(name, random)
        wrong = [part.glyph != new.glyph for part, new in zip(parts, scrambled, strict=True)]
        if sum(wrong) >= 3:
            return scrambled


def _clutter(_name: str, random: Random) -> Parts:
    """Parts of no object, and at most one of an object, anywhere."""
    glyphs = [random.choice(CLUTTER) for _ in range(random.randint(2, 5))]
    if random.randint(2):
        glyphs[0] = random.choice([glyph for glyph in GLYPHS if glyph not in CLUTTER])
    return _scatter(glyphs, random)


def _rearranged(name: str, random: Random) -> Parts:
    """Two or three of the four parts of an object, anywhere."""
    order = random.permutation(len(OBJECTS[name]))[: random.randint(2, 4)]
    return _scatter([OBJECTS[name][k][0] for k in order], random)


def _scatter(glyphs: list[str], random: Random) -> Parts:
    """These parts at random places that do not overlap."""
    parts: Parts = []
    for glyph in glyphs:
        while True:
            row, column = random.randint(FIRST_PLACE, LAST_PLACE + 1, 2)
            gaps = [max(abs(row - part.row), abs(column - part.column)) for part in parts]
            if min(gaps, default=SIDE) >= CLEARANCE:
                break
        parts.append(Part(glyph, row, column))
    return parts


KINDS: dict[str, Arrange] = {
    "whole": _whole,
    "swapped": _swapped,
    "turned": _turned,
    "foreign": _foreign,
    "moved": _moved,
    "upside-down": _upside_down,
    "scrambled": _scrambled,
    "permuted": _permuted,
    "clutter": _clutter,
    "rearranged": _rearranged,
}
MISPLACED = ("swapped", "turned", "foreign", "moved")


def render_faces(kind: str, count: int, *, seed: int = 0) -> Dataset:
    """Images of one kind, equally many of each object.

    Args:
        kind: "whole"; "swapped", "turned" and "foreign" (two of the four parts), "moved" (one
            part); "upside-down"; "scrambled" (three or four parts at wrong places); "permuted" (at
            any places); "clutter" and "rearranged", which have no full set of parts.
        count: of images, a multiple of 4.
        seed: 0 or more.

    Returns:
        Images of 64 × 64 pixels, labeled by their object. The target "kind" counts in the order of
        `KINDS`; "distance" is that of a moved part from its place in pixels, else 0.

    Raises:
        UnknownNameError: for another kind.
        ValueError: for a count or seed out of range.
    """
    check_known("kind", kind, KINDS)
    check_range("count", count, low=len(CLASSES))
    random = Random([seed, list(KINDS).index(kind)])
    labels = torch.arange(count) % len(CLASSES)
    drawings = np.full((count, SIDE, SIDE), BACKGROUND)
    distances = torch.zeros(count)
    for k, label in enumerate(labels.tolist()):
        name = CLASSES[label]
        parts = KINDS[kind](name, random)
        if kind == "moved":
            places = [part[1:] for part in OBJECTS[name]]
            steps = np.subtract([(part.row, part.column) for part in parts], places)
            distances[k] = float(np.abs(steps).max())
        _draw(drawings[k], parts, random)
    noise = random.normal(0, NOISE, drawings.shape)
    pixels = (255 * (drawings + noise)).round().clip(0, 255).astype(np.uint8)
    kinds = torch.full((count,), list(KINDS).index(kind))
    targets = {"label": labels, "kind": kinds, "distance": distances}
    return Dataset(torch.from_numpy(pixels).unsqueeze(1), targets, CLASSES, "faces")


def _draw(drawing: NDArray[np.float64], parts: Parts, random: Random) -> None:
    """Draw the parts, a little off their places, and in half of the images a patch over them."""
    contrast = random.uniform(*CONTRAST)
    shift = random.randint(-JITTER, JITTER + 1, 2)
    for part in parts:
        row, column = shift + random.randint(-JITTER, JITTER + 1, 2) + (part.row, part.column)
        brightness = contrast * random.uniform(0.6, 1)
        window = drawing[row : row + PART, column : column + PART]
        window += brightness * np.rot90(BITMAPS[part.glyph], part.turns)
    if random.randint(2):
        height, width = random.randint(*PATCH, 2)
        top, left = random.randint(0, SIDE - height), random.randint(0, SIDE - width)
        drawing[top : top + height, left : left + width] = random.uniform(0, 1)


def _bitmap(glyph: str) -> NDArray[np.float64]:
    rows = [[int(digit) for digit in row] for row in glyph.split()]
    return np.array(rows) / 9


BITMAPS = {name: _bitmap(glyph) for name, glyph in GLYPHS.items()}

# Set -> the kind of its four objects, and the kinds of the class "other", if it has one.
SETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "faces": ("whole", ()),
    "faces-clutter": ("whole", ("clutter",)),
    "faces-rearranged": ("whole", ("clutter", "rearranged")),
    "faces-misplaced": ("whole", MISPLACED),
    "faces-permuted": ("permuted", ()),
}


def _read(folder: Path, request: ReadRequest, name: str) -> Dataset | None:
    """Render the images of a split; no other folder than this one has them."""
    if folder != Path(__file__).parent:
        return None
    count = COUNTS[request.split]
    seed = int(request.split == "test")
    kind, other_kinds = SETS[name]
    images = render_faces(kind, count * len(CLASSES), seed=seed)
    if not other_kinds:
        return replace(images, name=name)
    other_sets = [render_faces(other, count, seed=seed) for other in other_kinds]
    sets = [images, *other_sets]
    targets = {}
    for target in images.targets:
        targets[target] = torch.cat([part.targets[target] for part in sets])
    targets["label"][len(images) :] = len(CLASSES)
    pixels = torch.cat([part.images for part in sets])
    return Dataset(pixels, targets, (*CLASSES, OTHER), name)


for _name, (_kind, _other_kinds) in SETS.items():
    _classes = (*CLASSES, OTHER) if _other_kinds else CLASSES
    _info = DatasetInfo(
        name=_name,
        title=f"rendered objects of four parts, {' and '.join((_kind, *_other_kinds))}",
        classes=_classes,
        image_shape=(1, SIDE, SIDE),
        train=COUNTS["train"] * (len(CLASSES) + len(_other_kinds)),
        test=COUNTS["test"] * (len(CLASSES) + len(_other_kinds)),
        license="Apache-2.0, rendered when it is read",
        source=f"{__name__}.render_faces",
        sha256={Path(__file__).name: None},  # its only file is this one
        embedded=Path(__file__).parent,
    )
    register_dataset(_info)(partial(_read, name=_name))
