"""Synthetic planes as sets of points, seen from above: an elliptic fuselage, swept wings and a tail.

The nose is to the right. A plane is first made with a fuselage from x = -1 to x = 1, then every set
of points is centered and scaled alike (`standardized_points`). The data set "planes" has planes of
256 points; `make_planes` makes others.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from torchcaps.data._registry import register_dataset
from torchcaps.data.dataset import Dataset
from torchcaps.data.points import point_set, standardized_points
from torchcaps.data.sources import published_set
from torchcaps.errors import check_positive, check_range

Random = np.random.RandomState
POINTS = 256


class Surface(NamedTuple):
    """Two trapezoids, one on each side of the fuselage: the wings, or the tail."""

    front: float  # x of the front edge, at the fuselage
    root_chord: float  # length in x at the fuselage
    tip_chord: float  # length in x at the tip
    span: float  # length in y of one side
    sweep: float  # how much smaller x of the front edge is at the tip

    @property
    def area(self) -> float:
        """Area of both sides."""
        return self.span * (self.root_chord + self.tip_chord)


# (smallest, largest) of each number of a `Surface`, which is uniform between them.
WINGS = np.array([(0.2, 0.5), (0.35, 0.6), (0.1, 0.25), (0.6, 1.0), (0.2, 0.6)])
TAIL = np.array([(-0.75, -0.65), (0.2, 0.3), (0.08, 0.15), (0.25, 0.4), (0.1, 0.25)])


def make_planes(count: int, points: int = POINTS, *, seed: int = 0) -> Dataset:
    """Make random planes, the same on every machine for the same seed.

    Args:
        count: number of planes, at least 1.
        points: number of points of each plane, at least 2.
        seed: 0 or more.

    Returns:
        A set whose points are `[count, 2, points, 1]`, x and y.

    Raises:
        ValueError: for counts out of range.
    """
    check_positive(count=count)
    check_range("points", points, low=2)
    random = Random(seed)
    planes = np.stack([_make_plane(points, random) for _ in range(count)])
    return point_set(standardized_points("planes", planes), "planes", "plane")


def _make_plane(num_points: int, random: Random) -> np.ndarray:
    """Points `[num_points, 2]` of one plane, on each part a share by its area."""
    half_width = random.uniform(0.08, 0.14)
    wings = Surface(*random.uniform(WINGS[:, 0], WINGS[:, 1]))
    tail = Surface(*random.uniform(TAIL[:, 0], TAIL[:, 1]))
    areas = np.array([np.pi * half_width, wings.area, tail.area])
    on_fuselage, on_wings, on_tail = random.multinomial(num_points, areas / areas.sum())
    # The fuselage is an ellipse, whose half axes are 1 and `half_width`.
    angle = random.uniform(0, 2 * np.pi, on_fuselage)
    radius = np.sqrt(random.uniform(size=on_fuselage))
    return np.concatenate(
        [
            np.column_stack([radius * np.cos(angle), half_width * radius * np.sin(angle)]),
            _sample_surface(wings, on_wings, random),
            _sample_surface(tail, on_tail, random),
        ]
    )


def _sample_surface(surface: Surface, count: int, random: Random) -> np.ndarray:
    """Points `[count, 2]` on both sides of a surface."""
    span_share = random.uniform(size=count)  # from the fuselage to the tip
    side = random.choice([-1.0, 1.0], size=count)
    chord_share = random.uniform(size=count)  # from the front edge backwards

    # The front edge and the chord at that share of the span.
    edge = surface.front - surface.sweep * span_share
    chord = surface.root_chord + (surface.tip_chord - surface.root_chord) * span_share
    return np.column_stack([edge - chord_share * chord, side * surface.span * span_share])


INFO = published_set("planes", embedded=Path(__file__).parent)  # its only file is this one
register_dataset(INFO)(
    lambda folder, request: (
        make_planes(getattr(INFO, request.split), seed=int(request.split == "test"))
        if folder == INFO.embedded
        else None
    )
)
