"""The pose of one capsule, and what the decoder draws of others (arXiv 1710.09829, section 5.1)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.explorer.requests import Request, as_base64
from torchcaps.explorer.session import Session
from torchcaps.explorer.views._base import View, register_view

MAX_VALUE = 1e4  # of a number in a pose


@register_view("pose")
class Pose(View):
    """Poses of one capsule to be drawn, with all other capsules at zero."""

    title = "Pose"
    order = 1

    @classmethod
    def missing(cls, session: Session) -> str:
        return "" if session.has_poses else "this model has no capsules"

    def describe(self) -> dict[str, Any]:
        session = self.session
        return super().describe() | {"dim": session.pose_dim, "decoder": session.has_decoder}

    def run(
        self,
        poses: Float[Tensor, "n dim"],
        label: int,
        activations: Float[Tensor, " n"] | None = None,
    ) -> Float[Tensor, "n channels height width"]:
        """What the decoder draws of these poses of the capsule `label`, in [0, 1].

        Args:
            poses: `[n, dim]`, n from 1 to `Session.MAX_DECODED`.
            label: the capsule.
            activations: `[n]`, of that capsule, by default one; where activations are lengths,
                they are those of `poses` in any case.

        Raises:
            ValueError: for a model without a decoder, and values that do not fit.
        """
        session = self.session
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
        pose = is_label.unsqueeze(-1) * poses.unsqueeze(1)
        activation = is_label * activations.unsqueeze(1)
        return session.draw(pose, activation, (label,) * len(poses))

    def answer(self, request: Request) -> dict[str, Any]:
        label = request.integer("label")
        poses = torch.from_numpy(request.numbers("poses", 2, MAX_VALUE)).float()
        ones = [1.0] * len(poses)
        activations = torch.from_numpy(request.numbers("activations", 1, MAX_VALUE, ones)).float()
        drawings = self.run(poses, label, activations)
        return {"drawn": list(map(as_base64, drawings))}
