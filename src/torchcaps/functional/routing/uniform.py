"""Uniform coupling: no routing at all. The ablation that every table of routing results needs.

Paik, Kwak, Kim 2019 (arXiv 1907.13327) found it as good as five routing algorithms. It equals one iteration of dynamic
routing. Letters: i children, j parents, d pose dimensions.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import check_floating, check_shape
from torchcaps.functional.bounds import summed, without_autocast
from torchcaps.functional.squash import full_precision, squash_with_length
from torchcaps.types import Routed


def uniform_routing(
    votes: Float[Tensor, "*batch children parents dim"], *, bias: Float[Tensor, "parents dim"] | None = None
) -> Routed:
    """`v_j = squash(sum_i u_ij / parents + bias_j)`.

    Args:
        votes: u, `[batch, *space, children, parents, dim]`. Half precision is computed in float32.
        bias: `[parents, dim]` added before the squash.

    Returns:
        Routed: pose `[batch, *space, parents, dim]`, activation in [0, 1), coupling 1 / parents everywhere.

    Raises:
        ValueError: for votes without these axes, or of other than floating point.
    """
    check_shape("votes", votes, ("*batch", "children", "parents", "dim"))
    check_floating(votes=votes, bias=bias)
    u = full_precision(votes)
    children, parents = u.shape[-3:-1]
    c = u.new_full((children, parents), 1.0 / parents)
    with without_autocast(u):
        s = summed("ij,...ijd->...jd", c, u)
        if bias is not None:
            s = s + full_precision(bias)
        v, length = squash_with_length(s)
    return Routed(v, length, u.new_full(u.shape[:-1], 1.0 / parents))
