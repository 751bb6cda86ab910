"""Votes: each child's prediction of each parent's pose, computed when a router asks for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from torchcaps.errors import ArgumentError, check_floating, check_shape
from torchcaps.functional.bounds import (
    autocast_dtype,
    clamp_finite,
    einsum_autocast,
    einsum_fp32,
    factor_limit,
    full_precision,
)
from torchcaps.functional.fields import DenseField, Field, Pairs, spatial_first, spatial_last
from torchcaps.functional.geometry import matrix_votes
from torchcaps.functional.random_coupling import random_logits
from torchcaps.transfer import to_device
from torchcaps.types import Capsules

Parents = Float[Tensor, "batch *positions j d"]
Over = Literal["parents", "children"]


def linear_votes(
    pose: Float[Tensor, "*batch children in_dim"],
    weight: Float[Tensor, "children parents dim in_dim"],
) -> Float[Tensor, "*batch children parents dim"]:
    """Votes by one matrix for each pair of child and parent: `vote_ij = weight[i, j] @ pose_i`.

    Source: arXiv 1710.09829, equation 2.

    Args:
        pose: `[batch, *space, children, in_dim]`; cast to the type of the weight, because squash
            returns float32 for half precision too.
        weight: `[children, parents, dim, in_dim]`.

    Returns:
        Votes `[batch, *space, children, parents, dim]`; in float32 for weights in float16, which
        has no room for the products.

    Raises:
        ArgumentError: shapes that do not fit, or tensors that are not of floating point.
    """
    children, _, _, in_dim = weight.shape
    check_shape("pose", pose, ("*batch", "children", "in_dim"), children=children, in_dim=in_dim)
    return einsum_autocast("...id,ijkd->...ijk", pose, weight)


class FixedCoupling(NamedTuple):
    """Couplings of an ablation, the same for every sample.

    Attributes:
        seed: of random couplings.
        scale: standard deviation of their logits; 0 for equal couplings.
        uses: gets an entry at each use, so that a router can be checked to have used them.
    """

    seed: int
    scale: float
    uses: list[None]

    def make_logits(self, like: Tensor) -> Tensor | None:
        """Logits of these couplings, in the shape and type of `like`; None for equal ones."""
        self.uses.append(None)
        if self.scale == 0:
            return None
        children, parents = like.shape[-2:]
        logits = random_logits(children, parents, self.seed, scale=self.scale, device=like.device)
        return logits.to(like).expand_as(like)


@dataclass(frozen=True)  # torch 2.11 compiles no `_replace` of a NamedTuple
class RoutingContext:
    """What one call of a router needs besides its votes.

    Attributes:
        needs_coupling: whether the coupling is used; otherwise a fast path may leave it out.
        clamp: whether stored votes are clamped to 2^32 (2^256 in float64), so that their squares
            stay finite.
        trace: list to which each call of `Votes.couple` appends its couplings, or None. A router
            calls it exactly once an iteration, so that the list has one entry of each.
        fixed: couplings of an ablation, or None.
        extras: dictionary to which `record` adds further tensors, or None.
    """

    needs_coupling: bool = True
    clamp: bool = False
    trace: list[Tensor] | None = None
    fixed: FixedCoupling | None = None
    extras: dict[str, Tensor] | None = None

    def record(self, **extras: Tensor) -> None:
        """Keep further tensors of a router by name, such as logits, where the caller wants them.

        Args:
            extras: tensors of any shape with the batch first.
        """
        if self.extras is not None:
            self.extras.update(extras)

    @property
    def is_uniform(self) -> bool:
        """Whether an ablation asks for equal couplings."""
        return self.fixed is not None and self.fixed.scale == 0

    def without_fixed(self) -> RoutingContext:
        """This context without the couplings of an ablation, for a router that makes them itself."""
        if self.fixed is not None:
            self.fixed.uses.append(None)
        return replace(self, fixed=None)


# What `Votes.bind` copies: the attributes of all votes.
ATTRIBUTES = (
    "context",
    "children",
    "field",
    "parents",
    "dim",
    "bias",
    "present",
    "autocast_dtype",
)


class Votes(ABC):
    """What the children of a layer predict for their parents: lazy and immutable.

    Nothing is computed before it is needed. `bind` gives the same votes for one call of a router;
    these keep what they have computed until the call ends.

    Letters: i children of one position, j parents, d dimensions of a vote.

    Args:
        children: pose `[batch, *space, n, in_dim]` and activation `[batch, *space, n]` of the map.
        field: which of them vote for which parents.
        parents: j, at each position.
        dim: d.
        bias: `[parents, dim]` that the router adds to each parent's sum of votes, or None.

    Attributes:
        context: what the call that these votes are bound to needs.
        recomputable: whether `with_children` can make the votes of some of the samples.
        present: which children are there, `[batch, *space, n]`; None for all. See `mask_votes`.
        autocast_dtype: type of matrix products under the caller's autocast, or None. Everything
            else is computed in full precision.
        added: names of the attributes that a subclass sets besides, which `bind` copies too.
    """

    context = RoutingContext()
    recomputable = False
    present: Tensor | None = None
    added: tuple[str, ...] = ()
    _memo: dict[str, Tensor] | None = None

    def __init__(
        self,
        children: Capsules,
        field: Field,
        parents: int,
        dim: int,
        bias: Tensor | None = None,
    ) -> None:
        self.children = children
        self.field = field
        self.parents = parents
        self.dim = dim
        self.bias = bias
        self.autocast_dtype = autocast_dtype(children.pose)

    def bind(self, context: RoutingContext) -> Self:
        """The same votes for one call of a router.

        Args:
            context: what the caller needs of this call, such as fixed couplings.

        Returns:
            Votes with this context.
        """
        return self._copy(context=context)

    def with_children(self, children: Capsules, present: Tensor | None = None) -> Self:
        """The votes of other samples; for votes that are `recomputable`.

        Args:
            children: capsules `[batch, *space, types]` of any batch.
            present: which of them are present, `[batch, *space, types]`; None for all.

        Returns:
            The votes of these children.
        """
        return self._copy(children=children, present=present)

    @property
    def pose(self) -> Float[Tensor, "batch *positions i in_dim"]:
        """Poses of each position's children; zeros for absent ones."""
        return self._memoized("pose", lambda: self.field.gather(self.children.pose))

    @property
    def activation(self) -> Float[Tensor, "batch *positions i"]:
        """Activations of each position's children, in full precision; 0 for absent ones."""
        activation = self.children.activation
        return self._memoized("activation", lambda: self.field.gather(full_precision(activation)))

    @property
    def mask(self) -> Float[Tensor, "#batch *positions i"] | None:
        """1 for children that are present, 0 for padding; None without padding.

        A router that counts children needs it: padding has poses and votes of zeros.
        """
        if self.present is not None:
            return self.field.gather(self.present.to(full_precision(self.children.activation)))
        mask = self.field.mask(self.count // self.field.count(1))
        return None if mask is None else to_device(mask, self.children.activation.device)

    @property
    def count(self) -> int:
        """Number of children of each position, i."""
        return self.field.count(self.children.activation.shape[-1])

    def dense(self) -> Float[Tensor, "batch *positions i j d"]:
        """Every vote, stored, in full precision."""
        return self._memoized("dense", lambda: self._clamped(full_precision(self._compute())))

    def weighted(self, coefficients: Pairs) -> Parents:
        """Each parent's weighted sum of votes, without the bias.

        Args:
            coefficients: `[batch, *positions, i, j]`, any numbers.

        Returns:
            `[batch, *positions, j, d]` in float32 or wider.
        """
        return einsum_fp32("...ij,...ijd->...jd", coefficients, self.dense())

    def add_bias(self, x: Tensor) -> Tensor:
        """Add the learned bias of each parent to votes or their sums, if there is one.

        Args:
            x: `[..., j, d]` in float32 or wider.

        Returns:
            `[..., j, d]`.
        """
        return x if self.bias is None else x + full_precision(self.bias)

    def sum(self) -> Parents:
        """Each parent's sum of votes with coefficients of 1, without the bias."""
        ones = torch.ones_like(_zeros(self))
        return self.weighted(ones if self.mask is None else ones * self.mask.unsqueeze(-1))

    def agreement(self, pose: Parents) -> Pairs:
        """The inner product of each vote with the pose of its parent.

        Args:
            pose: of the parents, `[batch, *positions, j, d]`.

        Returns:
            `[batch, *positions, i, j]` in float32 or wider.
        """
        return einsum_fp32("...jd,...ijd->...ij", pose, self.dense())

    def couple(
        self,
        logits: Pairs | None = None,
        *,
        leaky: bool = False,
        over: Over = "parents",
    ) -> Pairs:
        """Couplings: a softmax over the parents that compete for a child.

        Every router takes its couplings from here, by exactly one call an iteration: in an ablation
        they are equal, or random and fixed, whatever the logits are, and a trace records each call.

        Args:
            logits: `[batch, *positions, i, j]`; None for equal couplings.
            leaky: let one more parent of logit 0, "none of the above", compete.
            over: "children" lets the children of a parent compete for it.

        Returns:
            Couplings of the shape of the logits; 0 for absent children.
        """
        like = _zeros(self) if logits is None else logits
        if self.context.fixed is not None:
            logits = self.context.fixed.make_logits(like)
        logits = _without_absent(self, like, logits, over)
        if logits is None and over == "parents" and not leaky:
            coupling = self.field.initial_coupling(like)
        else:
            logits = torch.zeros_like(like) if logits is None else logits
            is_over_parents = over == "parents"
            coupling = self.field.softmax(logits, leaky) if is_over_parents else logits.softmax(-2)
        if (mask := self.mask) is not None:
            coupling = coupling * mask.to(coupling).unsqueeze(-1)
        if self.context.trace is not None:
            self.context.trace.append(coupling)
        return coupling

    def _copy(self, **changes: Any) -> Self:
        votes = object.__new__(type(self))  # torch 2.11 compiles neither `copy` nor `vars`
        for name in ATTRIBUTES + self.added:
            setattr(votes, name, changes.get(name, getattr(self, name)))
        votes._memo = {}
        return votes

    def _memoized(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """A tensor that is computed once in the call that these votes are bound to."""
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

    @abstractmethod
    def _compute(self) -> Tensor:
        """Votes `[batch, *positions, i, j, d]`."""


def mask_votes(votes: Votes, mask: Bool[Tensor, "batch *space n"]) -> Votes:
    """The same votes without some children, as if they were not there.

    Args:
        votes: of a layer.
        mask: True for children that are present.

    Returns:
        Votes in which the others have poses, activations and couplings of zero, whatever numbers
        they came with.
    """
    pose, activation = votes.children
    children = Capsules(
        pose.masked_fill(~mask.unsqueeze(-1), 0),
        activation.masked_fill(~mask, 0),
    )
    return votes.with_children(children, mask if votes.present is None else mask & votes.present)


def num_voters(votes: Votes) -> Float[Tensor, "batch *positions 1 1"] | int:
    """Number of children, `count`; of masked votes that of the present ones, at least 1."""
    if votes.present is None:
        return votes.count
    total = votes.field.gather(votes.present).sum(dim=-1).clamp(min=1)
    return total.to(full_precision(votes.children.activation))[..., None, None]


def _without_absent(votes: Votes, like: Pairs, logits: Pairs | None, over: Over) -> Pairs | None:
    """Logits that let absent children lose where children compete with each other."""
    # In a "patch" a place in the window stands for a child: the children at that place compete.
    is_patch = votes.field.convention == "patch" and votes.present is not None
    if votes.mask is None or not (is_patch or over == "children"):
        return logits
    logits = torch.zeros_like(like) if logits is None else logits
    return logits.masked_fill(votes.mask.unsqueeze(-1) == 0, torch.finfo(like.dtype).min)


def _zeros(votes: Votes) -> Pairs:
    """Zeros in the shape of couplings."""
    pose, activation = votes.children
    shape = (pose.shape[0], *votes.field.positions, votes.count, votes.parents)
    return full_precision(activation).new_zeros(shape)


def per_child(x: Float[Tensor, " children *rest"], count: int) -> Float[Tensor, " i *rest"]:
    """Parameters of each child, repeated where several children share them.

    Args:
        x: `[children, *rest]`, of the children that have parameters of their own.
        count: number of children of each position, i.

    Returns:
        `[i, *rest]`, of all children of a position.
    """
    times = count // len(x)
    return x if times == 1 else x.repeat([times] + [1] * (x.dim() - 1))


class DenseVotes(Votes):
    """Votes that are given, not computed; the children stand at the positions of their parents.

    Args:
        votes: `[batch, *positions, i, j, d]`.
        activation: of the children, `[batch, *positions, i]` in [0, 1]; by default 1.
        pose: of the children, `[batch, *positions, i, in_dim]`; by default without dimensions.
        bias: see `Votes`.
        field: says which parents compete, at these positions, and which children are absent; by
            default the parents of one position compete.

    Raises:
        ArgumentError: shapes that do not fit, or tensors that are not of floating point.
    """

    added = ("_votes",)

    def __init__(
        self,
        votes: Float[Tensor, "*batch i j d"],
        activation: Float[Tensor, "*batch i"] | None = None,
        pose: Float[Tensor, "*batch i in_dim"] | None = None,
        bias: Tensor | None = None,
        field: Field | None = None,
    ) -> None:
        check_shape("votes", votes, ("*batch", "children", "parents", "dim"))
        if activation is None:
            activation = torch.ones_like(votes[..., 0, 0])
        check_floating(votes=votes, bias=bias, activation=activation)
        if activation.shape != votes.shape[:-2]:
            raise ArgumentError(
                "activation",
                f"expected the votes' {list(votes.shape[:-2])}, got {list(activation.shape)}",
            )
        if pose is None:
            pose = activation.unsqueeze(-1)[..., :0]
        parents, dim = votes.shape[-2:]
        field = field or DenseField(positions=tuple(votes.shape[1:-3]))
        super().__init__(Capsules(pose, activation), field, parents, dim, bias)
        self._votes = votes

    @property
    def pose(self) -> Tensor:
        return self.children.pose

    @property
    def activation(self) -> Tensor:
        return full_precision(self.children.activation)

    @property
    def count(self) -> int:
        return self._votes.shape[-3]

    def _compute(self) -> Tensor:
        if self.present is None:
            return self._votes
        return self._votes.masked_fill(~self.present[..., None, None], 0)


class MapVotes(Votes):
    """Votes that are stored as maps: rows and columns are the last axes, as of images in torch."""

    @abstractmethod
    def maps(self) -> Float[Tensor, "batch i j d rows columns"]:
        """Every vote, stored, in full precision."""

    def weighted(self, coefficients: Tensor) -> Tensor:
        products = spatial_last(coefficients).unsqueeze(3) * self.maps()
        return spatial_first(products.sum(dim=1))

    def agreement(self, pose: Tensor) -> Tensor:
        products = spatial_last(pose).unsqueeze(1) * self.maps()
        return spatial_first(products.sum(dim=3))

    def _compute(self) -> Tensor:
        return spatial_first(self.maps())


class ProductVotes(Votes):
    """Products of poses, as matrices, and matrices of weights: `V_ij = M_i W_ij + shift_ij`.

    A linear vote `weight[i, j] @ pose_i` is such a product with poses of one row and transposed
    weights.

    Args:
        children, field, bias: see `Votes`.
        weight: `[i, j, inner, outer]`; or `[m, j, inner, outer]` with fewer matrices than children:
            child n has those of index n modulo m.
        shift: added to the votes, `[i or 1, j or 1, dim]`, or None.
    """

    recomputable = True
    added = ("rows", "weight", "shift")

    def __init__(
        self,
        children: Capsules,
        field: Field,
        weight: Float[Tensor, "i j inner outer"],
        shift: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:
        _, parents, inner, outer = weight.shape
        self.rows = children.pose.shape[-1] // inner
        self.weight = weight
        self.shift = shift
        super().__init__(children, field, parents, self.rows * outer, bias)

    @property
    def matrices(self) -> Float[Tensor, "i j inner outer"]:
        """The matrices of every child."""
        return per_child(self.weight, self.count)

    def sum(self) -> Tensor:
        if self.shift is not None:
            return super().sum()
        # One product over all children; absent ones have poses of zeros.
        with self._autocast():
            pose = full_precision(self.pose).unflatten(-1, (self.rows, -1))
            sums = einsum_autocast("...ipr,ijrq->...jpq", pose, full_precision(self.matrices))
            return full_precision(sums).flatten(-2)

    def _compute(self) -> Tensor:
        with self._autocast():
            if self.rows == 1:
                votes = linear_votes(self.pose, self.matrices.transpose(2, 3))
            else:
                votes = matrix_votes(self.pose, self.matrices)
        if self.shift is None:
            return votes
        return full_precision(votes) + full_precision(self.shift)


AnyVotes = Votes | Float[Tensor, "*batch children parents dim"]
Bias = Float[Tensor, "parents dim"] | None


def as_votes(
    votes: Votes | Tensor, activation: Tensor | None = None, bias: Tensor | None = None
) -> Votes:
    """Votes for one call of a router.

    Args:
        votes: of a layer, or a tensor `[batch, *space, children, parents, dim]`.
        activation: of the children of a tensor of votes.
        bias: added to the sums of a tensor of votes.

    Returns:
        Votes that keep what they have computed.

    Raises:
        ArgumentError: shapes that do not fit, or an activation or a bias beside the votes of a
            layer, which have their own.
    """
    if isinstance(votes, Tensor):
        votes = DenseVotes(votes, activation, bias=bias)
    else:
        for name, tensor in (("activation", activation), ("bias", bias)):
            if tensor is not None:
                raise ArgumentError(
                    name, f"expected None beside {type(votes).__name__}, which have their own"
                )
    return votes.bind(votes.context) if votes._memo is None else votes


def straightness(
    coupling: Float[Tensor, "*batch children parents"], votes: AnyVotes
) -> Float[Tensor, "*batch parents"]:
    """How far the votes that a parent receives agree: `|sum_i c_ij u_ij| / sum_i |c_ij u_ij|`.

    It is 1 where all votes of a parent have one direction, about 1 / sqrt(children) where their
    directions are random and their weights equal, and 0 where they cancel.

    Source: the ratio of net to total length that statistics of directions calls the mean resultant
    length (Mardia, Jupp, "Directional Statistics", 2000), weighted by couplings and lengths.

    Args:
        coupling: c, `[batch, *space, children, parents]`, such as that of `Routed`.
        votes: u, `[batch, *space, children, parents, dim]`, or the votes of a layer.

    Returns:
        `[batch, *space, parents]` in [0, 1] up to rounding, in float32 or wider; 0 for a parent
        whose votes or couplings are all zero.

    Raises:
        ArgumentError: shapes that do not fit, or tensors that are not of floating point.
    """
    check_floating(coupling=coupling)
    u = full_precision(as_votes(votes).dense())
    children, parents = u.shape[-3:-1]
    axes = ("*batch", "children", "parents")
    check_shape("coupling", coupling, axes, children=children, parents=parents)
    tiny = torch.finfo(u.dtype).tiny
    # In units of the largest number of each parent, so that squares are finite and not all zero.
    c, u = (
        x / x.detach().abs().amax(dim=(-3, -1), keepdim=True).clamp(min=tiny**0.5)
        for x in (full_precision(coupling).unsqueeze(-1), u)
    )
    weighted = c * u
    return weighted.sum(dim=-3).norm(dim=-1) / weighted.norm(dim=-1).sum(dim=-2).clamp(min=tiny)
