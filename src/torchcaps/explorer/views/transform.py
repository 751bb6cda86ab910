"""Activations and a pose while the picture is turned, moved or resized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchcaps.errors import check_range
from torchcaps.explorer.pictures import Motion, Picture, move
from torchcaps.explorer.session import Session
from torchcaps.explorer.views._base import register_view

INPUT = Motion()
MAX_STEPS = 41  # pictures of one sweep


def _missing(session: Session) -> str:
    if "sweep" not in session.task.capabilities or not session.names:
        return f"the task {session.task.name} does not offer it"
    return ""


@register_view("transform", title="Transform", order=4, missing=_missing)
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
    path = None if pose is None else pose[:, label]
    return {"values": values, "activation": activation, "pose": path}
