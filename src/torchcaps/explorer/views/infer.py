"""Activations, poses and reconstructions of a picture (arXiv 1710.09829, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchcaps.errors import check_range
from torchcaps.evaluation.forward import evaluating
from torchcaps.explorer.pictures import Motion, Picture, move
from torchcaps.explorer.session import Session
from torchcaps.explorer.views._base import Answer, Arguments, register_view
from torchcaps.tasks.masks import overlays


def infer_batch(session: Session, requests: Sequence[Arguments]) -> list[Answer]:
    """`infer` for several pictures, in one pass; all have the same couplings."""
    images = [move(request["image"], request.get("motion")) for request in requests]
    for request in requests:
        labels = request.get("classes", ())
        check_range("classes", len(labels), high=session.MAX_DECODED)
        session.check_class(*labels)
    if session.spec.is_dense:
        with evaluating(session.model):
            activations, overlaid = overlays(session.task, session.batch(images))
        poses = None
    else:
        activations, poses = session.encode(images, uniform=requests[0].get("uniform", False))
    answers = []
    for k, (image, request) in enumerate(zip(images, requests, strict=True)):
        activation = activations[k]
        pose = None if poses is None else poses[k]
        labels = tuple(request.get("classes", ()))
        drawn = None
        if session.spec.is_dense:
            labels = labels[:1] or (1 + int(activation[1:].argmax()),)
            drawn = overlaid[k : k + 1]
        elif not labels:
            count = min(request.get("count", 1), len(activation))
            labels = tuple(activation.topk(count).indices.tolist())
        if pose is not None and session.has_decoder:
            rows = len(labels)
            drawn = session.draw(pose.expand(rows, -1, -1), activation.expand(rows, -1), labels)
        answers.append(
            {
                "activation": activation,
                "pose": pose,
                "drawn": drawn,
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
