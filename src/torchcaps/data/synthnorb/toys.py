"""Fifty toys in five categories, each put together from solids; instances differ in parts and proportions.

A toy looks along +x and stands on z = 0. Categories and their order are smallNORB's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchcaps.data.synthnorb.solids import Solid, ball, block, rod

INSTANCES = 10
JITTER = 0.06  # largest change of a proportion by the seed, as a fraction
SIDES = (-1, 1)

Toy = list[Solid]


def make_toy(category: int, instance: int, seed: int = 0) -> Toy:
    """The solids of a toy, scaled to a common size and centred over the origin.

    Args:
        category: 0 animal, 1 human, 2 airplane, 3 truck, 4 car.
        instance: 0..9, which toy of the category.
        seed: of small changes to its proportions.
    """
    stretch = 1 + JITTER * np.random.RandomState([seed, category, instance]).uniform(-1, 1, 3)
    solids = _MAKERS[category](instance)
    return _settled([Solid(s.kind, s.centre * stretch, s.frame * stretch[:, None], s.top) for s in solids])


def _settled(solids: Toy) -> Toy:
    """On the table, over the origin, with its longest side 1.9 and no higher than 1.5."""
    centre, reach = np.stack([s.centre for s in solids]), np.stack([_reach(s) for s in solids])
    least, most = (centre - reach).min(axis=0), (centre + reach).max(axis=0)
    shift = np.array([(least[0] + most[0]) / 2, (least[1] + most[1]) / 2, least[2]])
    sides = most - least
    scale = min(1.9 / max(sides[0], sides[1]), 1.5 / sides[2])
    return [Solid(s.kind, (s.centre - shift) * scale, s.frame * scale, s.top) for s in solids]


def _reach(solid: Solid) -> np.ndarray:
    """How far a solid reaches from its centre along each axis; a cone counts as a cylinder."""
    square, size = solid.frame**2, np.abs(solid.frame)
    ends = (np.sqrt(square.sum(axis=1)), size.sum(axis=1), np.sqrt(square[:, :2].sum(axis=1)) + size[:, 2])
    return ends[solid.kind]


def _off(point: np.ndarray, x: float, y: float, z: float) -> np.ndarray:
    return point + np.array([x, y, z])


# length, girth, leg, neck, lean of the neck (x per z), head, ears, tail, kind of body
_ANIMALS = (
    (0.9, 0.30, 0.55, 0.45, 0.8, 0.17, "ears", 0.5, ball),  # horse
    (0.7, 0.42, 0.30, 0.05, 2.0, 0.24, "ears", 0.1, ball),  # pig
    (0.7, 0.27, 0.80, 1.20, 0.35, 0.14, "horns", 0.4, ball),  # giraffe
    (1.0, 0.42, 0.50, 0.10, 2.0, 0.26, "horns", 0.5, block),  # bull
    (0.9, 0.50, 0.55, 0.05, 2.0, 0.32, "trunk", 0.3, ball),  # elephant
    (0.8, 0.24, 0.50, 0.30, 0.9, 0.15, "antlers", 0.1, ball),  # deer
    (0.7, 0.22, 0.35, 0.20, 0.9, 0.18, "ears", 0.6, block),  # dog
    (1.1, 0.40, 0.32, 0.05, 2.5, 0.25, "horn", 0.3, ball),  # rhinoceros
    (0.8, 0.32, 0.70, 0.60, 0.9, 0.15, "hump", 0.3, ball),  # camel
    (0.9, 0.30, 0.40, 0.12, 1.5, 0.32, "ears", 0.8, ball),  # lion
)


def _animal(instance: int) -> Toy:
    length, girth, leg, neck, lean, head, extra, tail, kind = _ANIMALS[instance]
    middle = leg + girth * 0.8
    toy = [kind((0, 0, middle), (length * 0.75, girth * 0.8, girth * 0.85))]
    for x, y in ((-0.55, -0.55), (-0.55, 0.55), (0.55, -0.55), (0.55, 0.55)):
        toy.append(rod((x * length, y * girth, middle), (x * length, y * girth, 0.0), girth * 0.28, girth * 0.2))
    root, back = (np.array([x, 0, middle + girth * 0.3]) for x in (length * 0.6, -length * 0.7))
    crown = _off(root, (neck + 0.1) * lean, 0, neck + 0.1)
    snout = _off(crown, head * 0.8, 0, -head * 0.2), _off(crown, head * 2.2, 0, -head * 0.6)
    toy += [
        rod(root, crown, head * 0.85, head * 0.6),
        ball(_off(crown, head * 0.4, 0, 0), (head * 1.1, head * 0.8, head * 0.9)),
        rod(*snout, head * 0.6, head * 0.4),
        rod(back, back + np.array([-0.35, 0, -0.6]) * tail, 0.07, 0.04),
    ]
    return toy + _head_dress(extra, crown, head, middle, girth)


def _head_dress(kind: str, crown: np.ndarray, head: float, middle: float, girth: float) -> Toy:
    if kind == "trunk":
        flaps = [ball(_off(crown, 0, y * head * 1.1, 0), (0.08, head * 0.8, head), (0, 0, -20 * y)) for y in SIDES]
        return [
            rod(_off(crown, head * 1.2, 0, 0), _off(crown, head * 1.7, 0, -head * 2.4), head * 0.4, head * 0.2),
            *flaps,
        ]
    if kind == "horn":
        return [rod(_off(crown, head * 1.9, 0, 0), _off(crown, head * 2.5, 0, head * 1.7), head * 0.35, 0.0)]
    if kind == "hump":
        return [ball((x, 0, middle + girth * 0.8), (0.22, girth * 0.5, 0.3)) for x in (-0.25, 0.3)]
    up = {"ears": (0.15, 0.6, 0.9), "horns": (0.1, 0.9, 1.5), "antlers": (0.0, 1.6, 3.0)}[kind]
    toy = []
    for side in SIDES:
        root = _off(crown, 0, side * head * 0.5, head * 0.5)
        tip = crown + head * np.array([up[0], side * up[1], up[2]])
        toy.append(rod(root, tip, head * 0.28, 0.0 if kind != "antlers" else head * 0.12))
        if kind == "antlers":
            toy.append(rod((root + tip) / 2, (root + tip) / 2 + head * np.array([1.2, side * 0.4, 0.9]), head * 0.16))
    return toy


# shoulder width, hip width, torso, legs, step, left arm (x, z of the hand), right arm, head dress, what the hand holds
_HUMANS = (
    (0.24, 0.17, 0.55, 0.70, 0.00, (0.0, -0.6), (0.0, -0.6), "none", "none"),
    (0.30, 0.20, 0.60, 0.65, 0.25, (0.4, -0.4), (-0.4, -0.4), "cap", "none"),
    (0.22, 0.34, 0.55, 0.60, 0.00, (0.1, -0.55), (0.1, -0.55), "bun", "skirt"),
    (0.32, 0.24, 0.60, 0.60, 0.10, (0.5, 0.1), (0.2, 0.5), "hat", "stick"),
    (0.28, 0.22, 0.50, 0.60, 0.15, (0.55, 0.0), (0.55, 0.0), "cap", "rod"),
    (0.26, 0.20, 0.60, 0.75, 0.35, (0.5, 0.1), (-0.5, -0.2), "none", "none"),
    (0.34, 0.26, 0.60, 0.60, 0.00, (0.0, 0.6), (0.0, 0.6), "none", "none"),
    (0.30, 0.22, 0.55, 0.62, 0.00, (0.1, -0.55), (0.3, 0.0), "hat", "stick"),
    (0.24, 0.38, 0.55, 0.55, 0.00, (0.0, -0.5), (0.1, 0.55), "bun", "skirt"),
    (0.28, 0.20, 0.55, 0.70, 0.20, (0.3, 0.2), (0.1, -0.6), "none", "shield"),
)


def _human(instance: int) -> Toy:
    shoulder, hip, torso, legs, step, left, right, dress, held = _HUMANS[instance]
    top = legs + torso
    toy = [
        rod((0, 0, legs - 0.05), (0, 0, legs + 0.2), hip * 0.9),
        block((0, 0, legs + torso * 0.6), (0.13, shoulder * 0.85, torso * 0.42)),
        rod((0, 0, top), (0, 0, top + 0.15), 0.07),
        ball((0.02, 0, top + 0.24), (0.16, 0.14, 0.18)),
    ]
    for side, (reach, rise) in ((1, left), (-1, right)):
        joint = np.array([0, side * (shoulder + 0.05), top - 0.06])
        hand = _off(joint, reach, side * (0.28 if rise > 0.4 else 0.12), rise)
        toy += [
            rod((0, side * hip * 0.55, legs), (side * step, side * hip * 0.7, 0.05), 0.11, 0.08),
            block((side * step + 0.07, side * hip * 0.7, 0.04), (0.14, 0.07, 0.04)),
            rod(joint, hand, 0.085, 0.06),
        ]
        if side == -1:
            toy += _held(held, hand, legs)
    return toy + _hat(dress, top + 0.3)


def _hat(kind: str, z: float) -> Toy:
    if kind == "hat":
        return [rod((0, 0, z), (0, 0, z + 0.03), 0.3), rod((0, 0, z), (0, 0, z + 0.2), 0.16, 0.12)]
    if kind == "cap":
        return [ball((0, 0, z + 0.02), (0.18, 0.16, 0.12)), block((0.18, 0, z + 0.02), (0.12, 0.12, 0.02))]
    return [ball((-0.08, 0, z + 0.12), 0.1)] if kind == "bun" else []


def _held(kind: str, hand: np.ndarray, legs: float) -> Toy:
    if kind == "stick":
        return [rod((hand[0], hand[1], 0.0), _off(hand, 0, 0, 0.45), 0.04)]
    if kind == "rod":
        return [rod(_off(hand, -0.35, 0.2, -0.1), _off(hand, 0.45, 0.0, 0.15), 0.05)]
    if kind == "shield":
        return [rod(_off(hand, 0.06, 0, 0.15), _off(hand, 0.12, 0, 0.15), 0.3)]
    return [rod((0, 0, legs * 0.35), (0, 0, legs + 0.15), 0.42, 0.18)] if kind == "skirt" else []


# length, girth, span, sweep, chord, height of the wing, tail height, engines, nose, second wing
_PLANES = (
    (1.0, 0.15, 1.0, 0.10, 0.24, -0.05, 0.40, 0, "propeller", False),  # sports plane
    (1.1, 0.16, 1.1, 0.45, 0.24, -0.06, 0.45, 2, "round", False),  # airliner
    (0.8, 0.14, 0.9, 0.00, 0.26, -0.12, 0.32, 0, "propeller", True),  # biplane
    (1.1, 0.12, 0.7, 0.75, 0.38, 0.00, 0.40, 0, "sharp", False),  # fighter
    (1.0, 0.20, 1.2, 0.05, 0.28, 0.17, 0.50, 4, "round", False),  # freighter
    (1.0, 0.13, 1.4, 0.05, 0.14, 0.05, 0.30, 0, "round", False),  # glider
    (0.9, 0.18, 1.0, 0.30, 0.30, -0.10, 0.42, 2, "round", False),
    (1.2, 0.10, 0.8, 0.60, 0.45, 0.00, 0.35, 2, "sharp", False),
    (0.8, 0.18, 1.0, 0.00, 0.24, 0.18, 0.36, 0, "propeller", False),  # high wing
    (0.9, 0.16, 1.1, 0.15, 0.26, -0.06, 0.45, 2, "propeller", False),
)


def _plane(instance: int) -> Toy:
    length, girth, span, sweep, chord, wing, fin, engines, nose, second = _PLANES[instance]
    z = girth + 0.22
    toy = [
        ball((0, 0, z), (length, girth, girth)),
        ball((length * 0.35, 0, z + girth * 0.7), (length * 0.25, girth * 0.6, girth * 0.7)),
        block((-length * 0.85, 0, z + fin * 0.55), (0.13, 0.025, fin * 0.5), (0, -15, 0)),
        rod((length * 0.4, 0, z), (length * 0.4, 0, 0), 0.05),
    ]
    toy += [_wing((0.05, side * span / 2, z + wing), span / 2, chord, sweep * side) for side in SIDES]
    if second:
        toy += [_wing((0.05, side * span / 2, z + 0.4), span / 2, chord, 0) for side in SIDES]
        toy += [rod((0.05, side * span * 0.6, z + wing), (0.05, side * span * 0.6, z + 0.4), 0.03) for side in SIDES]
    toy += [_wing((-length * 0.85, side * 0.2, z + 0.05), 0.22, 0.12, sweep * side * 0.8) for side in SIDES]
    for i in range(engines):
        side, place = 1 - 2 * (i % 2), span * (0.38 + 0.28 * (i // 2))
        x, low = 0.12 - sweep * place * 0.7, z + wing - (0.1 if wing < 0.1 else 0.08)
        toy.append(rod((x - 0.15, side * place, low), (x + 0.2, side * place, low), 0.085))
    toy += [rod((-0.1, side * 0.22, z), (-0.1, side * 0.26, 0), 0.05) for side in SIDES]
    if nose == "propeller":
        toy.append(block((length * 1.02, 0, z), (0.02, 0.06, 0.34), (35, 0, 0)))
        toy.append(rod((length * 0.75, 0, z), (length * 1.08, 0, z), girth * 0.7, girth * 0.3))
    if nose == "sharp":
        toy.append(rod((length * 0.6, 0, z), (length * 1.35, 0, z), girth * 0.75, 0.0))
    return toy


def _wing(centre: tuple[float, float, float], half: float, chord: float, sweep: float) -> Solid:
    """A flat block sheared back along x by `sweep` per unit of y."""
    flat = block(centre, (chord, half, 0.03))
    shear = np.array([[1, -sweep, 0], [0, 1, 0], [0, 0, 1.0]])
    return Solid(flat.kind, flat.centre - (abs(sweep) * half, 0, 0), shear @ flat.frame)


# length, cab length, cab height, what it carries, its height, axles behind, hood
_TRUCKS = (
    (1.00, 0.24, 0.36, "box", 0.48, 1, False),
    (1.10, 0.22, 0.40, "tank", 0.30, 2, False),
    (1.00, 0.24, 0.36, "flat", 0.06, 1, True),
    (0.95, 0.26, 0.36, "dump", 0.30, 2, False),
    (1.20, 0.22, 0.42, "box", 0.56, 2, True),
    (0.90, 0.24, 0.34, "mixer", 0.34, 2, False),
    (1.00, 0.24, 0.38, "logs", 0.20, 2, True),
    (1.05, 0.22, 0.36, "ladder", 0.28, 1, False),
    (1.15, 0.24, 0.44, "tank", 0.36, 2, True),
    (0.95, 0.28, 0.40, "dump", 0.38, 1, True),
)


def _truck(instance: int) -> Toy:
    length, cab, high, load, rise, axles, hood = _TRUCKS[instance]
    floor, wide = 0.24, 0.32
    front = length - cab - (0.22 if hood else 0.0)
    toy = [
        block((0, 0, floor - 0.02), (length * 0.97, wide * 0.6, 0.06)),
        block((front, 0, floor + high), (cab, wide * 0.95, high)),
    ]
    if hood:
        toy.append(block((length - 0.16, 0, floor + 0.2), (0.18, wide * 0.75, 0.2)))
    for x in (front + 0.05, *(-length * 0.7 + 0.38 * i for i in range(axles))):
        toy += _wheels(x, wide * 0.9, 0.19)
    rear, gap = -length, front - cab - 0.06
    return toy + _load(load, (rear + gap) / 2, (gap - rear) / 2, wide, floor + 0.04, rise)


def _load(kind: str, x: float, half: float, wide: float, z: float, rise: float) -> Toy:
    if kind == "logs":
        rows = ((-0.2, 0.12), (0.2, 0.12), (0.0, 0.42))
        return [rod((x - half, y, z + up), (x + half, y, z + up), 0.19) for y, up in rows]
    loads = {
        "box": lambda: [block((x, 0, z + rise), (half, wide * 1.1, rise))],
        "tank": lambda: [
            rod((x - half, 0, z + rise), (x + half, 0, z + rise), rise),
            rod((x, 0, z), (x, 0, z + 2.2 * rise), 0.1),
        ],
        "flat": lambda: [
            block((x, 0, z + 0.03), (half, wide * 1.1, 0.04)),
            block((x + half, 0, z + 0.15), (0.03, wide * 1.1, 0.15)),
        ],
        "dump": lambda: [
            block((x - 0.03, 0, z + rise), (half, wide * 1.05, rise * 0.6), (0, 14, 0)),
            block((x + half, 0, z + rise * 1.9), (0.15, wide, 0.04)),
        ],
        "mixer": lambda: [
            rod((x + half * 0.2, 0, z + rise), (x - half, 0, z + rise * 1.7), rise * 1.1, rise * 0.5),
            rod((x + half * 0.2, 0, z + rise), (x + half, 0, z + rise * 0.8), rise * 1.1, rise * 0.6),
        ],
        "ladder": lambda: [
            block((x, 0, z + rise * 0.7), (half, wide, rise * 0.7)),
            rod((x - half * 1.1, 0.1, z + rise * 1.6), (x + half * 1.6, 0.1, z + rise * 2.3), 0.05),
            rod((x - half * 1.1, -0.1, z + rise * 1.6), (x + half * 1.6, -0.1, z + rise * 2.3), 0.05),
        ],
    }
    return loads[kind]()


# length, width, body height, cabin length, its place, cabin height, kind of cabin, extra
_CARS = (
    (0.95, 0.42, 0.15, 0.45, -0.10, 0.17, "block", "none"),  # saloon
    (0.80, 0.42, 0.15, 0.62, -0.02, 0.36, "ball", "none"),  # beetle
    (1.00, 0.44, 0.12, 0.30, -0.15, 0.12, "ball", "spoiler"),  # sports car
    (0.90, 0.42, 0.15, 0.62, -0.25, 0.18, "block", "rack"),  # estate
    (0.95, 0.42, 0.14, 0.00, -0.10, 0.10, "open", "none"),  # open car
    (0.75, 0.42, 0.16, 0.48, -0.18, 0.20, "block", "none"),  # hatchback
    (1.00, 0.20, 0.12, 0.20, -0.20, 0.12, "ball", "formula"),
    (0.95, 0.44, 0.14, 0.50, -0.12, 0.22, "ball", "none"),
    (0.85, 0.42, 0.20, 0.40, -0.22, 0.18, "block", "spare"),  # jeep
    (1.05, 0.44, 0.13, 0.40, -0.10, 0.15, "block", "fins"),
)


def _car(instance: int) -> Toy:
    length, wide, high, cabin, place, rise, kind, extra = _CARS[instance]
    z = 0.16 + high
    top, formula = z + high * 0.9, extra == "formula"
    toy = [block((0, 0, z), (length, wide * 0.95, high * 0.7)), ball((0, 0, z), (length * 1.06, wide, high * 1.3))]
    if kind == "block":
        toy.append(block((place, 0, top + rise * 0.8), (cabin * 0.75, wide * 0.78, rise)))
        for x, tilt in ((place + cabin * 0.72, -38), (place - cabin * 0.72, 38)):
            toy.append(block((x, 0, top + rise * 0.45), (0.05, wide * 0.76, rise * 1.15), (0, tilt, 0)))
    elif kind == "ball":
        toy.append(ball((place, 0, top), (cabin, wide * 0.85, rise * 1.5)))
    else:
        toy.append(block((0.25, 0, top + 0.08), (0.02, wide * 0.8, 0.14), (0, -25, 0)))
        toy += [block((-0.15 - x, 0, top + 0.04), (0.06, wide * 0.6, 0.12)) for x in (0.0, 0.35)]
    for x in (-0.58, 0.6):
        toy += _wheels(x * length, 0.42 if formula else wide * 0.95, 0.22 if formula else 0.19)
    return toy + _extra(extra, length, wide, top, rise, place)


def _extra(kind: str, length: float, wide: float, top: float, rise: float, place: float) -> Toy:
    if kind == "spoiler":
        posts = [block((-length * 0.92, side * 0.3, top + 0.1), (0.04, 0.03, 0.14)) for side in SIDES]
        return [block((-length * 0.95, 0, top + 0.22), (0.12, wide, 0.025)), *posts]
    if kind == "rack":
        return [rod((place - 0.4, y, top + rise * 2), (place + 0.4, y, top + rise * 2), 0.04) for y in (-0.2, 0.2)]
    if kind == "formula":
        return [
            block((-length * 0.95, 0, top + 0.2), (0.12, 0.42, 0.03)),
            block((length * 1.0, 0, 0.14), (0.12, 0.45, 0.03)),
            block((-0.2, 0, 0.22), (0.4, 0.34, 0.1)),
            block((-length * 0.95, 0, top), (0.04, 0.04, 0.2)),
        ]
    if kind == "spare":
        return [rod((-length * 1.0, 0, top), (-length * 1.12, 0, top), 0.2)]
    fin = (0.25, 0.03, 0.14), (0, 18, 0)
    return [block((-length * 0.8, y * wide * 0.85, top + 0.06), *fin) for y in SIDES] if kind == "fins" else []


def _wheels(x: float, y: float, radius: float) -> Toy:
    return [rod((x, side * y - 0.06, radius), (x, side * y + 0.06, radius), radius) for side in SIDES]


_MAKERS: tuple[Callable[[int], Toy], ...] = (_animal, _human, _plane, _truck, _car)
