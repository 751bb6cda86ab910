"""The toys of synthNORB, the solids that they are made of, and photographs of them.

A solid is a unit solid (ball, cube of half side 1, truncated cone of half height 1) under an affine
map. The map takes rays to rays and keeps the order along them. A ray therefore meets a solid where
it meets the unit solid in the solid's own frame, which has a closed form for each kind.
"""

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

KINDS = BALL, BLOCK, CONE = range(3)

NUM_TOYS = 10  # of each category
JITTER = 0.06  # largest change of a proportion by the seed, as a fraction
TINY = 1e-9
CAMERA_DISTANCE = 10.0  # from the camera's plane to the point that it looks at
SHADOW_OFFSET = 1e-3  # a shadow ray starts this far above its surface
TABLE_ALBEDO = 0.62  # share of light that the table gives back
EXTENT = 1.15  # half the side of what a photograph shows
TARGET_HEIGHT = 0.35  # above the table, of the point that the camera looks at

Interval = tuple[Tensor, Tensor]  # distances at which a ray enters and leaves
Vector = Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Solid:
    """A unit solid under the map `x -> frame @ x + center`.

    Attributes:
        kind: BALL, BLOCK or CONE.
        center: `[3]`.
        frame: `[3, 3]`; its columns are the half axes.
        top: radius of a cone at +1 as a share of its radius at -1: 0 is a pointed cone, 1 a
            cylinder.
    """

    kind: int
    center: np.ndarray
    frame: np.ndarray
    top: float = 1.0


def _turned(kind: int, center: Vector, half: Vector | float, tilt: Vector = (0, 0, 0)) -> Solid:
    """An ellipsoid or a box.

    Args:
        kind: BALL or BLOCK.
        center: `[3]`.
        half: half axes, or one radius.
        tilt: its rotation about x, then y, then z, in degrees.
    """
    return Solid(kind, np.array(center, float), rotation(tilt) * half)


ball = partial(_turned, BALL)
block = partial(_turned, BLOCK)


def rod(start: Vector, end: Vector, radius: float, end_radius: float | None = None) -> Solid:
    """A cylinder, or a truncated cone.

    Args:
        start: middle of its first lid.
        end: middle of its other lid.
        radius: at the start.
        end_radius: at the end, at most `radius`; by default the same.
    """
    foot = np.asarray(start, float)
    axis = np.subtract(end, foot) / 2
    along = axis / np.linalg.norm(axis)
    side = np.cross(along, [0.0, 0.0, 1.0] if abs(along[2]) < 0.9 else [1.0, 0.0, 0.0])
    side /= np.linalg.norm(side)
    frame = np.column_stack([side * radius, np.cross(along, side) * radius, axis])
    return Solid(CONE, foot + axis, frame, 1.0 if end_radius is None else end_radius / radius)


def wing(center: Vector, half_span: float, chord: float, sweep: float) -> Solid:
    """A flat box along y, sheared back along x.

    Args:
        center: of the box, before it is moved back by half of the sweep.
        half_span: half its length along y.
        chord: half its length along x.
        sweep: shear toward -x per unit of y.
    """
    shear = np.eye(3)
    shear[0, 1] = -sweep
    middle = np.subtract(center, (abs(sweep) * half_span, 0, 0))
    return Solid(BLOCK, middle, shear @ np.diag((chord, half_span, 0.03)))


def rotation(degrees: Vector) -> np.ndarray:
    """The matrix `[3, 3]` that turns about x, then y, then z."""
    from scipy.spatial.transform import Rotation

    return np.asarray(Rotation.from_euler("xyz", degrees, degrees=True).as_matrix())


def _stack(arrays: Sequence[Any]) -> Tensor:
    return torch.from_numpy(np.stack(arrays)).float()


class Body:
    """Solids put together, ready for rays.

    Args:
        solids: in any order; those of one kind are computed together.

    Attributes:
        kinds: `[solids]`, in ascending order, as are the solids in all that follows.
        center: `[solids, 3]`.
        inverse: `[solids, 3, 3]`, maps into the solids' frames.
        top: `[solids]`, as of `Solid`.
    """

    def __init__(self, solids: Sequence[Solid]) -> None:
        solids = sorted(solids, key=lambda solid: solid.kind)
        self.kinds = torch.tensor([solid.kind for solid in solids])
        self.center = _stack([solid.center for solid in solids])
        self.inverse = _stack([np.linalg.inv(solid.frame) for solid in solids])
        self.top = _stack([solid.top for solid in solids])

    def crossings(self, origins: Tensor, direction: Tensor) -> Interval:
        """Distances at which parallel rays enter and leave each solid.

        Args:
            origins: of the rays, `[rays, 3]`.
            direction: of all of them, a unit vector `[3]`.

        Returns:
            Both distances, `[solids, rays]`. A ray that misses a solid enters it at infinity and leaves it at minus
            infinity.
        """
        # A ray parallel to a face divides by zero; one a hair off does not.
        along = self.inverse @ direction
        along = torch.where(along.abs() < TINY, TINY, along)
        frame_origin = -(self.inverse @ self.center.unsqueeze(-1)).movedim(1, 0)
        start = torch.baddbmm(frame_origin, self.inverse.movedim(1, 0), origins.T.expand(3, -1, -1))

        counts = self.kinds.bincount(minlength=len(KINDS)).tolist()
        rays = zip(
            KINDS,
            start.split(counts, dim=1),
            along.T.unsqueeze(-1).split(counts, dim=1),
            self.top.unsqueeze(-1).split(counts),
            strict=True,
        )
        enter, leave = torch.cat([torch.stack(_intersect(*of_kind)) for of_kind in rays], dim=1)
        is_hit = enter < leave
        return torch.where(is_hit, enter, torch.inf), torch.where(is_hit, leave, -torch.inf)

    def normals(self, points: Tensor, solid: Tensor) -> Tensor:
        """Outward unit normals `[rays, 3]` at points `[rays, 3]` on these solids `[rays]`."""
        inverse = self.inverse[solid]
        kind = self.kinds[solid].unsqueeze(-1)
        local = torch.einsum("pij,pj->pi", inverse, points - self.center[solid])

        # A point of the unit cube is on the face that it is nearest to.
        size = local.abs()
        is_face = size >= size.amax(dim=-1, keepdim=True)
        # One of a cone is on its mantle or on a lid, as is nearer.
        x, y, z = local.unbind(dim=-1)
        top = self.top[solid]
        slope = (top - 1) / 2
        radius = (1 + top) / 2 + slope * z
        mantle = torch.column_stack([x, y, -radius * slope])
        lid = local.sign() * torch.tensor([0, 0, 1])
        to_mantle = (local[:, :2].norm(dim=-1) - radius).abs()
        is_lid = (1 - z.abs()).abs() < to_mantle
        normals = torch.where(is_lid.unsqueeze(-1), lid, mantle)
        normals = torch.where(kind == BLOCK, local.sign() * is_face, normals)
        normals = torch.where(kind == BALL, local, normals)

        # Normals turn with the inverse's transpose.
        return torch.nn.functional.normalize(torch.einsum("pij,pi->pj", inverse, normals), dim=-1)


def _intersect(kind: int, start: Tensor, along: Tensor, top: Tensor) -> Interval:
    """Where rays start + t along are inside of unit solids: both ends of the intervals of t.

    Args:
        kind: of the solids.
        start: `[3, solids, rays]`, of the rays in the frames of the solids.
        along: `[3, solids, 1]`, their direction there.
        top: `[solids, 1]`, as of `Solid`.
    """
    if kind == BALL:
        # |start + t along|² < 1, a quadratic inequality in t: a t² + 2 b t + c < 0.
        a = (along * along).sum(dim=0)
        b = (start * along).sum(dim=0)
        c = (start * start).sum(dim=0) - 1
        middle = -b / a
        discriminant = middle * middle - c / a  # below 0: the ray passes by
        root = discriminant.clamp(min=0).sqrt()
        return middle - root, torch.where(discriminant > 0, middle + root, -torch.inf)
    # Where each coordinate is between -1 and 1.
    middle = -start / along
    half = 1 / along.abs()
    enter = middle - half
    leave = middle + half
    if kind == BLOCK:
        return enter.amax(dim=0), leave.amin(dim=0)
    # Between the lids of a cone: x² + y² < (radius at z)², again a quadratic inequality in t.
    enter, leave = enter[2], leave[2]
    x, y, z = start
    u, v, w = along

    # The radius is linear in the distance t: radius + slope t.
    taper = (top - 1) / 2
    radius = (1 + top) / 2 + taper * z
    slope = taper * w
    a = u * u + v * v - slope * slope
    a = torch.where(a.abs() < TINY, TINY, a)
    b = x * u + y * v - radius * slope
    c = x * x + y * y - radius * radius
    discriminant = b * b - a * c
    is_real = discriminant > 0
    root = discriminant.clamp(min=0).sqrt()
    near = (-b - root) / a
    far = (-b + root) / a

    # A ray as steep as the cone or steeper (a < 0) is inside before one root or behind the other:
    # of the two nappes only one reaches between the lids.
    high = torch.maximum(near, far)
    before = torch.where(is_real, torch.minimum(near, far), leave)
    is_behind = (high < leave) & (before <= enter)
    steep_enter = torch.where(is_behind, torch.maximum(enter, high), enter)
    steep_leave = torch.where(is_behind, leave, torch.minimum(leave, before))

    slant_enter = torch.maximum(enter, near)
    slant_leave = torch.where(is_real, torch.minimum(leave, far), -torch.inf)
    is_steep = a < 0
    return (
        torch.where(is_steep, steep_enter, slant_enter),
        torch.where(is_steep, steep_leave, slant_leave),
    )


SHAPES: dict[str, Callable[..., Solid]] = {"ball": ball, "block": block, "rod": rod, "wing": wing}


@cache
def _read_toys() -> list[dict[str, list[list[Any]]]]:
    return list(tomllib.loads(Path(__file__).with_name("toys.toml").read_text("utf-8")).values())


def make_toy(category: int, instance: int, seed: int = 0, *, jitter: float = JITTER) -> list[Solid]:
    """The solids of a toy, which stands on the table, over the origin.

    Its longest horizontal side is 1.9, unless it would then be higher than 1.5.

    Args:
        category: 0 animal, 1 human, 2 airplane, 3 truck, 4 car.
        instance: 0 to 9.
        seed: of its proportions.
        jitter: largest change of a proportion by the seed, as a fraction below 1.
    """
    random = np.random.RandomState([seed, category, instance])
    stretch = 1 + jitter * random.uniform(-1, 1, 3)
    toy = []
    for shape, *numbers in _read_toys()[category][str(instance)]:
        solid = SHAPES[shape](*numbers)
        frame = solid.frame * stretch[:, None]
        toy.append(replace(solid, center=solid.center * stretch, frame=frame))

    # The middle of the box around it goes over the origin, its lowest point to the table.
    low = np.min([solid.center - _reach(solid) for solid in toy], axis=0)
    high = np.max([solid.center + _reach(solid) for solid in toy], axis=0)
    shift = (low + high) / 2
    shift[2] = low[2]
    length, width, height = high - low
    scale = min(1.9 / max(length, width), 1.5 / height)
    return [
        replace(solid, center=(solid.center - shift) * scale, frame=solid.frame * scale)
        for solid in toy
    ]


def _reach(solid: Solid) -> np.ndarray:
    """How far a solid reaches from its center along x, y and z; a cone counts as a cylinder."""
    if solid.kind == BALL:
        return np.linalg.norm(solid.frame, axis=1)
    if solid.kind == BLOCK:
        return abs(solid.frame).sum(axis=1)
    x, y, z = solid.frame.T
    return np.sqrt(x**2 + y**2) + abs(z)


class Lamp(NamedTuple):
    """A lamp, and the light from everywhere.

    Attributes:
        azimuth: of the direction to the lamp, in degrees; 0 is where the camera is.
        height: of that direction above the table, in degrees.
        strength: of its light.
        ambient: strength of the light from everywhere.
    """

    azimuth: float
    height: float
    strength: float
    ambient: float


# From the left, the right, behind, the front; strong and low, weak and high.
LAMPS = (
    Lamp(-60, 45, 0.75, 0.25),
    Lamp(60, 45, 0.75, 0.25),
    Lamp(150, 40, 0.85, 0.30),
    Lamp(10, 55, 0.60, 0.15),
    Lamp(-110, 28, 1.00, 0.20),
    Lamp(80, 75, 0.50, 0.45),
)


def photograph(
    body: Body,
    elevation: float,
    azimuth: float,
    lamps: Sequence[Lamp],
    *,
    size: int = 48,
    albedo: float = 0.85,
) -> Tensor:
    """One view of a body on the plane z = 0, once under each lamp.

    The lamps stay with the camera's table; the body turns. A pixel is the mean of 2 × 2 rays.

    Args:
        body: what stands on the table.
        elevation: of the camera, between 0 and 90 degrees.
        azimuth: of the camera, in degrees.
        lamps: one for each photograph.
        size: pixels of a side.
        albedo: share of light that the body gives back, in [0, 1].

    Returns:
        uint8 `[lamps, size, size]`.
    """
    # Unit vectors to the camera, to its right and up, in the body's own frame.
    turn = math.radians(azimuth)
    eye = _direction(math.radians(elevation), turn)
    right = torch.tensor([-math.sin(turn), math.cos(turn), 0.0])
    up = torch.linalg.cross(eye, right)

    # Rays start in a plane before the camera, 2 × 2 for a pixel.
    along = ((torch.arange(2 * size) + 0.5) / size - 1) * EXTENT
    rows, columns = torch.meshgrid(-along, along, indexing="ij")
    origins = columns.reshape(-1, 1) * right + rows.reshape(-1, 1) * up
    origins += torch.tensor([0.0, 0.0, TARGET_HEIGHT])
    origins += CAMERA_DISTANCE * eye

    # What each ray meets first: the body, or else the table.
    distance, solid = body.crossings(origins, -eye)[0].min(dim=0)
    on_table = torch.isinf(distance)
    distance = torch.where(on_table, origins[:, 2] / eye[2], distance)
    points = origins - distance.unsqueeze(-1) * eye
    on_body = ~on_table
    normals = torch.tensor([0.0, 0.0, 1.0]).repeat(len(points), 1)
    normals[on_body] = body.normals(points[on_body], solid[on_body])
    surface_albedo = torch.where(on_table, TABLE_ALBEDO, albedo)

    starts = points + SHADOW_OFFSET * normals
    photographs = []
    for lamp in lamps:
        # The light of the lamp, by Lambert's cosine; what looks away from it needs no ray to it.
        to_lamp = _direction(math.radians(lamp.height), math.radians(lamp.azimuth) + turn)
        cosine = (normals @ to_lamp).clamp(min=0)
        cosine = torch.where(on_table, to_lamp[2], cosine)
        facing = (cosine > 0).nonzero().flatten()
        # What ends further away than where the ray starts stops the light.
        enter, leave = body.crossings(starts[facing], to_lamp)
        stops = (leave > SHADOW_OFFSET) & (enter > -SHADOW_OFFSET)
        cosine[facing[stops.any(dim=0)]] = 0.0

        # And that of the sky.
        light = lamp.ambient * (0.6 + 0.4 * normals[:, 2]) + lamp.strength * cosine
        gray = (light * surface_albedo).reshape(size, 2, size, 2).mean(dim=(1, 3))
        photographs.append((gray.clamp(0, 1) * 255).round())
    return torch.stack(photographs).byte()


def _direction(height: float, azimuth: float) -> Tensor:
    """A unit vector by its angles in radians, `height` above the table."""
    flat = math.cos(height)
    return torch.tensor([flat * math.cos(azimuth), flat * math.sin(azimuth), math.sin(height)])
