"""Votes, then routing, as one function: the oracle for kernels that never store the votes."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from torchcaps.functional.routing.dynamic import dynamic_routing
from torchcaps.functional.votes import linear_votes
from torchcaps.types import Routed


def routed_dynamic(
    pose: Float[Tensor, "batch children in_dim"],
    weight: Float[Tensor, "children parents dim in_dim"],
    bias: Float[Tensor, "parents dim"] | None = None,
    *,
    iterations: int = 3,
    leaky: bool = False,
    detach: bool = False,
) -> Routed:
    """`dynamic_routing(linear_votes(pose, weight), ...)` with the arguments and outcome of those two.

    Args:
        pose: `[batch, children, in_dim]`.
        weight: `[children, parents, dim, in_dim]`.
        bias: `[parents, dim]` or None.
        iterations: at least 1.
        leaky: see `dynamic_routing`.
        detach: see `dynamic_routing`.
    """
    return dynamic_routing(linear_votes(pose, weight), iterations, bias=bias, leaky=leaky, detach=detach)
