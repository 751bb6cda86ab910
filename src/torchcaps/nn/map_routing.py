"""Routing on maps: kernels that child types share (SegCaps), and the 3-D routing of DeepCaps.

LaLonde, Bagci, "Capsules for Object Segmentation", MIDL 2018, arXiv 1804.04241. Rajasegaran et al.,
"DeepCaps: Going Deeper with Capsule Networks", CVPR 2019, arXiv 1904.09546, and the authors' code.
Letters: i child types, j parent types, p positions of the map, d dimensions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps import ops
from torchcaps.errors import ArgumentError, check_positive, check_range
from torchcaps.functional.bounds import clamp_finite, factor_limit
from torchcaps.functional.fields import Convention, DenseField, spatial_first, spatial_last
from torchcaps.functional.squash import full_precision, squash, squash_with_length
from torchcaps.functional.votes import MapVotes, Votes
from torchcaps.nn.routed import MAP, RoutedLayer
from torchcaps.nn.routers import IterativeRouter, register_router
from torchcaps.nn.votes import BIAS, ModuleVotes, VotesModule
from torchcaps.types import Capsules, LayerSizes, Routed


@register_router("map")
class MapRouting(IterativeRouter):
    """Routing by agreement in which the map of a parent type is squashed as one vector.

        b_pij = 0
        repeat:
            k = softmax b, over the parents that compete for a child
            S_pj = sum_i k_pij V_pij + B_j
            n_j^2 = sum_pd S_pjd^2
            v_pj = S_pj n_j / (1 + n_j^2)
            b_pij += <V_pij, v_pj>, except in the last iteration

    Without positions this is dynamic routing. The first iteration has equal couplings.

    Args:
        iterations: from 1 to 100; the paper has 3.
        local: squash each parent by itself, in every field.
        impl: of local routing, "auto", "reference" or "numba"; see `torchcaps.ops`.
    """

    adds_bias = True

    def __init__(
        self, iterations: int = 3, *, local: bool = False, impl: ops.Impl = "auto"
    ) -> None:
        super().__init__(iterations)
        self.local = local
        self.impl = impl
        self.operators = ("map_routing",) if local else ()

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        return Routed._make(ops.in_blocks(self._route_block, votes))

    def _route_block(self, votes: Votes) -> Routed:
        if self.local:
            run = ops.fastest("map_routing", votes, self.impl)
            if run is not None:
                return run(votes, iterations=self.num_iterations)

        k = votes.couple()
        b = None
        for remaining in reversed(range(self.num_iterations)):
            S = votes.add_bias(votes.weighted(k))
            v, length = squash_with_length(S) if self.local else _squash_maps(S)
            if remaining:
                agreement = votes.agreement(v)
                b = agreement if b is None else b + agreement
                k = votes.couple(b)
        return Routed(v, length, k)


def _squash_maps(S: Tensor) -> tuple[Tensor, Tensor]:
    """Squash the map of each parent type as one vector; poses, and the lengths of each of them."""
    maps = S.movedim(-2, 1)  # [batch, j, *positions, d]
    v = squash(maps.flatten(2)).view(maps.shape).movedim(1, -2)
    return v, torch.linalg.vector_norm(v, dim=-1)


@dataclass(frozen=True)
class GlobalCompetition(DenseField):
    """Children at their parents' positions; the parents of ALL positions compete for a type."""

    convention: Convention = field(default="patch", init=False)

    def reduce_competing(self, x: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
        return reduce(x, dim=(1, 2, 4), keepdim=True)


def global_competition(height: int, width: int) -> GlobalCompetition:
    """The field of a map on which the parents of all positions compete."""
    return GlobalCompetition(positions=(height, width))


def per_position(height: int, width: int) -> DenseField:
    """The field of a map on which only the parents of one position compete."""
    return DenseField(positions=(height, width))


@dataclass(frozen=True)
class PerPosition(DenseField):
    """Children at their parents' positions, in memory as convolutions make them: positions last."""

    def softmax(self, log_weight: Tensor, leaky: bool = False) -> Tensor:
        if leaky:
            return super().softmax(log_weight, leaky)
        return spatial_first(spatial_last(log_weight).softmax(dim=2))


class _LazyKernelVotes(ModuleVotes, MapVotes):
    """Votes of `KernelVotes`, by one convolution in which the child types are samples."""

    recomputable = True

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
            votes = full_precision(self.module.convolve(pose.flatten(0, 1)))
        votes = votes.unflatten(1, (self.parents, self.dim))
        return self._clamped(votes.unflatten(0, pose.shape[:2]))


class KernelVotes(VotesModule):
    """The K x K window of a child type's map votes as one child, by a kernel that all types share.

    Args:
        sizes: of the layer.
        kernel_size: K, odd; for a transposed convolution as even or odd as the stride, and at least
            as large.
        stride: the map becomes that many times smaller, rounded up.
        transposed: the map becomes `stride` times larger instead.
        gain: of the initial kernel, times what He's rule gives for the numbers of a vote.

    Raises:
        ArgumentError: a size below 1, or a kernel that cannot be centered.
    """

    lazy_votes = _LazyKernelVotes
    bias: nn.Parameter

    def __init__(
        self,
        sizes: LayerSizes,
        kernel_size: int = 3,
        stride: int = 1,
        *,
        transposed: bool = False,
        gain: float = 1.0,
    ) -> None:
        super().__init__(sizes)
        check_positive(stride=stride)
        self.step = stride if transposed else 1
        check_range("kernel_size", kernel_size, low=self.step)
        if (kernel_size - self.step) % 2:
            raise ArgumentError(
                "kernel_size",
                f"expected an {'odd' if self.step % 2 else 'even'} number, got {kernel_size}",
            )
        self.stride = stride
        self.transposed = transposed
        self.gain = gain
        self.padding = (kernel_size - self.step) // 2
        channels = (sizes.parents * sizes.dim, sizes.in_dim)
        if transposed:
            channels = channels[::-1]
        self.weight = nn.Parameter(torch.empty(channels + 2 * (kernel_size,)))
        self.bias = nn.Parameter(torch.empty(sizes.parents, sizes.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the kernel anew; the bias becomes 0.1."""
        taps = (self.weight.shape[-1] / self.step) ** 2
        nn.init.normal_(self.weight, std=self.gain * (2.0 / (self.sizes.in_dim * taps)) ** 0.5)
        nn.init.constant_(self.bias, BIAS)

    def positions(self, height: int, width: int) -> DenseField:
        """The field of the parents of a map of this size."""
        if self.transposed:
            return PerPosition(positions=(height * self.stride, width * self.stride))
        return PerPosition(positions=(-(-height // self.stride), -(-width // self.stride)))

    def convolve(self, maps: Tensor) -> Tensor:
        """`[n, in_dim, height, width]` -> `[n, parents * dim, rows, columns]`."""
        convolution = F.conv_transpose2d if self.transposed else F.conv2d
        return convolution(maps, self.weight, stride=self.stride, padding=self.padding)


class KernelCaps(RoutedLayer):
    """Convolutional capsules whose child types share one kernel and vote once per position.

    Source: SegCaps, arXiv 1804.04241. Kernels start such that a parent's sum is about
    `2 sqrt(out_dim / in_dim)` times as long as its children: by He's rule alone poses fade to a few
    thousandths within a few layers, as squash shortens short vectors.

    Args:
        in_types, in_dim, out_types, out_dim: types of both maps, and dimensions of their poses.
        kernel_size, stride, transposed: see `KernelVotes`.
        iterations: of routing among the types of each position.

    Shapes:
        input Capsules with pose `[batch, height, width, in_types, in_dim]`; output Capsules with
        pose `[batch, rows, columns, out_types, out_dim]`. The coupling is
        `[batch, rows, columns, in_types, out_types]`.

    Example:
        >>> layer = KernelCaps(4, 16, 8, 32, kernel_size=5, stride=2)
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
        # Each of in_types votes has the coupling 1 / out_types.
        gain = 2 * out_types / (2 * in_types) ** 0.5
        votes = KernelVotes(sizes, kernel_size, stride, transposed=transposed, gain=gain)
        super().__init__(votes, MapRouting(iterations, local=True), votes.positions)
        self.expected = {"types": in_types}
