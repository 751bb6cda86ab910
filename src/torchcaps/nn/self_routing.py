"""Self-routing: each child chooses its parents from its own pose, by a small router of its own.

Taeyoung Hahn, Myeongjang Pyeon, Gunhee Kim, "Self-Routing Capsule Networks", NeurIPS 2019. The bias of the choice is
from the authors' code.
"""

import torch
from torch import Tensor, nn

from torchcaps.errors import ArgumentError
from torchcaps.functional.bounds import clamp_finite, factor_limit
from torchcaps.functional.fields import Field
from torchcaps.functional.squash import full_precision
from torchcaps.functional.votes import ProductVotes, Votes
from torchcaps.nn.routers import Router, register_router
from torchcaps.nn.votes import checked
from torchcaps.types import Capsules, LayerSizes, Routed


@register_router("self_routing")
class SelfRouting(Router):
    """No agreement and no iterations: a softmax over parents of `choice_ij . pose_i + lean_ij`.

    Activations of one position's parents sum to one. Children that are all absent count alike. `choice`
    `[children, parents, in_dim]` and `lean` `[children, parents]` start at zero, which is uniform coupling.
    """

    activation, permutation_equivariant, convention = "probability", False, "type"
    adds_bias = True

    def build_parameters(self, sizes: LayerSizes) -> None:
        self.choice = nn.Parameter(torch.zeros(sizes.children, sizes.parents, sizes.in_dim))
        self.lean = nn.Parameter(torch.zeros(sizes.children, sizes.parents))

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        u = clamp_finite(full_precision(votes.pose), factor_limit)
        W_route, b = (votes.per_child(x).to(u) for x in (self.choice, self.lean))
        c = votes.couple(torch.einsum("...id,ijd->...ij", u, W_route) + b)
        a = _relative(votes.activation, votes.mask).unsqueeze(-1)
        given = c * a
        mass = given.sum(dim=-2)  # a_j sum_i a_i
        u_j = _mixed(votes, u, given / mass.unsqueeze(-2).clamp(min=torch.finfo(mass.dtype).tiny))
        u_j = u_j if votes.bias is None else u_j + full_precision(votes.bias)
        return Routed(u_j, mass / a.sum(dim=-2), c)


def _relative(a: Tensor, present: Tensor | None) -> Tensor:
    """Activations over the largest of their position: of these, sums do not vanish; only ratios matter."""
    there = torch.ones_like(a) if present is None else present.to(a).expand_as(a)
    most = a.detach().amax(dim=-1, keepdim=True)
    ratio = a / most.clamp(min=torch.finfo(a.dtype).tiny)
    return torch.where(most > 0, ratio, there)


def _mixed(votes: Votes, u: Tensor, phi: Tensor) -> Tensor:
    """`sum_i phi_ij V_ij`; of linear votes parent by parent, in half the time of storing all of them."""
    if not isinstance(votes, ProductVotes) or votes.rows != 1 or votes.shift is not None:
        return votes.weighted(phi)
    W = clamp_finite(votes.matrices.to(u), factor_limit)
    poses = [
        (phi[..., j].unsqueeze(-1) * u).flatten(-2) @ W[:, j].flatten(0, 1)
        for j in range(votes.parents)
    ]
    return clamp_finite(torch.stack(poses, dim=-2), factor_limit)


class PoseVotes(nn.Module):
    """`vote_ij = pose_i`, the same for every parent, without matrices: for a layer that only chooses.

    ValueError for `sizes` below one, or parents of other dimensions than the children.
    """

    bias = None

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.sizes = checked(sizes)
        if sizes.dim != sizes.in_dim:
            raise ArgumentError(
                "sizes",
                f"expected parents of the children's {sizes.in_dim} dimensions, got {sizes.dim}",
            )

    def reset_parameters(self) -> None:
        """There are none."""

    def forward(self, children: Capsules, field: Field) -> Votes:
        return _Poses(children, field, self.sizes.parents, self.sizes.dim)


class _Poses(Votes):
    """Sums of poses need no votes."""

    def _compute(self) -> Tensor:
        return (
            full_precision(self.pose)
            .unsqueeze(-2)
            .expand(*self.pose.shape[:-1], self.parents, self.dim)
        )

    def weighted(self, coefficients: Tensor) -> Tensor:
        return torch.einsum(
            "...ij,...id->...jd",
            coefficients,
            clamp_finite(full_precision(self.pose), factor_limit),
        )
