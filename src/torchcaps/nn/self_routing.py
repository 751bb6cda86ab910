"""Self-routing: each child chooses its parents from its own pose, by a small router of its own.

Taeyoung Hahn, Myeongjang Pyeon, Gunhee Kim, "Self-Routing Capsule Networks", NeurIPS 2019. The bias
of the choice is from the authors' code.

What comes in: pose u_i and activation a_i of each child i, and its votes V_ij for the pose of each
parent j. What goes out: pose u_j and activation a_j of each parent, and the couplings c_ij, the
share of child i that goes to parent j.

Shapes: `...` is the batch and the positions of the parents on a map, D the numbers of a pose.
"""

import torch
from torch import Tensor, nn

from torchcaps.errors import ArgumentError
from torchcaps.functional.bounds import clamp_finite, factor_limit, full_precision
from torchcaps.functional.votes import ProductVotes, Votes, per_child
from torchcaps.nn.routers import Router, register_router
from torchcaps.nn.votes import ModuleVotes, VotesModule
from torchcaps.types import Capsules, LayerSizes, Routed


@register_router("self_routing")
class SelfRouting(Router):
    """No agreement and no iterations: each child has a linear classifier of its parents.

        c_i = softmax over parents j of <W_route_ij, u_i> + b_ij          (1)
        a_j = sum_i c_ij a_i / sum_i a_i                                  (2)
        u_j = sum_i c_ij a_i V_ij / sum_i c_ij a_i                        (3)

    Activations of one position's parents sum to one. Children that are all absent have equal
    weights.

    Attributes:
        choice: W_route, `[children, parents, in_dim]`; 0 at the start, which is uniform coupling.
        lean: b, `[children, parents]`; 0 at the start.
    """

    activation = "probability"  # of a parent: a number of its own, not the length of its pose
    permutation_equivariant = False  # parameters belong to places of children and parents
    needs_votes = False  # equations 1 and 2 have no votes
    convention = "type"  # only the parents of one position compete for a child
    adds_bias = True  # `route` adds the learned bias of the layer, `votes.bias`

    def build_parameters(self, sizes: LayerSizes) -> None:
        """Start all parameters at 0.

        Args:
            sizes: numbers of children and parents, and the dimensions of their poses.
        """
        self.choice = nn.Parameter(torch.zeros(sizes.children, sizes.parents, sizes.in_dim))
        self.lean = nn.Parameter(torch.zeros(sizes.children, sizes.parents))

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        """Couple every child by its own pose.

        Args:
            votes: of a layer, stored or not, with `pose` u `[..., i, in_dim]` and `activation` a
                `[..., i]` of the children.
            parents: not used; they are for routers that start from earlier poses.

        Returns:
            Pose `[..., j, D]`, activation `[..., j]` and coupling c `[..., i, j]`.
        """
        # Equation 1.
        u = clamp_finite(full_precision(votes.pose), factor_limit)
        W_route = per_child(self.choice, votes.count).to(u)
        b = per_child(self.lean, votes.count).to(u)
        logits = torch.einsum("...id,ijd->...ij", u, W_route) + b
        c = votes.couple(logits)

        # Equation 2.
        a = _relative_activation(votes).unsqueeze(-1)
        weights = c * a  # [..., i, j]
        weight_sums = weights.sum(dim=-2)  # [..., j]
        smallest = torch.finfo(weight_sums.dtype).tiny
        activation = weight_sums / a.sum(dim=-2).clamp(min=smallest)  # 0 of no child at all

        # Equation 3.
        relative_weights = weights / weight_sums.unsqueeze(-2).clamp(min=smallest)
        pose = votes.add_bias(_weighted_sum(votes, u, relative_weights))
        return Routed(pose, activation, c)


def _relative_activation(votes: Votes) -> Tensor:
    """Activations `[..., i]`, divided by the largest of their position.

    Equations 2 and 3 depend on their ratios alone, and sums of these do not vanish. Where all are
    zero, they become 1 for children that are present, and 0 for padding.
    """
    a = votes.activation
    mask = votes.mask
    present = torch.ones_like(a) if mask is None else mask.to(a).expand_as(a)
    largest = a.detach().amax(dim=-1, keepdim=True)
    return torch.where(largest > 0, a / largest.clamp(min=torch.finfo(a.dtype).tiny), present)


def _weighted_sum(votes: Votes, u: Tensor, weights: Tensor) -> Tensor:
    """`sum_i weights_ij V_ij`, `[..., j, D]`.

    Of linear votes `V_ij = u_i W_ij` (poses of one row, nothing added) it is computed parent by
    parent, as one product over children and in_dim: half the time of storing the votes.
    """
    if not isinstance(votes, ProductVotes) or votes.rows != 1 or votes.shift is not None:
        return votes.weighted(weights)
    W = clamp_finite(votes.matrices.to(u), factor_limit)  # [i, j, in_dim, D]
    poses = [
        (weights[..., j, None] * u).flatten(-2) @ W[:, j].flatten(0, 1)
        for j in range(votes.parents)
    ]
    return clamp_finite(torch.stack(poses, dim=-2), factor_limit)


class _LazyPoseVotes(ModuleVotes):
    """Votes of `PoseVotes`: weighted sums of poses, without storing a vote for each parent."""

    def _compute(self) -> Tensor:
        poses = full_precision(self.pose).unsqueeze(-2)
        return poses.expand(*self.pose.shape[:-1], self.parents, self.dim)

    def weighted(self, coefficients: Tensor) -> Tensor:
        poses = clamp_finite(full_precision(self.pose), factor_limit)
        return torch.einsum("...ij,...id->...jd", coefficients, poses)


class PoseVotes(VotesModule):
    """`V_ij = u_i`, the same for every parent, without matrices: children only choose parents.

    Args:
        sizes: of the layer.

    Raises:
        ArgumentError: sizes below 1, or parents of other dimensions than the children.
    """

    lazy_votes = _LazyPoseVotes

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        if sizes.dim != sizes.in_dim:
            raise ArgumentError(
                "sizes",
                f"expected parents of the children's {sizes.in_dim} dimensions, got {sizes.dim}",
            )
