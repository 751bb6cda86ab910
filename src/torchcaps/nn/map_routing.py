"""3-D convolutional routing (Rajasegaran et al., "DeepCaps: Going Deeper with Capsule Networks", CVPR 2019).

arXiv 1904.09546, and the authors' code. Letters: i child types, j parent types, p positions of the map, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.errors import check_range
from torchcaps.functional.bounds import FACTOR, bounded
from torchcaps.functional.fields import Convention, Everything
from torchcaps.functional.squash import full_precision, squash
from torchcaps.functional.votes import Votes
from torchcaps.nn.routers import Router, check_iterations, register_router
from torchcaps.nn.votes import checked
from torchcaps.types import Capsules, LayerSizes, Routed


@register_router("map")
class MapRouting(Router):
    """Routing by agreement in which the map of a parent type is squashed as one vector.

        b_pij = 0;  repeat:  k = softmax b, over the parents that compete for a child;  S_pj = sum_i k_pij V_pij + B_j
        n_j^2 = sum_pd S_pjd^2;  v_pj = S_pj n_j / (1 + n_j^2);  b_pij += <V_pij, v_pj>, except after the last v

    Fully connected, where there are no positions, this is dynamic routing. The first iteration has equal couplings.

    Args:
        iterations: from 1 to 100; the paper uses 3.
        local: squash each parent by itself, in every field.
    """

    def __init__(self, iterations: int = 3, *, local: bool = False) -> None:
        super().__init__()
        self.iterations, self.local = check_iterations(iterations), local

    def route(self, votes: Votes, _parents: Capsules | None) -> Routed:
        """The steps in turn."""
        bias, k = votes.bias, votes.share()
        b = torch.zeros_like(k)
        for left in reversed(range(self.passes)):
            S = votes.weighted(k) if bias is None else votes.weighted(k) + full_precision(bias)
            if self.local:
                v = squash(S)
            else:
                maps = S.movedim(-2, 1)  # [batch, j, *positions, d]
                v = squash(maps.flatten(2)).view(maps.shape).movedim(1, -2)
            if left:
                b = b + votes.agreement(v)
                k = votes.share(b)
        return Routed(v, torch.linalg.vector_norm(v, dim=-1), k)


@dataclass(frozen=True)
class Together(Everything):
    """Children stand at their parents' positions, and the parents of ALL positions compete for a child type.

    Attributes are those of `Everything`.
    """

    convention: Convention = field(default="patch", init=False)

    def among(self, x: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
        """`reduce` over positions and parents; see `Field.among`."""
        return reduce(x, dim=(*range(1, 1 + len(self.positions)), -1), keepdim=True)


def together(height: int, width: int) -> Together:
    """Of a map."""
    return Together(positions=(height, width))


def apart(height: int, width: int) -> Everything:
    """Of a map on which only the parents of one position compete."""
    return Everything(positions=(height, width))


class KernelVotes(nn.Module):
    """The K x K window of a child type's map votes as one child, by a kernel that all child types share; K is odd.

    The map keeps its size. `weight` is `[parents * dim, in_dim, K, K]`, `bias` `[parents, dim]`. ValueError for sizes
    below one, or an even kernel.
    """

    def __init__(self, sizes: LayerSizes, kernel_size: int = 3) -> None:
        super().__init__()
        check_range("kernel_size", kernel_size, low=1)
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size: expected an odd number, got {kernel_size}")
        self.sizes = checked(sizes)
        self.weight = nn.Parameter(torch.empty(sizes.parents * sizes.dim, sizes.in_dim, kernel_size, kernel_size))
        self.bias = nn.Parameter(torch.empty(sizes.parents, sizes.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the kernel anew; the bias becomes 0.1."""
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        nn.init.constant_(self.bias, 0.1)

    def forward(self, children: Capsules, field: Everything) -> Votes:
        """The votes of these children in this field."""
        return _Convolved(children, field, self)


class _Convolved(Votes):
    """`[batch, height, width, types, parents, dim]`, by one convolution in which the types are samples."""

    def __init__(self, children: Capsules, field: Everything, of: KernelVotes) -> None:
        super().__init__(children, field, of.sizes.parents, of.sizes.dim, of.bias)
        self.weight = of.weight

    def _made(self) -> Float[Tensor, "batch height width i j d"]:
        maps = bounded(self.pose.to(self.weight.dtype), FACTOR).permute(0, 3, 4, 1, 2)  # [batch, i, in_dim, *space]
        with self._casting():
            votes = F.conv2d(maps.flatten(0, 1), self.weight, padding=self.weight.shape[-1] // 2)
        return votes.view(*maps.shape[:2], self.parents, self.dim, *maps.shape[3:]).permute(0, 4, 5, 1, 2, 3)
