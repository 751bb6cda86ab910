"""The pose of one capsule, and what the decoder draws of others (arXiv 1710.09829, section 5.1)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.explorer.session import Session
from torchcaps.explorer.views._base import register_view


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
