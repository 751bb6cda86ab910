"""Votes: each child's prediction of each parent's pose, computed when a router asks for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import ArgumentError, check_floating, check_shape
from torchcaps.functional.bounds import FACTOR, bounded, multiplied, summed
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
    return multiplied("...id,ijkd->...ijk", pose, weight)


Over = Literal["parents", "children"]


class Votes(ABC):
    """What the children of a layer say about their parents. Nothing is computed before it is asked for.

    Letters: i children of one position, j parents, d dimensions of a vote.

    Args:
        children: pose `[batch, *space, n, in_dim]`, activation `[batch, *space, n]`: of the map.
        field: which of them vote for which parents.
        parents: j, at each position.
        dim: d.
        bias: `[parents, dim]` that the router adds to each parent's sum of votes, or None.

    Attributes:
        bound: whether stored votes beyond 2^32 (2^256 in float64) are taken for that, so that squares stay finite.
        wanted: whether somebody asked for the couplings; a fast path may leave them out otherwise.
        trace: a list that takes the couplings of every iteration, or None.
        fixed: (seed, scale) of couplings that are fixed at random in an ablation, equal ones for scale 0; or None.
        shares: how often couplings were asked for.
        bias_seen: whether somebody asked for the bias, or there is none.
        cast: the type of matrix products under the caller's autocast, or None; all else is in full precision.
    """

    def __init__(
        self, children: Capsules, field: Field, parents: int, dim: int, bias: Tensor | None = None
    ) -> None:
        self.children, self.field, self.parents, self.dim = children, field, parents, dim
        self._bias, self.bias_seen = bias, bias is None
        self.bound, self.wanted = False, True
        self.trace: list[Tensor] | None = None
        self.fixed: tuple[int, float] | None = None
        self.shares = 0
        device = children.pose.device.type
        cast = device != "meta" and torch.is_autocast_enabled(device)
        self.cast = torch.get_autocast_dtype(device) if cast else None
        self._dense: Tensor | None = None
        self._pose: Tensor | None = None
        self._activation: Tensor | None = None

    @property
    def bias(self) -> Float[Tensor, "parents dim"] | None:
        """What the router adds to each parent's sum of votes."""
        self.bias_seen = True
        return self._bias

    @property
    def pose(self) -> Float[Tensor, "batch *positions i in_dim"]:
        """Poses of each position's children; zeros for absent ones."""
        if self._pose is None:
            self._pose = self.field.gather(self.children.pose)
        return self._pose

    @property
    def activation(self) -> Float[Tensor, "batch *positions i"]:
        """Activations of each position's children, in full precision; 0 for absent ones."""
        if self._activation is None:
            self._activation = self.field.gather(full_precision(self.children.activation))
        return self._activation

    @property
    def present(self) -> Float[Tensor, "#batch *positions i"] | None:
        """1 for children that are there, 0 for padding; None where all are. A router that counts children needs it."""
        found = self.field.present(self.children.activation.shape[-1])
        return None if found is None else found.to(self.children.activation.device)

    def dense(self) -> Float[Tensor, "batch *positions i j d"]:
        """Every vote, stored; in full precision."""
        if self._dense is None:
            votes = full_precision(self._made())
            self._dense = bounded(votes, FACTOR) if self.bound else votes
        return self._dense

    def per_child(self, x: Float[Tensor, " children *rest"]) -> Float[Tensor, " i *rest"]:
        """What a router has learned for each child, repeated where several children share a matrix."""
        times = self.count // len(x)
        return x if times == 1 else x.repeat(times, *[1] * (x.dim() - 1))

    def remade(self) -> Callable[[Capsules], Votes] | None:
        """Makes the same votes, bias and all, of other samples of these children; None where they are given."""
        return None

    def settle(self) -> bool:
        """Whether an ablation asks for equal couplings: the router that asks makes them by itself, in a single pass."""
        if self.fixed is None or self.fixed[1] != 0:
            return False
        self.fixed, self.shares = None, self.shares + 1
        return True

    def weighted(
        self, coefficients: Float[Tensor, "batch *positions i j"]
    ) -> Float[Tensor, "batch *positions j d"]:
        """Each parent's sum of votes with these coefficients; without the bias."""
        return summed("...ij,...ijd->...jd", coefficients, self.dense())

    def total(self) -> Float[Tensor, "batch *positions j d"]:
        """Each parent's sum of votes, all counted alike; without the bias."""
        ones = torch.ones_like(self._like())
        return self.weighted(ones if self.present is None else ones * self.present.unsqueeze(-1))

    def agreement(
        self, pose: Float[Tensor, "batch *positions j d"]
    ) -> Float[Tensor, "batch *positions i j"]:
        """The inner product of each vote with the parent that it is for."""
        return summed("...jd,...ijd->...ij", pose, self.dense())

    def share(
        self,
        logits: Float[Tensor, "batch *positions i j"] | None = None,
        *,
        leaky: bool = False,
        over: Over = "parents",
    ) -> Float[Tensor, "batch *positions i j"]:
        """Couplings: a softmax over the parents that compete for a child. Every router takes them from here.

        Without logits, and in an ablation whatever they are, couplings are equal, or fixed at random. A leaky share
        lets one more parent compete, "none of the above", whose logit is 0. Over "children", those of a parent compete
        for it.
        """
        like = logits if logits is not None else self._like()
        if self.fixed is not None:
            seed, scale = self.fixed
            logits = random_logits(
                like.shape[-2], like.shape[-1], seed, scale=scale, device=like.device
            )
            logits = logits.to(like).expand(like.shape) if scale else None
        if over == "children":
            coupling = (torch.zeros_like(like) if logits is None else logits).softmax(dim=-2)
        elif logits is None and not leaky:
            coupling = self.field.first(like)
        else:
            coupling = self.field.share(torch.zeros_like(like) if logits is None else logits, leaky)
        if (present := self.present) is not None:
            coupling = coupling * present.to(coupling).unsqueeze(-1)
        self.shares += 1
        if self.trace is not None:
            self.trace.append(coupling)
        return coupling

    @property
    def count(self) -> int:
        """i."""
        return self.field.count(self.children.activation.shape[-1])

    def _casting(self) -> AbstractContextManager[None]:
        return (
            torch.autocast(self.children.pose.device.type, self.cast)
            if self.cast
            else nullcontext()
        )

    def _like(self) -> Tensor:
        """Zeros in the shape of couplings."""
        shape = (len(self.children.pose), *self.field.positions, self.count, self.parents)
        return full_precision(self.children.activation).new_zeros(shape)

    @abstractmethod
    def _made(self) -> Tensor:
        """`[batch, *positions, i, j, d]`."""


class DenseVotes(Votes):
    """Votes that exist already, with what is known of the children; ValueError for shapes that do not fit.

    Args:
        votes: `[batch, *positions, i, j, d]`.
        activation: `[batch, *positions, i]` in [0, 1]; 1 unless given.
        pose: `[batch, *positions, i, in_dim]`; without dimensions unless given.
        bias: see `Votes`.
    """

    def __init__(
        self,
        votes: Float[Tensor, "*batch i j d"],
        activation: Float[Tensor, "*batch i"] | None = None,
        pose: Float[Tensor, "*batch i in_dim"] | None = None,
        bias: Tensor | None = None,
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
        field = DenseField(positions=tuple(votes.shape[1:-3]))
        super().__init__(Capsules(pose, activation), field, votes.shape[-2], votes.shape[-1], bias)
        self.given = votes

    def _made(self) -> Tensor:
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

    def _made(self) -> Tensor:
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

    def total(self) -> Tensor:
        if self.shift is not None:
            return (
                super().total()
            )  # else one product over all children; absent ones have poses of zeros
        with self._casting():
            pose = full_precision(self.pose).unflatten(-1, (self.rows, -1))
            return full_precision(
                multiplied("...ipr,ijrq->...jpq", pose, full_precision(self.matrices))
            ).flatten(-2)

    def remade(self) -> Callable[[Capsules], Votes]:
        operands = self.field, self.weight, self.shift, self.bias
        return lambda children: ProductVotes(children, *operands)

    def _made(self) -> Tensor:
        with self._casting():
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
    """Votes as they are, or given ones as such; ValueError where shapes do not fit."""
    return votes if isinstance(votes, Votes) else DenseVotes(votes, activation, bias=bias)
