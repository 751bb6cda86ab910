"""Routing by agreement.

Sara Sabour, Nicholas Frosst, Geoffrey Hinton, "Dynamic Routing Between Capsules", NIPS 2017, arXiv 1710.09829,
procedure 1. Letters: b batch, i children, j parents, d pose dimensions.
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

        b_ij = 0;  repeat:  c_i = softmax(b_i) over parents;  s_j = sum_i c_ij u_ij (+ bias_j);  v_j = squash(s_j);
        b_ij += <u_ij, v_j>, except after the last pass

    One iteration is uniform coupling, `c = 1 / parents`. The logits b belong to a sample: never learned, never kept.
    With a prior, `b_ij` starts from it, and one iteration couples by it alone.

    Args:
        votes: u, `[batch, *space, children, parents, dim]`, or the votes of a layer, whose field says which parents
            compete. Half precision is computed in float32. ValueError for other axes, or other than floating point.
        iterations: r, at least 1; the paper uses 3.
        bias: added to s in every iteration, as in the authors' code (0.1 at the start there); the paper has none. The
            votes of a layer bring their own.
        leaky: give each child one more parent, "none of the above", with constant logit 0, and drop its share.
        detach: send no gradient through the coupling, only through the last weighted sum.
        over: what the softmax is over; "children" is a mistake of public code, for weights that were trained with it.
        prior: log prior probabilities, up to a constant for each child, that i is coupled to j (section 2); finite.

    Returns:
        Routed: pose v `[batch, *space, parents, dim]`, activation |v| `[batch, *space, parents]` in [0, 1), coupling c
        `[batch, *space, children, parents]`, which sums to one over parents (to less than one if leaky).
    """
    votes = as_votes(votes, bias=bias)
    check_range("iterations", iterations, low=1)
    u = votes.dense()
    fixed = u.detach() if detach else u
    added = None if votes.bias is None else full_precision(votes.bias)
    b = torch.zeros_like(u[..., 0]) if prior is None else full_precision(prior).expand_as(u[..., 0])
    with without_autocast(u):
        for step in range(iterations):
            last = step == iterations - 1
            c = votes.couple(b, leaky=leaky, over=over)
            if last and detach:
                c = c.detach()
            s = einsum_fp32("...ij,...ijd->...jd", c, u if last else fixed)
            if added is not None:
                s = s + (added if last or not detach else added.detach())
            v, length = squash_with_length(s)
            if not last:
                b = detach_extremes(b + einsum_fp32("...jd,...ijd->...ij", v, fixed))
    return Routed(v, length, c)
