"""Synthetic planes as sets of points: an elliptic fuselage, swept wings and a tail.

The nose is to the right.
"""

from pathlib import Path

import numpy as np

from torchcaps.data._registry import DatasetInfo, ReadRequest, register_dataset
from torchcaps.data.points import PointSet, standardized_points
from torchcaps.errors import check_range

COUNTS = {"train": 512, "test": 64}
POINTS = 256
# Ends of uniform distributions, of the wings and of the tail: front of the root, its chord, chord
# of the tip, span to one side, sweep. The fuselage is from -1 to 1.
WINGS = np.array([(0.2, 0.5), (0.35, 0.6), (0.1, 0.25), (0.6, 1.0), (0.2, 0.6)])
TAIL = np.array([(-0.75, -0.65), (0.2, 0.3), (0.08, 0.15), (0.25, 0.4), (0.1, 0.25)])


def make_planes(count: int, points: int = POINTS, *, seed: int = 0) -> PointSet:
    """Planes that are the same everywhere for the same seed.

    Args:
        count: of planes, at least 1.
        points: of each, at least 2.
        seed: 0 or more.

    Returns:
        Sets of points `[count, 2, points, 1]`.

    Raises:
        ValueError: for counts out of range.
    """
    check_range("count", count, low=1)
    check_range("points", points, low=2)
    random = np.random.RandomState(seed)
    planes = np.empty((count, points, 2))
    for plane in planes:
        plane[:] = _make_plane(points, random)
    return PointSet.of(standardized_points("planes", planes), "planes", "plane")


def _make_plane(points: int, random: np.random.RandomState) -> np.ndarray:
    """Points `[points, 2]`, as many on each part as its area asks for."""
    width = random.uniform(0.08, 0.14)
    wings = random.uniform(WINGS[:, 0], WINGS[:, 1])
    tail = random.uniform(TAIL[:, 0], TAIL[:, 1])
    areas = np.array([np.pi * width, _area(wings), _area(tail)])
    counts = random.multinomial(points, areas / areas.sum())

    # The fuselage is an ellipse.
    turn = random.uniform(0, 2 * np.pi, counts[0])
    radius = np.sqrt(random.uniform(size=counts[0]))
    x = radius * np.cos(turn)
    y = width * radius * np.sin(turn)
    parts = [np.stack([x, y], axis=1)]
    for surface, count in ((wings, counts[1]), (tail, counts[2])):
        front, root, tip, span, sweep = surface
        # Shares of the span and of the chord there, which runs from the front edge backwards.
        out = random.uniform(size=count)
        side = random.choice([-1.0, 1.0], size=count)
        back = random.uniform(size=count)
        edge = front - sweep * out
        chord = root + (tip - root) * out
        x = edge - back * chord
        y = side * span * out
        parts.append(np.stack([x, y], axis=1))
    return np.concatenate(parts)


def _area(surface: np.ndarray) -> float:
    """Area of wings or of a tail, both sides, by its five numbers."""
    _, root, tip, span, _ = surface
    return float(span * (root + tip))


INFO = DatasetInfo(
    name="planes",
    title="synthetic planes as sets of 256 points",
    classes=("plane",),
    image_shape=(2, POINTS, 1),
    train=COUNTS["train"],
    test=COUNTS["test"],
    license="Apache-2.0, made by this package",
    source="torchcaps.data.make_planes",
    sha256={Path(__file__).name: None},
    embedded=Path(__file__).parent,
)


@register_dataset(INFO)
def _read(folder: Path, request: ReadRequest) -> PointSet | None:
    if folder != INFO.embedded:
        return None
    return make_planes(COUNTS[request.split], seed=int(request.split == "test"))
