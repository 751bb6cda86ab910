"""Constellations: six parts in one of five arrangements, among parts of objects that are not there.

The parts of all classes are of the same six types, one of each. A class is the poses of its parts
in the frame of the object, so that no part says which class it belongs to: only their agreement on
the pose of one object does. A distractor is a part of another object at another pose, whose other
parts are absent. Objects of the training set are turned by at most 30 degrees either way, those of
the test set by 60 to 180.

A set is given as poses, as a capsule network that reads them without error would have them, or is
drawn as pixels.
"""

import math
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.nn import functional as F

from torchcaps.data import Dataset, DatasetInfo, ReadRequest, register_dataset
from torchcaps.data.dataset import Batch, Maker
from torchcaps.data.preprocess import ArrayPreprocess
from torchcaps.errors import check_known, check_range
from torchcaps.transfer import to_device

Random = np.random.RandomState
Floats = NDArray[np.float64]

NUM_TYPES = 6  # of parts, one of each in an object
NUM_DISTRACTORS = 6
POSE = 6  # numbers of a pose, the rows of [A | t]; behind them stands the type
CLASSES = tuple(f"arrangement {number}" for number in range(1, 6))
ARRANGEMENTS = 2026  # seed of the poses of the parts in their objects
FAMILIAR = (0.0, 30.0)  # degrees that objects are turned by, either way
NOVEL = (60.0, 180.0)
PLACE = 0.3  # largest distance of an object from the middle; its parts are at most 1 from its own
SIZES = (0.9, 1.1)  # of an object
JITTER = 0.03  # standard deviation of each number of a part's pose
COUNTS = {"train": 12000, "test": 2000}
FORMS = ("poses", "pixels")

SIDE = 40  # pixels of a drawing
UNIT = 13.0  # pixels of a length of 1
GLYPH = 4.0  # pixels from the middle of a part to its edge
# Parts as drawings: none looks the same after a turn.
GLYPHS = (
    "00100 00100 00111 00000 00000",
    "11111 10000 10000 00000 00000",
    "01000 01110 01010 00010 00000",
    "11100 00100 01100 00000 10000",
    "00110 01100 11000 01000 00000",
    "11011 00010 00010 00110 00000",
)


class Drawn(NamedTuple):
    """Constellations as they were drawn at random.

    Attributes:
        poses: `[n, members, 2, 3]`, the rows of [A | t]: a point p of a part lies at A p + t.
        types: `[n, members]`, from 0 to 5.
        labels: `[n]`, index into `CLASSES`.
        angles: `[n]`, degrees that the object is turned by.
    """

    poses: Floats
    types: NDArray[np.int64]
    labels: NDArray[np.int64]
    angles: Floats


def arrangements() -> Floats:
    """The poses of the parts in their objects, `[classes, types, 2, 3]`."""
    random = Random(ARRANGEMENTS)
    shape = (len(CLASSES), NUM_TYPES)
    places = random.uniform(0.3, 1, shape)[..., None] * _direction(
        random.uniform(-math.pi, math.pi, shape)
    )
    turns = random.uniform(-math.pi, math.pi, shape)
    return _poses(turns, random.uniform(0.8, 1.2, shape), places)


def draw_constellations(
    count: int,
    angles: tuple[float, float] = FAMILIAR,
    *,
    distractors: int = NUM_DISTRACTORS,
    seed: int = 0,
) -> Drawn:
    """Draw constellations at random.

    Args:
        count: of constellations, at least 1.
        angles: least and largest that an object is turned by either way, in degrees.
        distractors: number of parts that do not belong to the object; their types come in turn.
        seed: 0 or more.

    Returns:
        Poses of parts and distractors in random order, with their types and the class.

    Raises:
        ValueError: a count or number below its least, or an angle outside 0 to 180.
    """
    check_range("count", count, low=1)
    check_range("distractors", distractors, low=0)
    for angle in angles:
        check_range("angles", angle, low=0, high=180)
    random = Random([seed, *(round(angle) for angle in angles), distractors])
    parts = arrangements()
    labels = np.arange(count) % len(CLASSES)
    turns, objects = _objects((count, 1), angles, random)
    own = _compose(objects, parts[labels])

    # Each distractor belongs to an object of its own.
    strange_types = np.broadcast_to(np.arange(distractors) % NUM_TYPES, (count, distractors))
    strange_labels = random.randint(len(CLASSES), size=(count, distractors))
    _, strange_objects = _objects((count, distractors), angles, random)
    strange = _compose(strange_objects, parts[strange_labels, strange_types])

    poses = np.concatenate([own, strange], axis=1)
    poses += random.normal(0, JITTER, poses.shape)
    own_types = np.broadcast_to(np.arange(NUM_TYPES), (count, NUM_TYPES))
    types = np.concatenate([own_types, strange_types], axis=1)
    order = random.uniform(size=types.shape).argsort(axis=1)
    types = np.take_along_axis(types, order, axis=1)
    poses = np.take_along_axis(poses, order[..., None, None], axis=1)
    return Drawn(poses, types, labels, np.degrees(turns[:, 0]))


def render_constellations(form: str, drawn: Drawn, name: str = "constellations") -> Dataset:
    """A data set of constellations.

    Args:
        form: "poses", float32 `[n, 7, members, 1]`, the numbers of the pose and the type of each
            member; or "pixels", uint8 `[n, 1, 40, 40]`.
        drawn: see `draw_constellations`.
        name: of the set.

    Returns:
        The set, with the target "angle" in degrees beside the label.

    Raises:
        UnknownNameError: another form.
    """
    check_known("form", form, FORMS)
    targets = {"label": torch.from_numpy(drawn.labels), "angle": torch.from_numpy(drawn.angles)}
    poses = torch.from_numpy(drawn.poses).float()
    types = torch.from_numpy(drawn.types)
    if form == "pixels":
        pairs = zip(poses.split(500), types.split(500), strict=True)
        pixels = torch.cat([draw_parts(*pair) for pair in pairs])
        return Dataset(pixels, targets, CLASSES, name)
    numbers = torch.cat([poses.flatten(2), types.unsqueeze(2)], dim=2)
    inputs = numbers.mT.unsqueeze(3).contiguous()
    return Dataset(inputs, targets, CLASSES, name, preprocess=ArrayPreprocess)


def draw_parts(
    poses: Float[Tensor, "batch members 2 3"], types: Tensor
) -> Float[Tensor, "batch 1 side side"]:
    """Drawings of parts as uint8; where several overlap the brightest counts.

    Args:
        poses: of the parts.
        types: `[batch, members]`, from 0 to 5.
    """
    glyphs = torch.stack([_glyph(text) for text in GLYPHS]).to(poses)
    places = torch.arange(SIDE) - (SIDE - 1) / 2
    y, x = torch.meshgrid(places, places, indexing="ij")
    points = torch.stack([x, y], dim=-1).to(poses) / UNIT  # [side, side, 2]
    pages = poses.new_zeros(len(poses), SIDE, SIDE)
    for pose, kind in zip(poses.unbind(1), types.unbind(1), strict=True):
        offsets = points - pose[:, None, None, :, 2]
        inverse = torch.linalg.inv(pose[:, :, :2])
        grid = torch.einsum("bpq,bhwq->bhwp", inverse, offsets) * (UNIT / GLYPH)
        glyph = glyphs[kind].unsqueeze(1)
        drawing = F.grid_sample(glyph, grid, padding_mode="zeros", align_corners=False)
        pages = torch.maximum(pages, drawing.squeeze(1))
    return (255 * pages).round().to(torch.uint8).unsqueeze(1)


def turn_poses(
    inputs: Float[Tensor, "batch 7 members 1"], angles: Float[Tensor, " batch"]
) -> Float[Tensor, "batch 7 members 1"]:
    """The same constellations, turned about the middle.

    Args:
        inputs: of a set of the form "poses".
        angles: in radians.

    Returns:
        Inputs whose poses are turned.
    """
    cos = angles.cos()
    sin = angles.sin()
    rotations = torch.stack([cos, -sin, sin, cos], dim=1).unflatten(1, (2, 2))
    poses = inputs[:, :POSE].unflatten(1, (2, 3))
    turned = torch.einsum("bpq,bqrmk->bprmk", rotations, poses).flatten(1, 2)
    return torch.cat([turned, inputs[:, POSE:]], dim=1)


class TurnMaker(Maker):
    """Turns the constellations of a training anew, by any angle."""

    def draw(self, images: Dataset, indices: Tensor, generator: Generator) -> Batch:
        inputs = images.inputs[indices]
        shares = torch.rand(len(indices), generator=generator, device=generator.device)
        angles = to_device((2 * math.pi * shares).to(inputs.dtype), inputs.device)
        targets = {name: target[indices] for name, target in images.targets.items()}
        return Batch(turn_poses(inputs, angles), targets, indices)


def _objects(
    shape: tuple[int, int], angles: tuple[float, float], random: Random
) -> tuple[Floats, Floats]:
    """Angles of objects in radians, and their poses `[*shape, 2, 3]`."""
    low, high = np.radians(angles)
    turns = random.choice([-1, 1], shape) * random.uniform(low, high, shape)
    distances = PLACE * np.sqrt(random.uniform(size=shape))
    places = distances[..., None] * _direction(random.uniform(-math.pi, math.pi, shape))
    return turns, _poses(turns, random.uniform(*SIZES, shape), places)


def _poses(turns: Floats, sizes: Floats, places: Floats) -> Floats:
    """[A | t] `[..., 2, 3]` of turns in radians, sizes, and places `[..., 2]`."""
    cos = sizes * np.cos(turns)
    sin = sizes * np.sin(turns)
    rows = [np.stack([cos, -sin], axis=-1), np.stack([sin, cos], axis=-1)]
    return np.concatenate([np.stack(rows, axis=-2), places[..., None]], axis=-1)


def _compose(outer: Floats, inner: Floats) -> Floats:
    """Poses in an outer frame: A = A1 A2, t = A1 t2 + t1."""
    composed = outer[..., :2] @ inner
    composed[..., 2] += outer[..., 2]
    return composed


def _direction(angles: Floats) -> Floats:
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def _glyph(text: str) -> Tensor:
    return torch.tensor([[float(digit) for digit in row] for row in text.split()])


# Set -> its form, and what draws its items anew in training.
SETS: dict[str, tuple[str, Maker | None]] = {
    "constellations": ("poses", None),
    "constellations-turned": ("poses", TurnMaker()),
    "constellations-pixels": ("pixels", None),
}


def _read(folder: Path, request: ReadRequest, name: str) -> Dataset | None:
    """Draw the constellations of a split; no other folder than this one has them."""
    if folder != Path(__file__).parent:
        return None
    return _render_split(name, request.split)


@cache  # many trainings of one process read it
def _render_split(name: str, split: str) -> Dataset:
    form, maker = SETS[name]
    is_test = split == "test"
    drawn = draw_constellations(COUNTS[split], NOVEL if is_test else FAMILIAR, seed=int(is_test))
    images = render_constellations(form, drawn, name)
    return images if is_test else replace(images, maker=maker)


for _name, (_form, _maker) in SETS.items():
    _shape = (1, SIDE, SIDE) if _form == "pixels" else (POSE + 1, NUM_TYPES + NUM_DISTRACTORS, 1)
    _info = DatasetInfo(
        name=_name,
        title=f"constellations of six parts and six distractors as {_form}",
        classes=CLASSES,
        image_shape=_shape,
        train=COUNTS["train"],
        test=COUNTS["test"],
        license="Apache-2.0, drawn when it is read",
        source=f"{__name__}.draw_constellations",
        sha256={Path(__file__).name: None},  # its only file is this one
        embedded=Path(__file__).parent,
    )
    register_dataset(_info)(partial(_read, name=_name))
