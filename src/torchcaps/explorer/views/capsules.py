"""What the model makes of a picture: its capsules, their poses, and how they change with it.

Sara Sabour, Nicholas Frosst, Geoffrey Hinton, "Dynamic Routing Between Capsules", NIPS 2017,
arXiv 1710.09829: sections 4.1 (reconstruction), 5.1 (poses) and 6 (overlapping digits).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.explorer.session import Motion, Picture, Session, move, overlay
from torchcaps.explorer.views._base import Answer, Arguments, register_view

MAX_STEPS = 41  # pictures of one sweep
MAX_EXAMPLES = 60  # of one answer
INPUT = Motion()  # which moves nothing


def infer_batch(session: Session, requests: Sequence[Arguments]) -> list[Answer]:
    """`infer` for several pictures, in one pass; all have the same couplings."""
    images = [move(request["image"], request.get("motion")) for request in requests]
    for request in requests:
        labels = request.get("classes", ())
        check_range("classes", len(labels), high=session.MAX_DECODED)
        session.check_class(*labels)
    activations, poses = session.encode(images, uniform=requests[0].get("uniform", False))
    answers = []
    for k, (image, request) in enumerate(zip(images, requests, strict=True)):
        activation = activations[k]
        pose = None if poses is None else poses[k]
        labels = tuple(request.get("classes", ()))
        drawings = None
        if session.spec.is_dense and pose is not None:
            labels = labels[:1] or (1 + int(activation[1:].argmax()),)
            drawings = pose.unsqueeze(0)
            pose = None
        elif not labels:
            count = min(request.get("count", 1), len(activation))
            labels = tuple(activation.topk(count).indices.tolist())
        if pose is not None and session.has_decoder:
            rows = len(labels)
            drawings = session.draw(pose.expand(rows, -1, -1), activation.expand(rows, -1), labels)
        answers.append(
            {
                "activation": activation,
                "pose": pose,
                "drawn": drawings,
                "shown": labels,
                "image": image,
            }
        )
    return answers


@register_view("infer", batch=infer_batch)
def infer(
    session: Session,
    image: Picture,
    classes: Sequence[int] = (),
    motion: Motion | None = None,
    uniform: bool = False,
    count: int = 1,
) -> dict[str, Any]:
    """What the model makes of a picture. Classes of a model without capsules count as capsules.

    Args:
        session: the model.
        image: `[channels, height, width]`, of the session's shape.
        classes: capsules to decode, each by itself; none are the `count` most active ones. Of a
            model of pixels, at most one counts.
        motion: by which the picture is turned and moved first.
        uniform: give every class the same share of every child.
        count: of capsules decoded, at most as many as there are.

    Returns:
        "activation" `[capsules]`, empty where the task has neither capsules nor classes; "pose"
        `[capsules, dim]`, None without capsules; "drawn" `[shown, channels, height, width]` in
        [0, 1], None without a decoder, and of a model of pixels what it found over the picture;
        "shown", the capsules that are drawn; and "image", the picture.

    Raises:
        ValueError: for values that do not fit.
    """
    request = {"image": image, "classes": classes, "uniform": uniform, "count": count}
    return infer_batch(session, [request | {"motion": motion}])[0]


@register_view(
    "overlap",
    title="Overlap",
    order=3,
    missing=lambda session: "" if session.has_labels else "this model has no classes",
)
def overlap(
    session: Session,
    image: Picture,
    second: Picture,
    classes: Sequence[int] = (),
    right: float = 0.0,
    down: float = 0.0,
    uniform: bool = False,
) -> dict[str, Any]:
    """`infer` for the sum of two pictures, the second one moved, with two capsules drawn."""
    return infer(session, overlay(image, second, right, down), classes, uniform=uniform, count=2)


@register_view(
    "pose",
    title="Pose",
    order=1,
    missing=lambda session: "" if session.has_poses else "this model has no capsules",
    describe=lambda session: {"dim": session.pose_dim, "decoder": session.has_decoder},
)
def pose(
    session: Session,
    poses: Float[Tensor, "n dim"],
    label: int,
    activations: Float[Tensor, " n"] | None = None,
) -> dict[str, Any]:
    """What the decoder draws of poses of the capsule `label`, with all other capsules at zero.

    Args:
        session: the model.
        poses: `[n, dim]`, n from 1 to `Session.MAX_DECODED`.
        label: the capsule.
        activations: `[n]`, of that capsule, by default one; where activations are lengths, they
            are those of `poses` in any case.

    Returns:
        "drawn" `[n, channels, height, width]`, in [0, 1].

    Raises:
        ValueError: for a model without a decoder, and values that do not fit.
    """
    session.check_class(label)
    if not session.has_decoder:
        raise ArgumentError("pose", "this model has no decoder")
    check_shape("poses", poses, ("n", "dim"), dim=session.pose_dim)
    check_range("poses", len(poses), low=1, high=session.MAX_DECODED)
    if session.spec.activation == "length":
        activations = poses.norm(dim=-1)
    elif activations is None:
        activations = torch.ones(len(poses))
    check_shape("activations", activations, ("n",), n=len(poses))
    is_label = torch.arange(len(session.names)) == label
    capsules = is_label.unsqueeze(-1) * poses.unsqueeze(1)
    activation = is_label * activations.unsqueeze(1)
    return {"drawn": session.draw(capsules, activation, (label,) * len(poses))}


def _cannot_sweep(session: Session) -> str:
    if "sweep" not in session.task.capabilities or not session.names:
        return f"the task {session.task.name} does not offer it"
    return ""


@register_view("transform", title="Transform", order=4, missing=_cannot_sweep)
def transform(
    session: Session,
    image: Picture,
    values: Sequence[float],
    label: int,
    motion: Motion = INPUT,
    uniform: bool = False,
) -> dict[str, Any]:
    """A sweep over one amount of a motion.

    Args:
        session: the model.
        image: `[channels, height, width]`.
        values: of that amount, a picture each, at most `MAX_STEPS`.
        label: the capsule whose pose is returned.
        motion: what stays as it is, and which amount changes.
        uniform: give every class the same share of every child.

    Returns:
        "values"; "activation" `[steps, capsules]`; and "pose" `[steps, dim]`, None without
        capsules.

    Raises:
        ValueError: for values that do not fit.
    """
    session.check_class(label)
    check_range("values", len(values), low=1, high=MAX_STEPS)
    images = [move(image, motion.at(value)) for value in values]
    activation, pose = session.encode(images, uniform=uniform)
    path = pose[:, label] if session.has_poses and pose is not None else None
    return {"values": values, "activation": activation, "pose": path}


@register_view(
    "examples",
    missing=lambda session: "there are none here" if session.examples is None else "",
    describe=lambda session: {"count": len(session.examples or ())},
)
def examples(
    session: Session,
    label: int = -1,
    index: int | None = None,
    count: int = 20,
    start: int = 0,
) -> dict[str, Any]:
    """One example by its index, or `count` of the class `label` from the one at `start` on."""
    check_range("count", count, low=1, high=MAX_EXAMPLES)
    check_range("start", start, low=0)
    indices = [] if index is None else [index]
    if index is None:
        indices = session.examples_of(label)[start : start + count].tolist()
    rows = []
    for position in indices:
        image, labels = session.example(position)
        rows.append({"index": position, "labels": labels, "image": image})
    return {"examples": rows}
