"""Couplings that look at nothing: equal ones, or ones drawn once at random. The ablations of every table of routing.

Paik, Kwak, Kim 2019 (arXiv 1907.13327) found them as good as five routing algorithms. Equal couplings are one iteration
of dynamic routing. Letters: i children, j parents, d pose dimensions.
"""

from jaxtyping import Float
from torch import Tensor

from torchcaps.functional.bounds import without_autocast
from torchcaps.functional.chance import random_logits
from torchcaps.functional.squash import full_precision, squash_with_length
from torchcaps.functional.votes import Votes, as_votes
from torchcaps.types import Routed


def uniform_routing(
    votes: Votes | Float[Tensor, "*batch children parents dim"], *, bias: Float[Tensor, "parents dim"] | None = None
) -> Routed:
    """`v_j = squash(sum_i u_ij / parents + bias_j)`.

    Args:
        votes: u, `[batch, *space, children, parents, dim]`. Half precision is computed in float32.
        bias: `[parents, dim]` added before the squash; lazy votes have their own.

    Returns:
        Routed: pose `[batch, *space, parents, dim]`, activation in [0, 1), equal couplings.

    Raises:
        ValueError: for votes without these axes, or of other than floating point.
    """
    return _summed(as_votes(votes, bias=bias), None)


def random_routing(
    votes: Votes | Float[Tensor, "*batch children parents dim"],
    seed: int = 0,
    *,
    scale: float = 1.0,
    bias: Float[Tensor, "parents dim"] | None = None,
) -> Routed:
    """`v_j = squash(sum_i c_ij u_ij + bias_j)` with fixed random couplings c, the same for every sample and position.

    Args:
        votes: see `uniform_routing`, and for `bias`.
        seed: of the couplings; see `random_logits`.
        scale: standard deviation of their logits, at least 0.

    Returns:
        Routed: pose `[batch, *space, parents, dim]`, activation in [0, 1), couplings that sum to one over the parents
        that compete.

    Raises:
        ValueError: for votes without these axes, or of other than floating point, or a seed or scale out of range.
    """
    votes = as_votes(votes, bias=bias)
    device = votes.children.activation.device
    return _summed(votes, random_logits(votes.count, votes.parents, seed, scale=scale, device=device))


def _summed(votes: Votes, logits: Tensor | None) -> Routed:
    u = votes.dense()
    with without_autocast(u):
        c = votes.share(None if logits is None else logits.to(u.dtype).expand(u.shape[:-1]))
        s = votes.weighted(c)
        v, length = squash_with_length(s if votes.bias is None else s + full_precision(votes.bias))
    return Routed(v, length, c)
