"""What flows between capsule layers: capsules, and the outcome of a routing."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Capsules(NamedTuple):
    """A set of capsules.

    Attributes:
        pose: `[batch, *space, num_capsules, pose_dim]`; matrix poses are flat, row-major.
        activation: `[batch, *space, num_capsules]`, in [0, 1]; for vector capsules the length of the pose.
    """

    pose: Float[Tensor, "batch *space capsules dim"]
    activation: Float[Tensor, "batch *space capsules"]


class Routed(NamedTuple):
    """What a routing function returns.

    Attributes:
        pose: `[batch, *space, parents, pose_dim]`.
        activation: `[batch, *space, parents]`, in [0, 1].
        coupling: `[batch, *space, children, parents]`, in [0, 1]; sums to one over parents (to at most one where a
            routing has a "none of the above" parent). None where a fast path was not asked for it.
    """

    pose: Float[Tensor, "batch *space parents dim"]
    activation: Float[Tensor, "batch *space parents"]
    coupling: Float[Tensor, "batch *space children parents"] | None
