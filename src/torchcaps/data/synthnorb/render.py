"""Photographs of a body on a table: parallel projection, one lamp and the sky, shadows, four rays a pixel."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

from torchcaps.data.synthnorb.solids import Body

FAR = 10.0  # from the camera's plane to the middle of the scene
SKIP = 1e-3  # a shadow ray starts this far above its surface
TABLE = 0.62  # share of light that the table gives back
EXTENT = 1.15  # half the side of what a photograph shows
HEIGHT = 0.35  # of the point above the table that the camera looks at


class Lamp(NamedTuple):
    """A lamp, and the light from everywhere."""

    azimuth: float  # of the direction to the lamp, in degrees; 0 is where the camera is
    height: float  # in degrees
    strength: float
    ambient: float  # strength of the light from everywhere


# From the left, the right, behind, the front; strong and low, weak and high.
LAMPS = (
    Lamp(-60, 45, 0.75, 0.25), Lamp(60, 45, 0.75, 0.25), Lamp(150, 40, 0.85, 0.30), Lamp(10, 55, 0.60, 0.15),
    Lamp(-110, 28, 1.00, 0.20), Lamp(80, 75, 0.50, 0.45),
)  # fmt: skip


def photograph(
    body: Body, elevation: float, azimuth: float, lamps: Sequence[Lamp], *, size: int = 48, albedo: float = 0.85
) -> UInt8[Tensor, "lamps size size"]:
    """One view of a body on the plane z = 0, once under each lamp; lamps stay with the camera's table, the body turns.

    The camera's elevation (between 0 and 90) and azimuth are in degrees; a pixel is the mean of 2 × 2 rays; `albedo` is
    the share of light that the body gives back, in [0, 1].
    """
    turn = math.radians(azimuth)
    # Unit vectors to the camera, to its right and up, in the body's own frame.
    eye, right = _direction(math.radians(elevation), turn), torch.tensor([-math.sin(turn), math.cos(turn), 0.0])
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
    grey = (light * surface).reshape(len(lamps), size, 2, size, 2).mean(dim=(2, 4))
    return (grey.clamp(0, 1) * 255).round().to(torch.uint8)


def _direction(height: float, azimuth: float) -> Tensor:
    flat = math.cos(height)
    return torch.tensor([flat * math.cos(azimuth), flat * math.sin(azimuth), math.sin(height)])


def _lit(body: Body, lamp: Lamp, turn: float, starts: Tensor, normals: Tensor, on_table: Tensor) -> Tensor:
    """Light that arrives at each point: Lambert's cosine of the lamp where nothing is before it, and of the sky."""
    to_lamp = _direction(math.radians(lamp.height), math.radians(lamp.azimuth) + turn)
    cosine = (normals @ to_lamp).clamp(min=0)
    cosine = torch.where(on_table, to_lamp[2], cosine)
    asked = (cosine > 0).nonzero().flatten()
    dark = body.covered(starts.index_select(0, asked), to_lamp, SKIP)
    cosine = cosine.index_fill(0, asked.masked_select(dark > 0), 0.0)
    sky = 0.6 + 0.4 * normals[:, 2]
    return lamp.ambient * sky + lamp.strength * cosine
