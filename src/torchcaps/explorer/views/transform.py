"""Activations and a pose while the picture is turned, moved or resized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import check_range
from torchcaps.explorer.pictures import Motion, Picture, move
from torchcaps.explorer.requests import Request, as_lists
from torchcaps.explorer.session import Session
from torchcaps.explorer.views._base import View, register_view

MAX_STEPS = 41  # pictures of one sweep


class Sweep(NamedTuple):
    """A model's view of a picture that changes.

    Attributes:
        activation: of all capsules.
        pose: of one capsule; None without capsules.
    """

    activation: Float[Tensor, "steps capsules"]
    pose: Float[Tensor, "steps dim"] | None


@register_view("transform")
class Transform(View):
    """A sweep over one amount of a motion."""

    title = "Transform"
    order = 4

    @classmethod
    def missing(cls, session: Session) -> str:
        if "sweep" not in session.task.capabilities or not session.names:
            return f"the task {session.task.name} does not offer it"
        return ""

    def run(
        self,
        image: Picture,
        motion: Motion,
        values: Sequence[float],
        label: int,
        *,
        uniform: bool = False,
    ) -> Sweep:
        """Run the model on the picture at each of the amounts.

        Args:
            image: `[channels, height, width]`.
            motion: what stays as it is, and which amount changes.
            values: of that amount, a picture each, at most `MAX_STEPS`.
            label: the capsule whose pose is returned.
            uniform: give every class the same share of every child.

        Raises:
            ValueError: for values that do not fit.
        """
        self.session.check_class(label)
        check_range("values", len(values), low=1, high=MAX_STEPS)
        images = [move(image, motion.at(value)) for value in values]
        activation, pose = self.session.encode(images, uniform=uniform)
        return Sweep(activation, None if pose is None else pose[:, label])

    def answer(self, request: Request) -> dict[str, Any]:
        limit = max(high for _, high in Motion.LIMITS.values())
        values = request.numbers("values", 1, limit).tolist()
        sweep = self.run(
            request.image(),
            request.motion(),
            values,
            request.integer("label"),
            uniform=request.uniform,
        )
        activation, pose = as_lists(sweep.activation), as_lists(sweep.pose)
        return {"values": values, "activation": activation, "pose": pose}
