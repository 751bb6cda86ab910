"""Couplings that do not depend on the votes: equal ones, or ones drawn once at random.

They are the ablations of routing. Paik, Kwak, Kim 2019 (arXiv 1907.13327) found them as good as
five routing algorithms. Equal couplings are one iteration of dynamic routing. Letters: i children,
j parents, d pose dimensions.
"""

from torch import Tensor

from torchcaps.functional.bounds import without_autocast
from torchcaps.functional.random_coupling import random_logits
from torchcaps.functional.squash import squash_with_length
from torchcaps.functional.votes import AnyVotes, Bias, Votes, as_votes
from torchcaps.types import Routed


def uniform_routing(votes: AnyVotes, *, bias: Bias = None) -> Routed:
    """Route with equal couplings: `v_j = squash(sum_i u_ij / parents + bias_j)`.

    Args:
        votes: u, `[batch, *space, children, parents, dim]`, or the votes of a layer.
        bias: added to the sum of each parent; None for the votes of a layer, which have their own.

    Returns:
        Routed: pose v `[batch, *space, parents, dim]`, activation |v| `[batch, *space, parents]` in
        [0, 1), coupling `[batch, *space, children, parents]`.

    Raises:
        ArgumentError: votes of other axes or not of floating point.
    """
    return _route(as_votes(votes, bias=bias), None)


def random_routing(
    votes: AnyVotes, seed: int = 0, *, scale: float = 1.0, bias: Bias = None
) -> Routed:
    """Route with fixed random couplings: `v_j = squash(sum_i c_ij u_ij + bias_j)`.

    Couplings are the same for every sample and position. They sum to one over the parents that
    compete.

    Args:
        votes: u, `[batch, *space, children, parents, dim]`, or the votes of a layer.
        seed: of the couplings, of 32 bits; see `random_logits`.
        scale: standard deviation of their logits, at least 0; 0 is uniform.
        bias: added to the sum of each parent; None for the votes of a layer, which have their own.

    Returns:
        Routed: pose v `[batch, *space, parents, dim]`, activation |v| `[batch, *space, parents]` in
        [0, 1), coupling `[batch, *space, children, parents]`.

    Raises:
        ArgumentError: votes of other axes or not of floating point, or a seed or scale out of
            range.
    """
    votes = as_votes(votes, bias=bias)
    device = votes.children.activation.device
    logits = random_logits(votes.count, votes.parents, seed, scale=scale, device=device)
    return _route(votes, logits)


def _route(votes: Votes, logits: Tensor | None) -> Routed:
    u = votes.dense()
    with without_autocast(u):
        c = votes.couple(None if logits is None else logits.to(u.dtype).expand(u.shape[:-1]))
        v, length = squash_with_length(votes.add_bias(votes.weighted(c)))
    return Routed(v, length, c)
