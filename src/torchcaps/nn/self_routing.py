"""Self-routing: each child chooses its parents from its own pose, by a small router of its own.

Taeyoung Hahn, Myeongjang Pyeon, Gunhee Kim, "Self-Routing Capsule Networks", NeurIPS 2019. The bias
of the choice is from the authors' code. Letters: i children, j parents.
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
    """No agreement and no iterations: each child has a linear classifier of its parents.

        c_i = softmax over parents of  W_route_ij . u_i + b_ij
        a_j = sum_i c_ij a_i / sum_i a_i
        u_j = sum_i c_ij a_i V_ij / sum_i c_ij a_i

    Activations of one position's parents sum to one. Children that are all absent have equal
    weights. W_route is `choice` `[children, parents, in_dim]`, b is `lean` `[children, parents]`;
    they start at zero, which is uniform coupling.
    """

    activation = "probability"
    permutation_equivariant = False
    convention = "type"
    adds_bias = True

    def build_parameters(self, sizes: LayerSizes) -> None:
        self.choice = nn.Parameter(torch.zeros(sizes.children, sizes.parents, sizes.in_dim))
        self.lean = nn.Parameter(torch.zeros(sizes.children, sizes.parents))

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        u = clamp_finite(full_precision(votes.pose), factor_limit)
        W_route = votes.per_child(self.choice).to(u)
        b = votes.per_child(self.lean).to(u)
        c = votes.couple(torch.einsum("...id,ijd->...ij", u, W_route) + b)
        a = _relative_activation(votes).unsqueeze(-1)
        weights = c * a
        mass = weights.sum(dim=-2)  # a_j sum_i a_i
        phi = weights / mass.unsqueeze(-2).clamp(min=torch.finfo(mass.dtype).tiny)
        u_j = _weighted_sum(votes, u, phi)
        if votes.bias is not None:
            u_j = u_j + full_precision(votes.bias)
        return Routed(u_j, mass / a.sum(dim=-2), c)


def _relative_activation(votes: Votes) -> Tensor:
    """Activations over the largest of their position, whose sums do not vanish.

    Only their ratios matter. Where all are zero, they become 1 for children that are present.
    """
    a = votes.activation
    mask = votes.mask
    present = torch.ones_like(a) if mask is None else mask.to(a).expand_as(a)
    largest = a.detach().amax(dim=-1, keepdim=True)
    ratio = a / largest.clamp(min=torch.finfo(a.dtype).tiny)
    return torch.where(largest > 0, ratio, present)


def _weighted_sum(votes: Votes, u: Tensor, phi: Tensor) -> Tensor:
    """`sum_i phi_ij V_ij`; of linear votes parent by parent, in half the time of storing them."""
    if not isinstance(votes, ProductVotes) or votes.rows != 1 or votes.shift is not None:
        return votes.weighted(phi)
    W = clamp_finite(votes.matrices.to(u), factor_limit)
    poses = []
    for j in range(votes.parents):
        weighted_u = phi[..., j].unsqueeze(-1) * u
        poses.append(weighted_u.flatten(-2) @ W[:, j].flatten(0, 1))
    return clamp_finite(torch.stack(poses, dim=-2), factor_limit)


class PoseVotes(nn.Module):
    """`vote_ij = pose_i`, the same for every parent, without matrices: for a layer of choices.

    Args:
        sizes: of the layer.

    Raises:
        ArgumentError: sizes below 1, or parents of other dimensions than the children.
    """

    bias = None

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.sizes = checked(sizes)
        if sizes.dim != sizes.in_dim:
            expected = f"expected parents of the children's {sizes.in_dim} dimensions"
            raise ArgumentError("sizes", f"{expected}, got {sizes.dim}")

    def reset_parameters(self) -> None:
        """There are no parameters."""

    def forward(self, children: Capsules, field: Field) -> Votes:
        return _LazyPoseVotes(children, field, self.sizes.parents, self.sizes.dim)


class _LazyPoseVotes(Votes):
    """Votes of `PoseVotes`: sums of poses need no votes."""

    def _compute(self) -> Tensor:
        poses = full_precision(self.pose).unsqueeze(-2)
        return poses.expand(*self.pose.shape[:-1], self.parents, self.dim)

    def weighted(self, coefficients: Tensor) -> Tensor:
        poses = clamp_finite(full_precision(self.pose), factor_limit)
        return torch.einsum("...ij,...id->...jd", coefficients, poses)
