"""Votes: each child's prediction of each parent's pose, computed when a router asks for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Any, Literal, NamedTuple, Self

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import ArgumentError, check_floating, check_shape
from torchcaps.functional.bounds import clamp_finite, einsum_autocast, einsum_fp32, factor_limit
from torchcaps.functional.fields import DenseField, Field, spatial_first, spatial_last
from torchcaps.functional.geometry import matrix_votes
from torchcaps.functional.random_coupling import random_logits
from torchcaps.functional.squash import full_precision
from torchcaps.types import Capsules


def linear_votes(
    pose: Float[Tensor, "*batch children in_dim"],
    weight: Float[Tensor, "children parents dim in_dim"],
) -> Float[Tensor, "*batch children parents dim"]:
    """`vote_ij = weight[i, j] @ pose_i` (arXiv 1710.09829, equation 2): one matrix per pair of child and parent.

    Poses `[batch, *space, children, in_dim]` are taken in the type of the weight `[children, parents, dim, in_dim]`, as
    squash gives float32 for half precision. Votes `[batch, *space, children, parents, dim]` are float32 for weights in
    float16, which has no room for products. ValueError for shapes that do not fit, or other than floating point.
    """
    children, _, _, in_dim = weight.shape
    check_shape("pose", pose, ("*batch", "children", "in_dim"), children=children, in_dim=in_dim)
    return einsum_autocast("...id,ijkd->...ijk", pose, weight)


Over = Literal["parents", "children"]


class FixedCoupling(NamedTuple):
    """Couplings of an ablation: random ones of this seed and standard deviation, equal ones for 0.

    `uses` belongs to one call of a router and gets an entry whenever they are taken.
    """

    seed: int
    scale: float
    uses: list[None]


class RoutingContext(NamedTuple):
    """What one call of a router needs besides its votes.

    Attributes:
        needs_coupling: whether the coupling is used; a fast path may leave it out otherwise.
        clamp: whether stored votes beyond 2^32 (2^256 in float64) are clamped, so that squares stay finite.
        trace: list that receives the couplings of every iteration, or None.
        fixed: couplings of an ablation, or None.
    """

    needs_coupling: bool = True
    clamp: bool = False
    trace: list[Tensor] | None = None
    fixed: FixedCoupling | None = None

    @property
    def is_uniform(self) -> bool:
        """Whether an ablation asks for equal couplings."""
        return self.fixed is not None and self.fixed.scale == 0


class Votes(ABC):
    """What the children of a layer predict for their parents: lazy and immutable.

    Nothing is computed before it is asked for. `bind` gives the same votes for one call of a router;
    these keep what they have computed until the call ends.

    Letters: i children of one position, j parents, d dimensions of a vote.

    Args:
        children: pose `[batch, *space, n, in_dim]`, activation `[batch, *space, n]`: of the map.
        field: which of them vote for which parents.
        parents: j, at each position.
        dim: d.
        bias: `[parents, dim]` that the router adds to each parent's sum of votes, or None.

    Attributes:
        context: what the call that these votes are bound to needs.
        recomputable: whether `with_children` can make the votes of some of the samples.
        autocast_dtype: type of matrix products under the caller's autocast, or None; all else is in
            full precision.
    """

    context = RoutingContext()
    recomputable = False
    _memo: dict[str, Tensor] | None = None

    def __init__(
        self, children: Capsules, field: Field, parents: int, dim: int, bias: Tensor | None = None
    ) -> None:
        self.children = children
        self.field = field
        self.parents = parents
        self.dim = dim
        self.bias = bias
        device = children.pose.device.type
        casting = device != "meta" and torch.is_autocast_enabled(device)
        self.autocast_dtype = torch.get_autocast_dtype(device) if casting else None

    def bind(self, context: RoutingContext) -> Self:
        """The same votes for one call of a router."""
        return self._copy(context=context)

    def with_children(self, children: Capsules) -> Self:
        """The votes of other samples, `[batch, ...]` as `children`; for `recomputable` votes."""
        return self._copy(children=children)

    @property
    def pose(self) -> Float[Tensor, "batch *positions i in_dim"]:
        """Poses of each position's children; zeros for absent ones."""
        return self._memoized("pose", lambda: self.field.gather(self.children.pose))

    @property
    def activation(self) -> Float[Tensor, "batch *positions i"]:
        """Activations of each position's children, in full precision; 0 for absent ones."""
        return self._memoized(
            "activation", lambda: self.field.gather(full_precision(self.children.activation))
        )

    @property
    def mask(self) -> Float[Tensor, "#batch *positions i"] | None:
        """1 for children that are on the map, 0 for padding; None where all are.

        A router that counts children needs it: padding has poses and votes of zeros.
        """
        mask = self.field.mask(self.children.activation.shape[-1])
        return None if mask is None else mask.to(self.children.activation.device)

    @property
    def count(self) -> int:
        """i."""
        return self.field.count(self.children.activation.shape[-1])

    def dense(self) -> Float[Tensor, "batch *positions i j d"]:
        """Every vote, stored; in full precision."""
        return self._memoized("dense", lambda: self._clamped(full_precision(self._compute())))

    def per_child(self, x: Float[Tensor, " children *rest"]) -> Float[Tensor, " i *rest"]:
        """What a router has learned for each child, repeated where several children share a matrix."""
        times = self.count // len(x)
        return x if times == 1 else x.repeat(times, *[1] * (x.dim() - 1))

    def weighted(
        self, coefficients: Float[Tensor, "batch *positions i j"]
    ) -> Float[Tensor, "batch *positions j d"]:
        """Each parent's sum of votes with these coefficients; without the bias."""
        return einsum_fp32("...ij,...ijd->...jd", coefficients, self.dense())

    def sum(self) -> Float[Tensor, "batch *positions j d"]:
        """Each parent's sum of votes, all counted alike; without the bias."""
        ones = torch.ones_like(self._zeros())
        return self.weighted(ones if self.mask is None else ones * self.mask.unsqueeze(-1))

    def agreement(
        self, pose: Float[Tensor, "batch *positions j d"]
    ) -> Float[Tensor, "batch *positions i j"]:
        """The inner product of each vote with the parent that it is for."""
        return einsum_fp32("...jd,...ijd->...ij", pose, self.dense())

    def couple(
        self,
        logits: Float[Tensor, "batch *positions i j"] | None = None,
        *,
        leaky: bool = False,
        over: Over = "parents",
    ) -> Float[Tensor, "batch *positions i j"]:
        """Couplings: a softmax over the parents that compete for a child. Every router takes them from here.

        Without logits, and in an ablation whatever they are, couplings are equal, or fixed at random.
        With `leaky` one more parent competes, "none of the above", whose logit is 0. Over "children",
        those of a parent compete for it.
        """
        like = logits if logits is not None else self._zeros()
        if (fixed := self.context.fixed) is not None:
            fixed.uses.append(None)
            logits = _fixed_logits(like, fixed)
        if over == "children":
            coupling = (torch.zeros_like(like) if logits is None else logits).softmax(dim=-2)
        elif logits is None and not leaky:
            coupling = self.field.initial_coupling(like)
        else:
            coupling = self.field.softmax(
                torch.zeros_like(like) if logits is None else logits, leaky
            )
        if (mask := self.mask) is not None:
            coupling = coupling * mask.to(coupling).unsqueeze(-1)
        if self.context.trace is not None:
            self.context.trace.append(coupling)
        return coupling

    def without_fixed(self) -> Self:
        """The same for a routing that makes the couplings of an ablation by itself; notes that it does."""
        if self.context.fixed is not None:
            self.context.fixed.uses.append(None)
        return self.bind(self.context._replace(fixed=None))

    def _copy(self, **changes: Any) -> Self:
        votes = copy(self)
        votes.__dict__.update(changes, _memo={})
        return votes

    def _memoized(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """What was computed before in the call that these votes are bound to."""
        if self._memo is None:
            return compute()
        if name not in self._memo:
            self._memo[name] = compute()
        return self._memo[name]

    def _clamped(self, votes: Tensor) -> Tensor:
        return clamp_finite(votes, factor_limit) if self.context.clamp else votes

    def _autocast(self) -> AbstractContextManager[None]:
        """The caller's autocast, which routers are shielded from."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self.children.pose.device.type, self.autocast_dtype)

    def _zeros(self) -> Tensor:
        """Zeros in the shape of couplings."""
        shape = (len(self.children.pose), *self.field.positions, self.count, self.parents)
        return full_precision(self.children.activation).new_zeros(shape)

    @abstractmethod
    def _compute(self) -> Tensor:
        """`[batch, *positions, i, j, d]`."""


def _fixed_logits(like: Tensor, fixed: FixedCoupling) -> Tensor | None:
    """Logits of an ablation in this shape; None for equal couplings."""
    if fixed.scale == 0:
        return None
    children, parents = like.shape[-2:]
    logits = random_logits(children, parents, fixed.seed, scale=fixed.scale, device=like.device)
    return logits.to(like).expand(like.shape)


class DenseVotes(Votes):
    """Votes that exist already, with what is known of the children; ValueError for shapes that do not fit.

    Args:
        votes: `[batch, *positions, i, j, d]`.
        activation: `[batch, *positions, i]` in [0, 1]; 1 unless given.
        pose: `[batch, *positions, i, in_dim]`; without dimensions unless given.
        bias: see `Votes`.
        field: says which parents compete, at these positions; by default those of one position.
    """

    def __init__(
        self,
        votes: Float[Tensor, "*batch i j d"],
        activation: Float[Tensor, "*batch i"] | None = None,
        pose: Float[Tensor, "*batch i in_dim"] | None = None,
        bias: Tensor | None = None,
        field: Field | None = None,
    ) -> None:
        check_shape("votes", votes, ("*batch", "children", "parents", "dim"))
        activation = torch.ones_like(votes[..., 0, 0]) if activation is None else activation
        check_floating(votes=votes, bias=bias, activation=activation)
        if activation.shape != votes.shape[:-2]:
            raise ArgumentError(
                "activation",
                f"expected the votes' {list(votes.shape[:-2])}, got {list(activation.shape)}",
            )
        pose = activation.unsqueeze(-1)[..., :0] if pose is None else pose
        field = field or DenseField(positions=tuple(votes.shape[1:-3]))
        super().__init__(Capsules(pose, activation), field, votes.shape[-2], votes.shape[-1], bias)
        self.given = votes

    def _compute(self) -> Tensor:
        return self.given


class MapVotes(Votes):
    """Votes that are stored as maps: sums over children and over dimensions run along rows of a map."""

    @abstractmethod
    def maps(self) -> Float[Tensor, "batch i j d rows columns"]:
        """Every vote, stored; in full precision."""

    def weighted(self, coefficients: Tensor) -> Tensor:
        return spatial_first((spatial_last(coefficients).unsqueeze(3) * self.maps()).sum(dim=1))

    def agreement(self, pose: Tensor) -> Tensor:
        return spatial_first((spatial_last(pose).unsqueeze(1) * self.maps()).sum(dim=3))

    def _compute(self) -> Tensor:
        return spatial_first(self.maps())


class DenseMapVotes(MapVotes):
    """Maps of votes that exist already, of children that are there and have no pose; ValueError for other axes.

    Args:
        votes: `[batch, i, j, d, rows, columns]`.
        bias: see `Votes`.
    """

    def __init__(
        self, votes: Float[Tensor, "batch i j d rows columns"], bias: Tensor | None = None
    ) -> None:
        check_shape("votes", votes, ("batch", "children", "parents", "dim", "rows", "columns"))
        check_floating(votes=votes, bias=bias)
        batch, children, parents, dim, *positions = votes.shape
        one = votes.new_ones(()).expand(batch, *positions, children, 1)
        field = DenseField(positions=tuple(positions))
        super().__init__(Capsules(one[..., :0], one[..., 0]), field, parents, dim, bias)
        self.given = votes

    def maps(self) -> Tensor:
        return full_precision(self.given)


class ProductVotes(Votes):
    """Products of poses, as matrices, and matrices of weights: `V_ij = M_i W_ij + shift_ij`.

    A linear vote `weight[i, j] @ pose_i` is such a product with poses of one row and transposed weights.

    Args:
        children, field, bias: see `Votes`.
        weight: `[i, j, inner, outer]`, or `[i / k, j, inner, outer]` where the matrices repeat for k children in turn.
        shift: added to the votes, `[i or 1, j or 1, dim]`, or None.
    """

    recomputable = True

    def __init__(
        self,
        children: Capsules,
        field: Field,
        weight: Float[Tensor, "i j inner outer"],
        shift: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:
        inner, outer = weight.shape[2:]
        self.rows = children.pose.shape[-1] // inner
        super().__init__(children, field, weight.shape[1], self.rows * outer, bias)
        self.weight, self.shift = weight, shift

    @property
    def matrices(self) -> Float[Tensor, "i j inner outer"]:
        """The matrices of every child."""
        return self.per_child(self.weight)

    def sum(self) -> Tensor:
        if self.shift is not None:
            return super().sum()
        # One product over all children; absent ones have poses of zeros.
        with self._autocast():
            pose = full_precision(self.pose).unflatten(-1, (self.rows, -1))
            return full_precision(
                einsum_autocast("...ipr,ijrq->...jpq", pose, full_precision(self.matrices))
            ).flatten(-2)

    def _compute(self) -> Tensor:
        with self._autocast():
            if self.rows == 1:
                votes = linear_votes(self.pose, self.matrices.transpose(2, 3))
            else:
                votes = matrix_votes(self.pose, self.matrices)
        return votes if self.shift is None else full_precision(votes) + full_precision(self.shift)


AnyVotes = Votes | Float[Tensor, "*batch children parents dim"]
Bias = Float[Tensor, "parents dim"] | None


def as_votes(
    votes: Votes | Tensor, activation: Tensor | None = None, bias: Tensor | None = None
) -> Votes:
    """Votes for one call of a router; a tensor of votes becomes such.

    ArgumentError where shapes do not fit, and for an activation or a bias beside the votes of a
    layer, which have their own.
    """
    if not isinstance(votes, Votes):
        votes = DenseVotes(votes, activation, bias=bias)
    else:
        for name, tensor in (("activation", activation), ("bias", bias)):
            if tensor is not None:
                raise ArgumentError(
                    name, f"expected None beside {type(votes).__name__}, which have their own"
                )
    return votes.bind(votes.context) if votes._memo is None else votes
