"""What the server answers: the numbers that a page shows of a model, as float32 in base64."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.errors import ArgumentError, check_range
from torchcaps.evaluation.base import activations_of, evaluating
from torchcaps.evaluation.routing.layers import route_last, routed_layers
from torchcaps.functional import DenseField
from torchcaps.nn import Router
from torchcaps.tasks import Task
from torchcaps.tasks.masks import overlays
from torchcaps.types import Capsules, Json

MAX_STEPS = 10  # iterations of an answer


class ServedModel(NamedTuple):
    """A model that the server answers for."""

    task: Task
    shape: tuple[int, ...]  # channels, height and width of its images


def encode(tensor: Tensor) -> str:
    """Numbers as float32 in base64."""
    return base64.b64encode(tensor.detach().float().cpu().contiguous().numpy().tobytes()).decode()


def decode(text: Any, name: str, shape: Sequence[int]) -> Tensor:
    """The tensor of a request. Raises ArgumentError for what does not fit."""
    try:
        numbers = np.frombuffer(base64.b64decode(text, validate=True), "<f4").reshape(shape)
    except (TypeError, ValueError):
        raise ArgumentError(name, f"expected float32 {list(shape)} in base64") from None
    if not np.isfinite(numbers).all():
        raise ArgumentError(name, "expected finite numbers")
    return torch.from_numpy(numbers.copy())


def look(served: ServedModel, image: Any, **_: Any) -> Json:
    """What a model makes of an image: lengths, and, where it has them, poses, votes and couplings."""
    model, spec = served.task.model, served.task.spec
    pixels = decode(image, "image", served.shape).clamp(0, 1)[None]
    with evaluating(model):
        if spec.is_dense:
            shares, seen = overlays(served.task, pixels)
            return {"lengths": encode(shares), "seen": encode(seen)}
        if not spec.pose:
            return {"lengths": encode(activations_of(model, pixels, spec))}
        pose, activation = model.capsules(pixels)
        votes = votes_of(model, pixels) if has_votes(served.task) else {}
        return {"lengths": encode(activation), "poses": encode(pose)} | votes


def has_votes(task: Task) -> bool:
    """Whether each child votes for each class, by couplings that routing can be stopped at."""
    if "routing" not in task.capabilities:
        return False
    layer = list(routed_layers(task.model).values())[-1]
    return layer.router.normalized and layer.field is DenseField


def votes_of(model: Any, pixels: Tensor) -> Json:
    """The votes for the classes, and the couplings when routing stops after each iteration.

    Layers below route as they do, so that the votes stay the same.
    """
    layer, votes, traces = route_last(model, pixels, MAX_STEPS, [Router.uniform])
    steps = []
    for trace in traces:
        weights = trace.coupling
        if layer.router.activation == "probability":  # the votes do not carry it
            weights = weights * votes.activation.unsqueeze(-1)
        step = {
            "couplings": trace.coupling,
            "weights": weights,
            "lengths": trace.activation,
            "poses": trace.pose,
        }
        steps.append({key: encode(tensor) for key, tensor in step.items()})
    dense = votes.dense()[0]
    return {
        "votes": encode(dense),
        "sizes": dict(zip(("children", "classes", "dim"), dense.shape, strict=True)),
        "router": layer.router.describe(),
        "steps": steps[:-1],
        "off": steps[-1],
    }


def draw(served: ServedModel, pose: Any, label: Any, **_: Any) -> Json:
    """What the decoder draws of the pose of one class, with all others at zero."""
    model = served.task.model
    with evaluating(model):
        blank = model.capsules(torch.zeros(served.shape)[None])
        check_range("label", label, low=0, high=blank.activation.shape[1] - 1)
        vector = decode(pose, "pose", blank.pose.shape[2:])
        poses = torch.zeros_like(blank.pose)
        poses[0, label] = vector
        activation = torch.zeros_like(blank.activation)
        activation[0, label] = vector.norm() if served.task.spec.activation == "length" else 1.0
        drawing = model.reconstruct(Capsules(poses, activation), torch.tensor([label]))
        return {"drawing": encode(drawing)}


ANSWERS: dict[str, Callable[..., Json]] = {"look": look, "draw": draw}
