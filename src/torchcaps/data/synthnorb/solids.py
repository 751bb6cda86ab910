"""Fifty toys, the solids that they are made of, and photographs of them, by rays that meet solids in closed form.

Each is a unit solid (ball, cube of half side 1, truncated cone of half height 1) under an affine map, which takes rays
to rays and keeps the order along them: a solid is met by meeting the unit solid in its own frame.
"""

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

BALL, BLOCK, CONE = 0, 1, 2
INSTANCES = 10
JITTER = 0.06  # largest change of a proportion by the seed, as a fraction
TINY = 1e-9
FAR = 10.0  # from the camera's plane to the middle of the scene
SKIP = 1e-3  # a shadow ray starts this far above its surface
TABLE = 0.62  # share of light that the table gives back
EXTENT = 1.15  # half the side of what a photograph shows
HEIGHT = 0.35  # of the point above the table that the camera looks at
Vector = Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Solid:
    """A unit solid (BALL, BLOCK or CONE) under `x -> frame @ x + center`; the columns of `frame` are its half axes.

    `top` is a cone's radius at +1 as a share of its radius at -1: 0 is a pointed cone, 1 a cylinder.
    """

    kind: int
    center: np.ndarray
    frame: np.ndarray
    top: float = 1.0


def ball(center: Vector, radii: Vector | float, tilt: Vector = (0, 0, 0)) -> Solid:
    """An ellipsoid; `tilt` turns it about x, then y, then z, in degrees."""
    return Solid(BALL, np.array(center, float), turned(tilt) * np.broadcast_to(radii, 3))


def block(center: Vector, half: Vector, tilt: Vector = (0, 0, 0)) -> Solid:
    """A box with these half sides; `tilt` as of `ball`."""
    return Solid(BLOCK, np.array(center, float), turned(tilt) * np.asarray(half))


def rod(start: Vector, end: Vector, radius: float, end_radius: float | None = None) -> Solid:
    """A cylinder from `start` to `end`, or a cone that narrows to `end_radius`, at most `radius`."""
    axis = (np.asarray(end, float) - np.asarray(start, float)) / 2
    along = axis / np.linalg.norm(axis)
    side = np.cross(along, [0.0, 0.0, 1.0] if abs(along[2]) < 0.9 else [1.0, 0.0, 0.0])
    side /= np.linalg.norm(side)
    frame = np.stack([side * radius, np.cross(along, side) * radius, axis], axis=1)
    top = 1.0 if end_radius is None else end_radius / radius
    return Solid(CONE, np.asarray(start, float) + axis, frame, top)


def wing(center: Vector, half_span: float, chord: float, sweep: float) -> Solid:
    """A flat box along y, sheared back along x by `sweep` per unit of y; `chord` is half its length along x."""
    flat = block(center, (chord, half_span, 0.03))
    shear = np.array([[1, -sweep, 0], [0, 1, 0], [0, 0, 1.0]])
    return Solid(BLOCK, flat.center - (abs(sweep) * half_span, 0, 0), shear @ flat.frame)


def turned(degrees: Vector) -> np.ndarray:
    """The rotation about x, then y, then z."""
    from scipy.spatial.transform import Rotation

    found: np.ndarray = Rotation.from_euler("xyz", degrees, degrees=True).as_matrix()
    return found


class Body:
    """Solids put together, ready for rays; solids of one kind are computed together."""

    def __init__(self, solids: Sequence[Solid]) -> None:
        ordered = sorted(solids, key=lambda s: s.kind)
        self.kinds = torch.tensor([s.kind for s in ordered])
        arrays = (
            [s.frame for s in ordered],
            [np.linalg.inv(s.frame) for s in ordered],
            [s.center for s in ordered],
        )
        self.frame, self.inverse, self.center = (
            torch.from_numpy(np.stack(some)).float() for some in arrays
        )
        # Row by row of the maps into the solids' frames: [3, solids, 3], and where the origin goes, [3, solids, 1].
        self._rows = self.inverse.movedim(1, 0).contiguous()
        self._origin = -(self.inverse @ self.center.unsqueeze(-1)).movedim(1, 0)
        self.top = torch.tensor([s.top for s in ordered], dtype=torch.float32)

    def crossings(
        self, origins: Float[Tensor, "rays 3"], direction: Float[Tensor, " 3"]
    ) -> tuple[Tensor, ...]:
        """(ray, solid, where it enters, where it leaves), `[crossings]` each, of parallel rays and solids."""
        ray, solid, start = self._near(origins, direction)
        local = self.inverse @ direction  # [solids, 3]
        # A ray parallel to a face divides by zero; one a hair off does not.
        local = torch.where(local.abs() < TINY, torch.full_like(local, TINY), local)
        along, top = local.T.index_select(1, solid), self.top.index_select(0, solid)
        # Solids are sorted by kind, and so are their crossings.
        counts = torch.bincount(self.kinds.index_select(0, solid), minlength=3).tolist()
        some = zip(
            _MEET, start.split(counts, 1), along.split(counts, 1), top.split(counts), strict=True
        )
        enter, leave = (
            torch.cat(ends) for ends in zip(*(meet(*each) for meet, *each in some), strict=True)
        )
        real = (enter < leave).nonzero().flatten()
        return tuple(values.index_select(0, real) for values in (ray, solid, enter, leave))

    def _near(self, origins: Tensor, direction: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        helper = torch.eye(3)[int(direction.abs().argmin())]
        side = torch.nn.functional.normalize(torch.linalg.cross(direction, helper), dim=0)
        axes = torch.stack([side, torch.linalg.cross(direction, side)])  # [2, 3], across the rays
        at = axes @ origins.T
        far, center = reach(self.kinds, axes @ self.frame).T, axes @ self.center.T  # [2, solids]
        low, high = center - far, center + far
        # First the box around all solids, which most rays miss.
        inside = (at > low.amin(dim=1, keepdim=True)) & (at < high.amax(dim=1, keepdim=True))
        rays = (inside[0] & inside[1]).nonzero().flatten()
        at = at.index_select(1, rays)
        across, down = ((at[i] - center[i, :, None]).abs_() < far[i, :, None] for i in (0, 1))
        passes = (across & down).flatten().nonzero().flatten()
        solid = passes // len(rays) if len(rays) else passes
        starts = torch.baddbmm(
            self._origin, self._rows, origins.index_select(0, rays).T.expand(3, -1, -1)
        )
        return (
            rays.index_select(0, passes - solid * len(rays)),
            solid,
            starts.flatten(1).index_select(1, passes),
        )

    def first(
        self, origins: Float[Tensor, "rays 3"], direction: Float[Tensor, " 3"]
    ) -> tuple[Tensor, Tensor]:
        """`[rays]` each: distance to the nearest solid that a ray enters, or infinity, and that solid, or 0."""
        ray, solid, enter, _ = self.crossings(origins, direction)
        distance = torch.full((len(origins),), torch.inf).scatter_reduce(0, ray, enter, "amin")
        nearest = enter == distance.index_select(0, ray)
        none = torch.zeros(len(origins), dtype=torch.int64)
        return distance, none.scatter_reduce(
            0, ray[nearest], solid[nearest], "amin", include_self=False
        )

    def covered(
        self, origins: Float[Tensor, "rays 3"], direction: Float[Tensor, " 3"], skip: float
    ) -> Tensor:
        """`[rays]`: 1 where something more than `skip` away lies on the ray, so that its light is blocked, or 0."""
        ray, _, enter, leave = self.crossings(origins, direction)
        return torch.zeros(len(origins)).index_fill(0, ray[(leave > skip) & (enter > -skip)], 1.0)

    def normals(
        self, points: Float[Tensor, "rays 3"], solid: Int64[Tensor, " rays"]
    ) -> Float[Tensor, "rays 3"]:
        """Outward unit normals at points on these solids."""
        inverse, kind = (
            self.inverse.index_select(0, solid),
            self.kinds.index_select(0, solid).unsqueeze(-1),
        )
        local = torch.einsum("pij,pj->pi", inverse, points - self.center.index_select(0, solid))
        rim = _rim(local, self.top.index_select(0, solid))
        size = local.abs()
        face = local.sign() * (
            size >= size.amax(dim=-1, keepdim=True)
        )  # of the unit cube, that it is nearest to
        out = torch.where(kind == BALL, local, torch.where(kind == BLOCK, face, rim))
        # Normals turn with the inverse's transpose.
        return torch.nn.functional.normalize(torch.einsum("pij,pi->pj", inverse, out), dim=-1)


def reach(
    kinds: Int64[Tensor, " solids"], axes: Float[Tensor, "solids k 3"]
) -> Float[Tensor, "solids k"]:
    """How far solids reach along k directions, given as (direction · half axis); a cone counts as a cylinder."""
    round_, square = axes.square(), axes.abs()
    cone = (round_[..., 0] + round_[..., 1]).sqrt() + square[..., 2]
    ends = torch.stack([round_.sum(dim=-1).sqrt(), square.sum(dim=-1), cone])
    return ends[kinds, torch.arange(len(kinds))]


def _meet_ball(start: Tensor, along: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    square = (along * along).sum(dim=0)
    middle = -(start * along).sum(dim=0) / square
    rest = (start * start).sum(dim=0) - 1
    half = (middle * middle - rest / square).clamp(min=-1)  # below 0: the ray passes by
    root = half.clamp(min=0).sqrt()
    return middle - root, torch.where(half > 0, middle + root, -torch.inf)


def _meet_block(start: Tensor, along: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    middle, half = -start / along, 1 / along.abs()
    return (middle - half).amax(dim=0), (middle + half).amin(dim=0)


def _meet_cone(start: Tensor, along: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """Between the two lids, the ray is inside where x² + y² < (radius at z)²: a quadratic in the distance."""
    x, y, z = start
    u, v, w = along
    enter, leave = -z / w - 1 / w.abs(), -z / w + 1 / w.abs()
    radius, slope = (1 + top) / 2 + (top - 1) / 2 * z, (top - 1) / 2 * w
    a = u * u + v * v - slope * slope
    a = torch.where(a.abs() < TINY, torch.full_like(a, TINY), a)
    b = x * u + y * v - radius * slope
    c = x * x + y * y - radius * radius
    under = b * b - a * c
    root = under.clamp(min=0).sqrt()
    near, far = (-b - root) / a, (-b + root) / a
    # A ray as steep as the cone or steeper (a < 0) is inside before one root or behind the other: of the two nappes
    # only one reaches between the lids.
    low, high = torch.minimum(near, far), torch.maximum(near, far)
    before = torch.where(under > 0, low, leave)
    steep_enter = torch.where(
        high < leave, torch.where(before > enter, enter, torch.maximum(enter, high)), enter
    )
    steep_leave = torch.where(
        (high < leave) & (before <= enter), leave, torch.minimum(leave, before)
    )
    slant_leave = torch.where(under > 0, torch.minimum(leave, far), -torch.inf)
    steep = a < 0
    return torch.where(steep, steep_enter, torch.maximum(enter, near)), torch.where(
        steep, steep_leave, slant_leave
    )


_MEET = (_meet_ball, _meet_block, _meet_cone)


def _rim(local: Tensor, top: Tensor) -> Tensor:
    slope = (top - 1) / 2
    radius = (1 + top) / 2 + slope * local[:, 2]
    mantle = torch.stack([local[:, 0], local[:, 1], -radius * slope], dim=-1)
    lid = torch.stack(
        [torch.zeros_like(radius), torch.zeros_like(radius), local[:, 2].sign()], dim=-1
    )
    to_mantle = (local[:, :2].norm(dim=-1) - radius).abs()
    return torch.where(((1 - local[:, 2].abs()).abs() < to_mantle).unsqueeze(-1), lid, mantle)


KINDS: dict[str, Callable[..., Solid]] = {"ball": ball, "block": block, "rod": rod, "wing": wing}


@cache
def _parts() -> list[dict[str, list[tuple[str, Any]]]]:
    return list(tomllib.loads(Path(__file__).with_name("toys.toml").read_text("utf-8")).values())


def make_toy(category: int, instance: int, seed: int = 0) -> list[Solid]:
    """The solids of toy 0..9 of a category (0 animal, 1 human, 2 airplane, 3 truck, 4 car).

    It stands on the table, over the origin, with its longest side 1.9 and no higher than 1.5.
    """
    stretch = 1 + JITTER * np.random.RandomState([seed, category, instance]).uniform(-1, 1, 3)
    solids = [KINDS[kind](*numbers) for kind, *numbers in _parts()[category][str(instance)]]
    center, frame = np.stack([s.center for s in solids]), np.stack([s.frame for s in solids])
    center, frame = center * stretch, frame * stretch[:, None]
    far = reach(torch.tensor([s.kind for s in solids]), torch.from_numpy(frame)).numpy()
    least, most = (center - far).min(axis=0), (center + far).max(axis=0)
    shift = np.array([(least[0] + most[0]) / 2, (least[1] + most[1]) / 2, least[2]])
    sides = most - least
    scale = min(1.9 / max(sides[0], sides[1]), 1.5 / sides[2])
    parts = zip(solids, (center - shift) * scale, frame * scale, strict=True)
    return [replace(solid, center=middle, frame=axes) for solid, middle, axes in parts]


class Lamp(NamedTuple):
    """A lamp, and the light from everywhere."""

    azimuth: float  # of the direction to the lamp, in degrees; 0 is where the camera is
    height: float  # in degrees
    strength: float
    ambient: float  # strength of the light from everywhere


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
) -> UInt8[Tensor, "lamps size size"]:
    """One view of a body on the plane z = 0, once under each lamp; lamps stay with the camera's table, the body turns.

    The camera's elevation (between 0 and 90) and azimuth are in degrees; a pixel is the mean of 2 × 2 rays; `albedo` is
    the share of light that the body gives back, in [0, 1].
    """
    turn = math.radians(azimuth)
    # Unit vectors to the camera, to its right and up, in the body's own frame.
    eye, right = (
        _direction(math.radians(elevation), turn),
        torch.tensor([-math.sin(turn), math.cos(turn), 0.0]),
    )
    up = torch.linalg.cross(eye, right)
    side = 2 * size
    along = (torch.arange(side) + 0.5) / size - 1
    rows, columns = torch.meshgrid(-along * EXTENT, along * EXTENT, indexing="ij")
    target = torch.tensor([0.0, 0.0, HEIGHT])
    origins = columns.reshape(-1, 1) * right + rows.reshape(-1, 1) * up + target + FAR * eye
    distance, solid = body.first(origins, -eye)
    on_table = torch.isinf(distance)
    distance = torch.where(on_table, origins[:, 2] / eye[2], distance)
    points = origins - distance.unsqueeze(-1) * eye
    normals = torch.tensor([0.0, 0.0, 1.0]).repeat(len(points), 1)
    hit = (~on_table).nonzero().flatten()
    normals[hit] = body.normals(points[hit], solid[hit])
    surface = torch.where(on_table, TABLE, albedo)
    starts = points + SKIP * normals
    light = torch.stack([_lit(body, lamp, turn, starts, normals, on_table) for lamp in lamps])
    gray = (light * surface).reshape(len(lamps), size, 2, size, 2).mean(dim=(2, 4))
    return (gray.clamp(0, 1) * 255).round().to(torch.uint8)


def _direction(height: float, azimuth: float) -> Tensor:
    flat = math.cos(height)
    return torch.tensor([flat * math.cos(azimuth), flat * math.sin(azimuth), math.sin(height)])


def _lit(
    body: Body, lamp: Lamp, turn: float, starts: Tensor, normals: Tensor, on_table: Tensor
) -> Tensor:
    """Light that arrives at each point: Lambert's cosine of the lamp where nothing is before it, and of the sky."""
    to_lamp = _direction(math.radians(lamp.height), math.radians(lamp.azimuth) + turn)
    cosine = (normals @ to_lamp).clamp(min=0)
    cosine = torch.where(on_table, to_lamp[2], cosine)
    asked = (cosine > 0).nonzero().flatten()
    dark = body.covered(starts.index_select(0, asked), to_lamp, SKIP)
    cosine = cosine.index_fill(0, asked.masked_select(dark > 0), 0.0)
    sky = 0.6 + 0.4 * normals[:, 2]
    return lamp.ambient * sky + lamp.strength * cosine
