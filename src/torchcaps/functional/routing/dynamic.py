"""Routing by agreement.

Sara Sabour, Nicholas Frosst, Geoffrey Hinton, "Dynamic Routing Between Capsules", NIPS 2017, arXiv
1710.09829, procedure 1. Letters: b batch, i children, j parents, d pose dimensions.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import check_range
from torchcaps.functional.bounds import detach_extremes, einsum_fp32, without_autocast
from torchcaps.functional.squash import full_precision, squash_with_length
from torchcaps.functional.votes import AnyVotes, Bias, Over, as_votes
from torchcaps.types import Routed


def dynamic_routing(
    votes: AnyVotes,
    iterations: int = 3,
    *,
    bias: Bias = None,
    leaky: bool = False,
    detach: bool = False,
    over: Over = "parents",
    prior: Float[Tensor, "children parents"] | None = None,
) -> Routed:
    """Couple each child to the parents that its votes agree with.

        b_ij = 0
        repeat:
            c_i = softmax(b_i) over parents
            s_j = sum_i c_ij u_ij (+ bias_j)
            v_j = squash(s_j)
            b_ij += <u_ij, v_j>, except in the last iteration

    One iteration is uniform coupling, `c = 1 / parents`. The logits b belong to a sample: they are
    never learned and never kept.

    Args:
        votes: u, `[batch, *space, children, parents, dim]`, or the votes of a layer, whose field
            says which parents compete. Half precision is computed in float32.
        iterations: r, at least 1; the paper has 3.
        bias: added to s in every iteration, as in the authors' code (0.1 at the start there); the
            paper has none. The votes of a layer have their own.
        leaky: let one more parent of logit 0, "none of the above", compete for each child.
        detach: send the gradient through the last weighted sum alone, not through the coupling.
        over: the axis of the softmax; "children" is a mistake of public code, for weights that were
            trained with it.
        prior: finite log prior probabilities of the couplings, up to a constant for each child
            (section 2): `b_ij` starts from them, and one iteration couples by them alone.

    Returns:
        Routed: pose v `[batch, *space, parents, dim]`, activation |v| `[batch, *space, parents]` in
        [0, 1), coupling c `[batch, *space, children, parents]`, which sums to one over parents (to
        less than one if leaky).

    Raises:
        ArgumentError: votes of other axes or not of floating point, or iterations out of range.
    """
    votes = as_votes(votes, bias=bias)
    check_range("iterations", iterations, low=1)
    u = votes.dense()
    u_constant = u.detach() if detach else u
    bias_j = None if votes.bias is None else full_precision(votes.bias)
    b = torch.zeros_like(u[..., 0])
    if prior is not None:
        b = full_precision(prior).expand_as(b)

    with without_autocast(u):
        for step in range(iterations):
            is_last = step == iterations - 1
            c = votes.couple(b, leaky=leaky, over=over)
            if is_last and detach:
                c = c.detach()
            s = einsum_fp32("...ij,...ijd->...jd", c, u if is_last else u_constant)
            if bias_j is not None:
                s = s + (bias_j.detach() if detach and not is_last else bias_j)
            v, length = squash_with_length(s)
            if not is_last:
                b = detach_extremes(b + einsum_fp32("...jd,...ijd->...ij", v, u_constant))
    return Routed(v, length, c)
