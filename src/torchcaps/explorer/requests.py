"""What a page may request: a checked request in, numbers and pictures ready for JSON out."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchcaps.explorer import fields
from torchcaps.explorer.fields import Body, encoded, integer, plain
from torchcaps.explorer.session import MOST_DECODED, MOST_SWEPT, Look, Routing, Session, laid_over
from torchcaps.explorer.transform import LIMITS, move

MOST_TEXT = 4096  # bytes of a JSON body beside its pictures and poses
MOST_EXAMPLES = 60  # of one answer

Sessions = Sequence[Session]
Answer = dict[str, Any]


def largest(sessions: Sessions) -> int:
    """Bytes of the largest JSON body: two pictures of the first model, and as many poses as are decoded at once."""
    pictures = 2 * (4 * (math.prod(sessions[0].shape) + 3) // 3)
    return MOST_TEXT + pictures + 26 * MOST_DECODED * max(session.pose_dim + 1 for session in sessions)


def examples(sessions: Sessions, body: Body) -> Answer:
    """Some of the first model's examples: by class, one after another; or the one named."""
    session = sessions[0]
    if "index" in body:
        chosen = [integer(body, "index")]
    else:
        count, start = integer(body, "count", 1, MOST_EXAMPLES, 20), integer(body, "start", default=0)
        chosen = session.labelled(integer(body, "label"))[start : start + count].tolist()
    found = [(index, *session.example(index)) for index in chosen]
    return {"examples": [{"index": n, "labels": labels, "image": encoded(image)} for n, image, labels in found]}


def looks(sessions: Sessions, bodies: Sequence[Body]) -> list[Answer]:
    """Activations, poses and reconstructions of pictures, turned and moved first where that is asked for.

    Requests about one model, with one kind of routing, are one pass of it.
    """
    alike: dict[tuple[int, Routing], list[int]] = {}
    for k, body in enumerate(bodies):
        alike.setdefault((_model(sessions, body), fields.routing(body)), []).append(k)
    answers: dict[int, Answer] = {}
    for (model, kind), places in alike.items():
        images = [_moved(sessions, bodies[k]) for k in places]
        found = sessions[model].looks(images, [fields.capsules(bodies[k]) for k in places], kind)
        answers |= {k: _looked(one, image) for k, one, image in zip(places, found, images, strict=True)}
    return [answers[k] for k in range(len(bodies))]


def decode(sessions: Sessions, body: Body) -> Answer:
    """What the decoder draws of poses of one capsule."""
    session, label = _session(sessions, body), _label(sessions, body)
    poses, activations = fields.poses(body, session.pose_dim), None
    if "activations" in body:
        activations = torch.tensor(fields.numbers(body, "activations", len(poses), len(poses), fields.LARGEST))
    return {"drawn": [encoded(image) for image in session.decode(poses, label, activations)]}


def steps(sessions: Sessions, body: Body) -> Answer:
    """Routing step by step."""
    image, label = _image(sessions, body), _label(sessions, body)
    found = _session(sessions, body).routing(image, label, fields.routing(body))
    shown = [
        {name: plain(value) if isinstance(value, Tensor) else value for name, value in step._asdict().items()}
        for step in found.steps
    ]
    sight = None if found.sight is None else found.sight._asdict()
    return {"layer": found.layer, "children": found.children, "steps": shown, "sight": sight}


def sweep(sessions: Sessions, body: Body) -> Answer:
    """Activations and pose while the picture is turned, resized or moved."""
    values = fields.numbers(body, "values", 1, MOST_SWEPT, max(high for _, high in LIMITS.values()))
    image, label = _image(sessions, body), _label(sessions, body)
    found = _session(sessions, body).sweep(image, fields.motion(body), values, label, fields.routing(body))
    return {"values": values, "activation": plain(found.activation), "pose": plain(found.pose)}


def overlap(sessions: Sessions, body: Body) -> Answer:
    """Two pictures as one, and what is drawn of two capsules."""
    session = _session(sessions, body)
    first, second = _image(sessions, body), _image(sessions, body, "second")
    limit = float(max(session.shape[1:]))
    image = laid_over(first, second, *(fields.number(body, name, -limit, limit) for name in ("right", "down")))
    return _looked(session.look(image, fields.capsules(body), fields.routing(body), count=2), image)


SINGLE: dict[str, Callable[[Sessions, Any], Any]] = {
    "examples": examples, "decode": decode, "routing": steps, "sweep": sweep, "overlap": overlap,
}  # fmt: skip
BATCHED: dict[str, Callable[[Sessions, Any], Any]] = {"look": looks}  # of several bodies at once


def _model(sessions: Sessions, body: Body) -> int:
    return integer(body, "model", 0, len(sessions) - 1, 0)


def _session(sessions: Sessions, body: Body) -> Session:
    return sessions[_model(sessions, body)]


def _label(sessions: Sessions, body: Body) -> int:
    return integer(body, "label", 0, len(_session(sessions, body).names) - 1)


def _image(sessions: Sessions, body: Body, name: str = "image") -> Tensor:
    """A picture of a request, as the model that is asked takes it."""
    return _session(sessions, body).fitted(fields.pixels(body, name, sessions[0].shape))


def _moved(sessions: Sessions, body: Body) -> Tensor:
    image = _image(sessions, body)
    return move(image, fields.motion(body)) if "motion" in body else image


def _looked(found: Look, image: Tensor) -> Answer:
    drawn = None if found.reconstructions is None else [encoded(one) for one in found.reconstructions]
    answer = {"activation": plain(found.activation), "pose": plain(found.pose), "drawn": drawn}
    return answer | {"shown": found.shown, "image": encoded(image)}
