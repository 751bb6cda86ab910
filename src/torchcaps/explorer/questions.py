"""What a page may ask of its sessions: a checked request in, numbers and pictures ready for JSON out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from torchcaps.explorer.session import MOST_DECODED, MOST_SWEPT, Look, Routing, Session, laid_over
from torchcaps.explorer.transform import LIMITS, move
from torchcaps.explorer.wire import (
    Body,
    integer,
    labels,
    motion,
    number,
    numbers,
    pixels,
    plain,
    poses,
    routing,
    text_of,
)

MOST_TEXT = 4096  # bytes of a JSON body beside its pictures and poses
MOST_EXAMPLES = 60  # of one answer

Sessions = Sequence[Session]


def largest(sessions: Sessions) -> int:
    """Bytes of the largest JSON body: two pictures of the first model, and as many poses as are decoded at once."""
    pictures = 2 * (4 * (math.prod(sessions[0].shape) + 3) // 3)
    return MOST_TEXT + pictures + 26 * MOST_DECODED * max(session.pose_dim for session in sessions)


def picture(sessions: Sessions, file: bytes) -> dict[str, Any]:
    """An image file as pixels for the page."""
    return {"image": text_of(sessions[0].picture(file))}


def examples(sessions: Sessions, body: Body) -> dict[str, Any]:
    """Some of the first model's examples: by class, or one after another; or those named."""
    session = sessions[0]
    if "index" in body:
        chosen = [integer(body, "index", 0, 2**31)]
    else:
        count, start = integer(body, "count", 1, MOST_EXAMPLES, 20), integer(body, "start", 0, 2**31, 0)
        chosen = session.labelled(integer(body, "label", 0, 2**31))[start : start + count].tolist()
    found = [(index, *session.example(index)) for index in chosen]
    return {"examples": [{"index": n, "labels": labels, "image": text_of(image)} for n, image, labels in found]}


def looks(sessions: Sessions, bodies: Sequence[Body]) -> list[dict[str, Any]]:
    """Activations, poses and reconstructions of pictures, turned and moved first where that is asked for.

    Requests about one model, with one kind of routing, are one pass of it.
    """
    alike: dict[tuple[int, Routing], list[int]] = {}
    for k, body in enumerate(bodies):
        alike.setdefault((_model(sessions, body), routing(body)), []).append(k)
    answers: dict[int, dict[str, Any]] = {}
    for (model, kind), places in alike.items():
        images = [_moved(sessions, bodies[k]) for k in places]
        found = sessions[model].looks(images, [labels(bodies[k], "classes") for k in places], kind)
        for k, image, one in zip(places, images, found, strict=True):
            answers[k] = _looked(one) | {"image": text_of(image)}
    return [answers[k] for k in range(len(bodies))]


def decode(sessions: Sessions, body: Body) -> dict[str, Any]:
    """What the decoder draws of poses of one class."""
    session = _session(sessions, body)
    drawn = session.decode(poses(body, session.pose_dim), integer(body, "label", 0, len(session.classes) - 1))
    return {"drawn": [text_of(image) for image in drawn]}


def steps(sessions: Sessions, body: Body) -> dict[str, Any]:
    """Routing step by step."""
    session = _session(sessions, body)
    label = integer(body, "label", 0, len(session.classes) - 1)
    found = session.routing(_image(sessions, body), label, routing(body))
    shown = [
        {name: value if isinstance(value, float) else plain(value) for name, value in step._asdict().items()}
        for step in found.steps
    ]
    sight = None if found.sight is None else found.sight._asdict()
    return {"layer": found.layer, "children": found.children, "steps": shown, "field": sight}


def sweep(sessions: Sessions, body: Body) -> dict[str, Any]:
    """Activations and pose while the picture is turned, resized or moved."""
    session = _session(sessions, body)
    values = numbers(body.get("values"), "values", MOST_SWEPT, max(high for _, high in LIMITS.values()))
    label = integer(body, "label", 0, len(session.classes) - 1)
    found = session.sweep(_image(sessions, body), motion(body), values, label, routing(body))
    pose = None if found.pose is None else plain(found.pose)
    return {"values": plain(found.values), "activation": plain(found.activation), "pose": pose}


def overlap(sessions: Sessions, body: Body) -> dict[str, Any]:
    """Two pictures as one, and what is drawn of two capsules."""
    session = _session(sessions, body)
    first, second = _image(sessions, body), _image(sessions, body, "second")
    limit = float(max(session.shape[1:]))
    image = laid_over(first, second, number(body, "right", -limit, limit), number(body, "down", -limit, limit))
    found = session.look(image, labels(body, "classes"), routing(body), count=2)
    return _looked(found) | {"image": text_of(image)}


ALONE: dict[str, Callable[[Sessions, Body], dict[str, Any]]] = {
    "examples": examples, "decode": decode, "routing": steps, "sweep": sweep, "overlap": overlap,
}  # fmt: skip
TOGETHER: dict[str, Callable[[Sessions, Sequence[Body]], list[dict[str, Any]]]] = {"look": looks}


def _model(sessions: Sessions, body: Body) -> int:
    return integer(body, "model", 0, len(sessions) - 1, 0)


def _session(sessions: Sessions, body: Body) -> Session:
    return sessions[_model(sessions, body)]


def _image(sessions: Sessions, body: Body, name: str = "image") -> Tensor:
    """A picture of a request, as the model that is asked takes it."""
    return _session(sessions, body).fitted(pixels(body, name, sessions[0].shape))


def _moved(sessions: Sessions, body: Body) -> Tensor:
    image = _image(sessions, body)
    return move(image, motion(body)) if "motion" in body else image


def _looked(found: Look) -> dict[str, Any]:
    return {
        "activation": plain(found.activation),
        "pose": None if found.pose is None else plain(found.pose),
        "drawn": None if found.reconstructions is None else [text_of(image) for image in found.reconstructions],
        "shown": found.shown,
    }
