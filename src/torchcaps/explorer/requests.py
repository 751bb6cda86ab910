"""What a page may request: a request in, checked value by value; numbers and pictures ready for JSON out.

Pictures are base64 of their bytes, row by row, the channels of a pixel together. What does not fit raises ValueError,
in one sentence.
"""

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.errors import ArgumentError
from torchcaps.explorer.session import (
    MOST_DECODED,
    MOST_SWEPT,
    Look,
    Motion,
    Routing,
    Session,
    move,
    overlay,
)

MOST_TEXT = 4096  # bytes of a JSON body beside its pictures and poses
MOST_EXAMPLES = 60  # of one answer
LARGEST = 1e4  # of a number in a pose

Body = Mapping[str, Any]
Sessions = Sequence[Session]
Answer = dict[str, Any]


def parsed(body: bytes) -> Body:
    """A JSON object without NaN or infinity."""

    def constant(name: str) -> float:
        raise json.JSONDecodeError(f"{name} is no number of it", "", 0)

    try:
        found = json.loads(body.decode(), parse_constant=constant)
    except json.JSONDecodeError as error:
        place = f", at character {error.pos}" if error.doc else ""
        raise ValueError(f"the body is no JSON ({error.msg[:60]}{place})") from None
    except (ValueError, RecursionError):
        needed = "UTF-8, numbers of some digits, lists not too deep"
        raise ValueError(f"the body is no JSON that can be read: {needed}") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, got {type(found).__name__}")
    return found


def encoded(image: Tensor) -> str:
    """A picture for an answer; floats in [0, 1] are rounded to bytes."""
    if image.dtype != torch.uint8:
        image = _finite(image).mul(255).round().clamp(0, 255).to(torch.uint8)
    return base64.b64encode(image.permute(1, 2, 0).contiguous().numpy().tobytes()).decode()


def largest(sessions: Sessions) -> int:
    """Bytes of the largest JSON body: two pictures of the first model, and as many poses as are decoded at once."""
    pictures = 2 * (4 * (math.prod(sessions[0].shape) + 3) // 3)
    return (
        MOST_TEXT + pictures + 26 * MOST_DECODED * max(session.pose_dim + 1 for session in sessions)
    )


def _examples(sessions: Sessions, body: Body) -> Answer:
    if "index" in body:
        chosen = [_integer(body, "index")]
    else:
        count, start = (
            _integer(body, "count", 1, MOST_EXAMPLES, 20),
            _integer(body, "start", default=0),
        )
        chosen = sessions[0].labeled(_integer(body, "label"))[start : start + count].tolist()
    found = [(index, *sessions[0].example(index)) for index in chosen]
    return {
        "examples": [
            {"index": n, "labels": labels, "image": encoded(image)} for n, image, labels in found
        ]
    }


def _looks(sessions: Sessions, bodies: Sequence[Body]) -> list[Answer]:
    """Activations, poses and reconstructions of pictures, turned and moved first where that is asked for.

    Requests about one model, with one kind of routing, are one pass of it.
    """
    alike: dict[tuple[int, Routing], list[int]] = {}
    for k, body in enumerate(bodies):
        alike.setdefault((_model(sessions, body), _routing(body)), []).append(k)
    answers: dict[int, Answer] = {}
    for (model, kind), places in alike.items():
        images = [_moved(sessions, bodies[k]) for k in places]
        found = sessions[model].looks(images, [_capsules(bodies[k]) for k in places], kind)
        answers |= {
            k: _looked(one, image) for k, one, image in zip(places, found, images, strict=True)
        }
    return [answers[k] for k in range(len(bodies))]


def _decode(sessions: Sessions, body: Body) -> Answer:
    session, label = _session(sessions, body), _label(sessions, body)
    rows = _listed(body, "poses", 1, MOST_DECODED, "poses")
    dim, activations = session.pose_dim, None
    poses = torch.tensor([_numbers({"poses": row}, "poses", dim, dim, LARGEST) for row in rows])
    if "activations" in body:
        activations = torch.tensor(_numbers(body, "activations", len(poses), len(poses), LARGEST))
    return {"drawn": [encoded(image) for image in session.decode(poses, label, activations)]}


def _steps(sessions: Sessions, body: Body) -> Answer:
    image, label = _image(sessions, body), _label(sessions, body)
    found = _session(sessions, body).routing(image, label, _routing(body))
    shown = [
        {
            name: _plain(value) if isinstance(value, Tensor) else value
            for name, value in step._asdict().items()
        }
        for step in found.steps
    ]
    sight = None if found.sight is None else found.sight._asdict()
    return {"layer": found.layer, "children": found.children, "steps": shown, "sight": sight}


def _sweep(sessions: Sessions, body: Body) -> Answer:
    values = _numbers(
        body, "values", 1, MOST_SWEPT, max(high for _, high in Motion.LIMITS.values())
    )
    image, label = _image(sessions, body), _label(sessions, body)
    found = _session(sessions, body).sweep(image, _motion(body), values, label, _routing(body))
    return {"values": values, "activation": _plain(found.activation), "pose": _plain(found.pose)}


def _overlap(sessions: Sessions, body: Body) -> Answer:
    session = _session(sessions, body)
    first, second = _image(sessions, body), _image(sessions, body, "second")
    limit = float(max(session.shape[1:]))
    image = overlay(
        first, second, *(_number(body, name, -limit, limit) for name in ("right", "down"))
    )
    return _looked(session.look(image, _capsules(body), _routing(body), count=2), image)


SINGLE: dict[str, Callable[[Sessions, Any], Any]] = {
    "examples": _examples,
    "decode": _decode,
    "routing": _steps,
    "sweep": _sweep,
    "overlap": _overlap,
}
BATCHED: dict[str, Callable[[Sessions, Any], Any]] = {"look": _looks}  # of several bodies at once


def _model(sessions: Sessions, body: Body) -> int:
    return _integer(body, "model", 0, len(sessions) - 1, 0)


def _session(sessions: Sessions, body: Body) -> Session:
    return sessions[_model(sessions, body)]


def _label(sessions: Sessions, body: Body) -> int:
    return _integer(body, "label", 0, len(_session(sessions, body).names) - 1)


def _image(sessions: Sessions, body: Body, name: str = "image") -> Tensor:
    channels, height, width = sessions[0].shape
    try:
        raw = base64.b64decode(body[name], validate=True)
    except (KeyError, TypeError, ValueError):
        raise ArgumentError(name, "expected base64") from None
    if len(raw) != channels * height * width:
        raise ArgumentError(name, f"expected {channels * height * width} bytes, got {len(raw)}")
    array = np.frombuffer(raw, dtype=np.uint8).reshape(height, width, channels)
    return _session(sessions, body).fitted(torch.from_numpy(array.transpose(2, 0, 1).copy()))


def _moved(sessions: Sessions, body: Body) -> Tensor:
    image = _image(sessions, body)
    return move(image, _motion(body)) if "motion" in body else image


def _looked(found: Look, image: Tensor) -> Answer:
    drawn = (
        None if found.reconstructions is None else [encoded(one) for one in found.reconstructions]
    )
    answer = {"activation": _plain(found.activation), "pose": _plain(found.pose), "drawn": drawn}
    return answer | {"shown": found.shown, "image": encoded(image)}


def _integer(
    body: Body, name: str, low: int = 0, high: int = 2**31, default: int | None = None
) -> int:
    value = body.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ArgumentError(name, f"expected a whole number from {low} to {high}")
    return value


def _number(body: Body, name: str, low: float, high: float, default: float = 0.0) -> float:
    value = body.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise ArgumentError(name, f"expected a number from {low:g} to {high:g}")
    return float(value)


def _listed(body: Body, name: str, least: int, most: int, what: str) -> list[Any]:
    """A list of so many values; it may be left out where it may be empty."""
    value = body.get(name, [])
    if not isinstance(value, list) or not least <= len(value) <= most:
        count = f"at most {most}" if least == 0 else f"{least} to {most}" if least < most else most
        raise ArgumentError(name, f"expected a list of {count} {what}")
    return value


def _numbers(body: Body, name: str, least: int, most: int, largest: float) -> list[float]:
    return [
        _number({name: item}, name, -largest, largest)
        for item in _listed(body, name, least, most, "numbers")
    ]


def _capsules(body: Body) -> list[int]:
    return [
        _integer({"classes": item}, "classes")
        for item in _listed(body, "classes", 0, MOST_DECODED, "classes")
    ]


def _routing(body: Body) -> Routing:
    value = body.get("uniform", False)
    if not isinstance(value, bool):
        raise ArgumentError("uniform", "expected true or false")
    return "uniform" if value else "trained"


def _motion(body: Body) -> Motion:
    value = body.get("motion", {})
    if not isinstance(value, dict):
        raise ArgumentError("motion", "expected an object")
    changing = value.get("changing", Motion.changing)
    if changing not in [*Motion.LIMITS]:  # a list: not every value has a hash
        raise ArgumentError("changing", f"expected one of {', '.join(Motion.LIMITS)}")
    amounts = {
        name: _number(value, name, *bounds, getattr(Motion, name))
        for name, bounds in Motion.LIMITS.items()
    }
    return Motion(**amounts, changing=changing)


def _plain(values: Tensor | None) -> Any:
    """Nested lists of numbers with five digits, as JSON can hold them."""
    return None if values is None else np.round(_finite(values).double().cpu().numpy(), 5).tolist()


def _finite(values: Tensor) -> Tensor:
    if not torch.isfinite(values).all():
        raise ValueError("this model gives values that are not finite; its training failed")
    return values
