"""Votes: each child's prediction of each parent's pose."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import check_shape
from torchcaps.functional.bounds import multiplied


def linear_votes(
    pose: Float[Tensor, "batch children in_dim"], weight: Float[Tensor, "children parents dim in_dim"]
) -> Float[Tensor, "batch children parents dim"]:
    """`vote_ij = weight[i, j] @ pose_i` (arXiv 1710.09829, equation 2): one matrix per pair of child and parent.

    Args:
        pose: `[batch, children, in_dim]`; taken in the type of the weight, as squash gives float32 for half precision.
        weight: `[children, parents, dim, in_dim]`.

    Returns:
        `[batch, children, parents, dim]`; float32 for weights in float16, which has no room for products.

    Raises:
        ValueError: if the shapes do not fit, or for other than floating point.
    """
    children, _, _, in_dim = weight.shape
    check_shape("pose", pose, ("batch", "children", "in_dim"), children=children, in_dim=in_dim)
    return multiplied("bid,ijkd->bijk", pose, weight)
