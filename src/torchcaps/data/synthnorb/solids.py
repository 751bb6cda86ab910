"""The toys of synthNORB, the solids that they are made of, and photographs of them.

A solid is a unit solid (ball, cube of half side 1, truncated cone of half height 1) under an affine
map. The map takes rays to rays and keeps the order along them. A ray therefore meets a solid where
it meets the unit solid in the solid's own frame, which has a closed form for each kind.
"""

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor
from torch.nn.functional import normalize

BALL = 0
BLOCK = 1
CONE = 2

NUM_TOYS = 10  # of each category
JITTER = 0.06  # largest change of a proportion by the seed, as a fraction
TINY = 1e-9
CAMERA_DISTANCE = 10.0  # from the camera's plane to the point that it looks at
SHADOW_OFFSET = 1e-3  # a shadow ray starts this far above its surface
TABLE_ALBEDO = 0.62  # share of light that the table gives back
EXTENT = 1.15  # half the side of what a photograph shows
TARGET_HEIGHT = 0.35  # above the table, of the point that the camera looks at

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


def ball(center: Vector, radii: Vector | float, tilt: Vector = (0, 0, 0)) -> Solid:
    """An ellipsoid.

    Args:
        center: `[3]`.
        radii: along its axes, or one radius.
        tilt: its rotation about x, then y, then z, in degrees.
    """
    frame = rotation(tilt) * np.broadcast_to(radii, 3)
    return Solid(BALL, np.array(center, float), frame)


def block(center: Vector, half: Vector, tilt: Vector = (0, 0, 0)) -> Solid:
    """A box.

    Args:
        center: `[3]`.
        half: half of its sides.
        tilt: its rotation about x, then y, then z, in degrees.
    """
    frame = rotation(tilt) * np.asarray(half)
    return Solid(BLOCK, np.array(center, float), frame)


def rod(start: Vector, end: Vector, radius: float, end_radius: float | None = None) -> Solid:
    """A cylinder, or a truncated cone.

    Args:
        start: middle of its first lid.
        end: middle of its other lid.
        radius: at the start.
        end_radius: at the end, at most `radius`; by default the same.
    """
    foot = np.asarray(start, float)
    axis = (np.asarray(end, float) - foot) / 2
    along = axis / np.linalg.norm(axis)
    helper = [0.0, 0.0, 1.0] if abs(along[2]) < 0.9 else [1.0, 0.0, 0.0]
    side = np.cross(along, helper)
    side /= np.linalg.norm(side)
    up = np.cross(along, side)
    frame = np.stack([side * radius, up * radius, axis], axis=1)
    top = 1.0 if end_radius is None else end_radius / radius
    return Solid(CONE, foot + axis, frame, top)


def wing(center: Vector, half_span: float, chord: float, sweep: float) -> Solid:
    """A flat box along y, sheared back along x.

    Args:
        center: of the box, before it is moved back by half of the sweep.
        half_span: half its length along y.
        chord: half its length along x.
        sweep: shear toward -x per unit of y.
    """
    flat = block(center, (chord, half_span, 0.03))
    shear = np.eye(3)
    shear[0, 1] = -sweep
    shift = (abs(sweep) * half_span, 0, 0)
    return Solid(BLOCK, flat.center - shift, shear @ flat.frame)


def rotation(degrees: Vector) -> np.ndarray:
    """The matrix `[3, 3]` that turns about x, then y, then z."""
    from scipy.spatial.transform import Rotation

    matrix: np.ndarray = Rotation.from_euler("xyz", degrees, degrees=True).as_matrix()
    return matrix


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
        self.kinds = torch.empty(len(solids), dtype=torch.int64)
        self.center = torch.empty(len(solids), 3)
        self.inverse = torch.empty(len(solids), 3, 3)
        self.top = torch.empty(len(solids))
        for k, solid in enumerate(sorted(solids, key=attrgetter("kind"))):
            self.kinds[k] = solid.kind
            self.center[k] = torch.from_numpy(solid.center)
            self.inverse[k] = torch.from_numpy(np.linalg.inv(solid.frame))
            self.top[k] = solid.top

    def crossings(
        self, origins: Float[Tensor, "rays 3"], direction: Float[Tensor, " 3"]
    ) -> tuple[Float[Tensor, "solids rays"], Float[Tensor, "solids rays"]]:
        """Distances at which parallel rays enter and leave each solid.

        Args:
            origins: of the rays.
            direction: of all of them, a unit vector.

        Returns:
            Both distances. A ray that misses a solid enters it at infinity and leaves it at minus
            infinity.
        """
        # A ray parallel to a face divides by zero; one a hair off does not.
        along = self.inverse @ direction
        along = torch.where(along.abs() < TINY, TINY, along)
        rows = self.inverse.movedim(1, 0)
        frame_origin = -(self.inverse @ self.center.unsqueeze(-1)).movedim(1, 0)
        start = torch.baddbmm(frame_origin, rows, origins.T.expand(3, -1, -1))

        counts = self.kinds.bincount(minlength=len(INTERSECTIONS)).tolist()
        starts = start.split(counts, dim=1)
        alongs = along.T.unsqueeze(-1).split(counts, dim=1)
        tops = self.top.unsqueeze(-1).split(counts)
        distances = []
        for k, intersect in enumerate(INTERSECTIONS):
            enter, leave = intersect(starts[k], alongs[k], tops[k])
            distances.append(torch.stack([enter, leave]))
        enter, leave = torch.cat(distances, dim=1)
        is_hit = enter < leave
        enter = torch.where(is_hit, enter, torch.inf)
        leave = torch.where(is_hit, leave, -torch.inf)
        return enter, leave

    def first(
        self, origins: Float[Tensor, "rays 3"], direction: Float[Tensor, " 3"]
    ) -> tuple[Float[Tensor, " rays"], Int64[Tensor, " rays"]]:
        """Distance to the nearest solid that each ray enters, or infinity, and that solid, or 0."""
        enter, _ = self.crossings(origins, direction)
        distance, solid = enter.min(dim=0)
        return distance, solid

    def covered(
        self, origins: Float[Tensor, "rays 3"], direction: Float[Tensor, " 3"], skip: float
    ) -> Bool[Tensor, " rays"]:
        """Whether each ray enters something that ends more than `skip` away, which stops light."""
        enter, leave = self.crossings(origins, direction)
        return ((leave > skip) & (enter > -skip)).any(dim=0)

    def normals(
        self, points: Float[Tensor, "rays 3"], solid: Int64[Tensor, " rays"]
    ) -> Float[Tensor, "rays 3"]:
        """Outward unit normals at points on these solids."""
        inverse = self.inverse[solid]
        kind = self.kinds[solid].unsqueeze(-1)
        offset = points - self.center[solid]
        local = torch.einsum("pij,pj->pi", inverse, offset)

        # A point of the unit cube is on the face that it is nearest to.
        size = local.abs()
        is_face = size >= size.amax(dim=-1, keepdim=True)
        cube_normals = local.sign() * is_face
        cone_normals = _cone_normals(local, self.top[solid])
        normals = torch.where(kind == BLOCK, cube_normals, cone_normals)
        normals = torch.where(kind == BALL, local, normals)

        # Normals turn with the inverse's transpose.
        return normalize(torch.einsum("pij,pi->pj", inverse, normals), dim=-1)


def _intersect_ball(start: Tensor, along: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    """Where |start + t along|² < 1: both ends of the interval of t.

    Args:
        start: `[3, solids, rays]`, of the rays in the frames of the solids.
        along: `[3, solids, 1]`, their direction there.
    """
    # A quadratic inequality in t: a t² + 2 b t + c < 0.
    a = (along * along).sum(dim=0)
    b = (start * along).sum(dim=0)
    c = (start * start).sum(dim=0) - 1
    middle = -b / a
    discriminant = middle * middle - c / a  # below 0: the ray passes by
    discriminant = discriminant.clamp(min=-1)
    root = discriminant.clamp(min=0).sqrt()
    enter = middle - root
    leave = torch.where(discriminant > 0, middle + root, -torch.inf)
    return enter, leave


def _intersect_block(start: Tensor, along: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    """Where every coordinate of start + t along is between -1 and 1; arguments as of the ball."""
    middle = -start / along
    half = 1 / along.abs()
    enter = (middle - half).amax(dim=0)
    leave = (middle + half).amin(dim=0)
    return enter, leave


def _intersect_cone(start: Tensor, along: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """Between the two lids, the ray is inside where x² + y² < (radius at z)².

    This is a quadratic inequality in the distance, a t² + 2 b t + c < 0.

    Args:
        start: `[3, solids, rays]`, of the rays in the frames of the solids.
        along: `[3, solids, 1]`, their direction there.
        top: `[solids, 1]`, as of `Solid`.
    """
    x, y, z = start
    u, v, w = along
    middle = -z / w
    half = 1 / w.abs()
    enter = middle - half
    leave = middle + half

    # The radius is linear in the distance t: radius + slope t.
    taper = (top - 1) / 2
    radius = (1 + top) / 2 + taper * z
    slope = taper * w
    a = u * u + v * v
    a = a - slope * slope
    a = torch.where(a.abs() < TINY, TINY, a)
    b = x * u + y * v
    b = b - radius * slope
    c = x * x + y * y
    c = c - radius * radius
    discriminant = b * b - a * c
    is_real = discriminant > 0
    root = discriminant.clamp(min=0).sqrt()
    near = (-b - root) / a
    far = (-b + root) / a

    # A ray as steep as the cone or steeper (a < 0) is inside before one root or behind the other:
    # of the two nappes only one reaches between the lids.
    low = torch.minimum(near, far)
    high = torch.maximum(near, far)
    before = torch.where(is_real, low, leave)
    is_behind = (high < leave) & (before <= enter)
    steep_enter = torch.where(is_behind, torch.maximum(enter, high), enter)
    steep_leave = torch.where(is_behind, leave, torch.minimum(leave, before))

    slant_enter = torch.maximum(enter, near)
    slant_leave = torch.where(is_real, torch.minimum(leave, far), -torch.inf)

    is_steep = a < 0
    enter = torch.where(is_steep, steep_enter, slant_enter)
    leave = torch.where(is_steep, steep_leave, slant_leave)
    return enter, leave


INTERSECTIONS = (_intersect_ball, _intersect_block, _intersect_cone)  # by kind


def _cone_normals(local: Tensor, top: Tensor) -> Tensor:
    """Normals of unit cones at points `[points, 3]`: of the mantle or of a lid, as is nearer."""
    x, y, z = local.unbind(dim=-1)
    slope = (top - 1) / 2
    radius = (1 + top) / 2 + slope * z
    mantle = torch.stack([x, y, -radius * slope], dim=-1)
    zero = torch.zeros_like(x)
    lid = torch.stack([zero, zero, z.sign()], dim=-1)
    distance = local[:, :2].norm(dim=-1)
    to_mantle = distance - radius
    to_mantle = to_mantle.abs()
    to_lid = 1 - z.abs()
    to_lid = to_lid.abs()
    is_lid = to_lid < to_mantle
    return torch.where(is_lid.unsqueeze(-1), lid, mantle)


SHAPES: dict[str, Callable[..., Solid]] = {"ball": ball, "block": block, "rod": rod, "wing": wing}


@cache
def _read_toys() -> list[dict[str, list[list[Any]]]]:
    text = Path(__file__).with_name("toys.toml").read_text("utf-8")
    return list(tomllib.loads(text).values())


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
    low = np.full(3, np.inf)
    high = np.full(3, -np.inf)
    for shape, *numbers in _read_toys()[category][str(instance)]:
        solid = SHAPES[shape](*numbers)
        center = solid.center * stretch
        frame = solid.frame * stretch[:, None]
        solid = replace(solid, center=center, frame=frame)
        toy.append(solid)
        low = np.minimum(low, center - _reach(solid))
        high = np.maximum(high, center + _reach(solid))

    # The middle of the box around it goes over the origin, its lowest point to the table.
    shift = (low + high) / 2
    shift[2] = low[2]
    length, width, height = high - low
    scale = min(1.9 / max(length, width), 1.5 / height)
    scaled = []
    for solid in toy:
        center = (solid.center - shift) * scale
        scaled.append(replace(solid, center=center, frame=solid.frame * scale))
    return scaled


def _reach(solid: Solid) -> np.ndarray:
    """How far a solid reaches from its center along x, y and z; a cone counts as a cylinder."""
    if solid.kind == BALL:
        return np.sqrt((solid.frame**2).sum(axis=1))
    if solid.kind == BLOCK:
        return np.abs(solid.frame).sum(axis=1)
    x, y, z = solid.frame.T
    return np.sqrt(x**2 + y**2) + np.abs(z)


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
) -> UInt8[Tensor, "lamps size size"]:
    """One view of a body on the plane z = 0, once under each lamp.

    The lamps stay with the camera's table; the body turns. A pixel is the mean of 2 × 2 rays.

    Args:
        body: what stands on the table.
        elevation: of the camera, between 0 and 90 degrees.
        azimuth: of the camera, in degrees.
        lamps: one for each photograph.
        size: pixels of a side.
        albedo: share of light that the body gives back, in [0, 1].
    """
    # Unit vectors to the camera, to its right and up, in the body's own frame.
    turn = math.radians(azimuth)
    eye = _direction(math.radians(elevation), turn)
    right = torch.tensor([-math.sin(turn), math.cos(turn), 0.0])
    up = torch.linalg.cross(eye, right)

    # Rays start in a plane before the camera, 2 × 2 for a pixel.
    along = (torch.arange(2 * size) + 0.5) / size - 1
    along = along * EXTENT
    rows, columns = torch.meshgrid(-along, along, indexing="ij")
    origins = columns.reshape(-1, 1) * right + rows.reshape(-1, 1) * up
    target = torch.tensor([0.0, 0.0, TARGET_HEIGHT])
    origins = origins + target + CAMERA_DISTANCE * eye

    # What each ray meets first: the body, or else the table.
    distance, solid = body.first(origins, -eye)
    on_table = torch.isinf(distance)
    distance = torch.where(on_table, origins[:, 2] / eye[2], distance)
    points = origins - distance.unsqueeze(-1) * eye
    on_body = ~on_table
    normals = torch.tensor([0.0, 0.0, 1.0]).repeat(len(points), 1)
    normals[on_body] = body.normals(points[on_body], solid[on_body])
    surface_albedo = torch.where(on_table, TABLE_ALBEDO, albedo)

    starts = points + SHADOW_OFFSET * normals
    photographs = torch.empty(len(lamps), size, size, dtype=torch.uint8)
    for photo, lamp in zip(photographs, lamps, strict=True):
        light = _light(body, lamp, turn, starts, normals, on_table)
        gray = light * surface_albedo
        gray = gray.reshape(size, 2, size, 2).mean(dim=(1, 3))
        photo[:] = (gray.clamp(0, 1) * 255).round()
    return photographs


def _direction(height: float, azimuth: float) -> Tensor:
    """A unit vector by its angles in radians, `height` above the table."""
    flat = math.cos(height)
    x = flat * math.cos(azimuth)
    y = flat * math.sin(azimuth)
    return torch.tensor([x, y, math.sin(height)])


def _light(
    body: Body, lamp: Lamp, turn: float, starts: Tensor, normals: Tensor, on_table: Tensor
) -> Tensor:
    """Light that arrives at each point: of the lamp, by Lambert's cosine, and of the sky.

    Args:
        body: that may cast a shadow.
        lamp: the lamp.
        turn: of the body, in radians.
        starts: `[points, 3]`, of the rays to the lamp.
        normals: `[points, 3]`, of the surface at the points.
        on_table: `[points]`, whether they are on the table.
    """
    azimuth = math.radians(lamp.azimuth) + turn
    to_lamp = _direction(math.radians(lamp.height), azimuth)
    cosine = (normals @ to_lamp).clamp(min=0)
    cosine = torch.where(on_table, to_lamp[2], cosine)

    # What looks away from the lamp needs no ray to it.
    facing = (cosine > 0).nonzero().flatten()
    in_shadow = body.covered(starts[facing], to_lamp, SHADOW_OFFSET)
    cosine[facing[in_shadow]] = 0.0
    sky = 0.6 + 0.4 * normals[:, 2]
    return lamp.ambient * sky + lamp.strength * cosine
