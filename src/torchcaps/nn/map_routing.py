"""Routing on maps: kernels that child types share (SegCaps), and the 3-D convolutional routing of DeepCaps.

LaLonde, Bagci, "Capsules for Object Segmentation", MIDL 2018, arXiv 1804.04241. Rajasegaran et al., "DeepCaps: Going
Deeper with Capsule Networks", CVPR 2019, arXiv 1904.09546, and the authors' code. Letters: i child types, j parent
types, p positions of the map, d dimensions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps import ops
from torchcaps.errors import ArgumentError, check_range
from torchcaps.functional.bounds import clamp_finite, factor_limit
from torchcaps.functional.fields import Convention, DenseField, Field, spatial_first, spatial_last
from torchcaps.functional.squash import full_precision, squash, squash_with_length
from torchcaps.functional.votes import MapVotes, Votes
from torchcaps.nn.routed import MAP, RoutedLayer
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
        impl: of local routing, "auto", "reference" or "numba"; see `torchcaps.ops`.
    """

    adds_bias = True

    def __init__(
        self, iterations: int = 3, *, local: bool = False, impl: ops.Impl = "auto"
    ) -> None:
        super().__init__()
        self.iterations, self.local, self.impl = check_iterations(iterations), local, impl
        self.operators = ("map_routing",) if local else ()

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        return Routed(*ops.in_blocks(self._routed, votes))

    def _routed(self, votes: Votes) -> Routed:
        if self.local and (run := ops.fastest("map_routing", votes, self.impl)):
            return run(votes, iterations=self.num_iterations)
        bias, k = votes.bias, votes.couple()
        b = torch.zeros_like(k)
        for left in reversed(range(self.num_iterations)):
            S = votes.weighted(k) if bias is None else votes.weighted(k) + full_precision(bias)
            if self.local:
                v, length = squash_with_length(S)
            else:
                maps = S.movedim(-2, 1)  # [batch, j, *positions, d]
                v = squash(maps.flatten(2)).view(maps.shape).movedim(1, -2)
                length = torch.linalg.vector_norm(v, dim=-1)
            if left:
                b = b + votes.agreement(v)
                k = votes.couple(b)
        return Routed(v, length, k)


@dataclass(frozen=True)
class GlobalCompetition(DenseField):
    """Children stand at their parents' positions, and the parents of ALL positions compete for a child type."""

    convention: Convention = field(default="patch", init=False)

    def reduce_competing(self, x: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
        return reduce(x, dim=(*range(1, 1 + len(self.positions)), -1), keepdim=True)


def global_competition(height: int, width: int) -> GlobalCompetition:
    """The field of a map on which the parents of all positions compete."""
    return GlobalCompetition(positions=(height, width))


def per_position(height: int, width: int) -> DenseField:
    """The field of a map on which only the parents of one position compete."""
    return DenseField(positions=(height, width))


@dataclass(frozen=True)
class PerPosition(DenseField):
    """Children that vote at positions of their own, as convolutions make them: types before places in memory."""

    def softmax(self, log_weight: Tensor, leaky: bool = False) -> Tensor:
        return (
            super().softmax(log_weight, leaky)
            if leaky
            else spatial_first(spatial_last(log_weight).softmax(dim=2))
        )


class KernelVotes(nn.Module):
    """The K x K window of a child type's map votes as one child, by a kernel that all child types share; K is odd.

    The map keeps its size, or is `stride` times smaller (rounded up). `transposed` makes it `stride` times larger; K is
    then as even or odd as the stride, and at least as large. `gain` is that of the kernel at the start, times what He's
    rule gives for the numbers that a vote is made of. ValueError for a kernel that cannot be centered.
    """

    def __init__(
        self,
        sizes: LayerSizes,
        kernel_size: int = 3,
        stride: int = 1,
        *,
        transposed: bool = False,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        check_range("stride", stride, low=1)
        check_range("kernel_size", kernel_size, low=stride if transposed else 1)
        if (kernel_size - stride if transposed else kernel_size - 1) % 2:
            raise ArgumentError(
                "kernel_size",
                f"expected an {'even' if transposed and stride % 2 == 0 else 'odd'} number, "
                f"got {kernel_size}",
            )
        self.sizes, self.stride, self.transposed, self.gain = (
            checked(sizes),
            stride,
            transposed,
            gain,
        )
        channels = (sizes.in_dim, sizes.parents * sizes.dim)
        self.weight = nn.Parameter(
            torch.empty(*(channels if transposed else channels[::-1]), kernel_size, kernel_size)
        )
        self.bias = nn.Parameter(torch.empty(sizes.parents, sizes.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the kernel anew; the bias becomes 0.1."""
        taps = (self.weight.shape[-1] / (self.stride if self.transposed else 1)) ** 2
        nn.init.normal_(self.weight, std=self.gain * (2.0 / (self.sizes.in_dim * taps)) ** 0.5)
        nn.init.constant_(self.bias, 0.1)

    def positions(self, height: int, width: int) -> DenseField:
        """The field of the parents of a map of this size."""
        down, across = (
            n * self.stride if self.transposed else -(-n // self.stride) for n in (height, width)
        )
        return PerPosition(positions=(down, across))

    def convolved(self, maps: Tensor) -> Tensor:
        """`[n, in_dim, height, width]` -> `[n, parents * dim, rows, columns]`."""
        kernel = self.weight.shape[-1]
        if self.transposed:
            return F.conv_transpose2d(
                maps, self.weight, stride=self.stride, padding=(kernel - self.stride) // 2
            )
        return F.conv2d(maps, self.weight, stride=self.stride, padding=kernel // 2)

    def forward(self, children: Capsules, field: DenseField) -> Votes:
        return _Convolved(children, field, self)


class _Convolved(MapVotes):
    """`[batch, rows, columns, types, parents, dim]`, by one convolution in which the types are samples."""

    recomputable = True

    def __init__(self, children: Capsules, field: Field, module: KernelVotes) -> None:
        super().__init__(children, field, module.sizes.parents, module.sizes.dim, module.bias)
        self.module = module

    @property
    def activation(self) -> Tensor:
        activation = full_precision(self.children.activation).movedim(-1, 1)
        return F.interpolate(activation, self.field.positions).movedim(1, -1)

    def maps(self) -> Float[Tensor, "batch i j d rows columns"]:
        return self._memoized("maps", self._convolve)

    def _convolve(self) -> Tensor:
        pose = spatial_last(self.pose).to(self.module.weight.dtype)
        pose = clamp_finite(pose, factor_limit)  # [batch, i, in_dim, *space]
        with self._autocast():
            votes = full_precision(self.module.convolved(pose.flatten(0, 1)))
        return self._clamped(votes.view(*pose.shape[:2], self.parents, self.dim, *votes.shape[2:]))


class KernelCaps(RoutedLayer):
    """Convolutional capsules whose child types share one kernel and vote once a position (SegCaps, 1804.04241).

    Kernels start such that a parent's sum is about twice as long as its children are; by He's rule alone, what poses
    say of places fades to a few thousandths within a few layers, as squash shortens what is short. Arguments are those
    of `LayerSizes`, for the types of both maps, and of `KernelVotes`; iterations are of routing among the types of each
    position.

    Shapes:
        input Capsules with pose `[batch, height, width, in_types, in_dim]`; output Capsules with pose
        `[batch, rows, columns, out_types, out_dim]`. The coupling is `[batch, rows, columns, in_types, out_types]`.
    """

    axes = MAP

    def __init__(
        self,
        in_types: int,
        in_dim: int,
        out_types: int,
        out_dim: int,
        kernel_size: int = 5,
        stride: int = 1,
        *,
        transposed: bool = False,
        iterations: int = 3,
    ) -> None:
        sizes = LayerSizes(in_types, in_dim, out_types, out_dim)
        gain = 2 * out_types / (2 * in_types) ** 0.5  # of in_types votes, each counts 1 / out_types
        votes = KernelVotes(sizes, kernel_size, stride, transposed=transposed, gain=gain)
        super().__init__(votes, MapRouting(iterations, local=True), votes.positions)
        self.expected = {"types": in_types}
