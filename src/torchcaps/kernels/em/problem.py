"""What the fast paths of EM routing share: operands of an operator, made from lazy votes, and memory for the outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.functional.bounds import FACTOR, STEADY, limit
from torchcaps.functional.fields import Windows
from torchcaps.functional.squash import full_precision
from torchcaps.functional.votes import ProductVotes, Votes
from torchcaps.kernels.dynamic.linear import outcome
from torchcaps.kernels.fields import padded_map, padded_windows
from torchcaps.kernels.numerics import largest, within
from torchcaps.kernels.support import elsewhere, operands, watched
from torchcaps.types import Routed


class Problem(NamedTuple):
    """Operands of an operator. Outcomes: mu `[b, *windows, j, H]`, a `[b, *windows, j]`, coupling `[..., i, j]`.

    pose `[b, h, w, n, rows * inner]`, activation `[b, h, w, n]`, weight `[i, j, inner, outer]`, betas `[j]`,
    shift `[1 or i, 1 or j, H]`; all of one type. The coupling is empty unless wanted.
    """

    pose: Tensor
    activation: Tensor
    weight: Tensor
    beta_u: Tensor
    beta_a: Tensor
    shift: Tensor | None
    kernel: int
    stride: int
    convention: str
    temperatures: list[float]
    want_coupling: bool

    @property
    def windows(self) -> Windows:
        """How they lie on the map."""
        return Windows(*self.pose.shape[1:3], self.kernel, self.stride, 0, self.convention)  # type: ignore[arg-type]

    def bounded(self) -> Problem:
        """The same, so bounded that squares of votes stay finite."""
        most, vote = limit(self.weight.dtype, STEADY), limit(self.weight.dtype, FACTOR)
        weight = within(self.weight, most)
        pose = within(self.pose, vote / (weight.shape[2] * max(1.0, largest(weight))))
        shift = None if self.shift is None else within(self.shift, vote)
        return self._replace(pose=pose, activation=within(self.activation, most), weight=weight, shift=shift)


def shapes(x: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the outcomes."""
    children, parents, inner, outer = x.weight.shape
    batch, height, width = x.pose.shape[:3]
    lead = (batch, (height - x.kernel) // x.stride + 1, (width - x.kernel) // x.stride + 1)
    coupling = x.weight.new_empty((*lead, children, parents) if x.want_coupling else (0,))
    mu = x.weight.new_empty(*lead, parents, x.pose.shape[-1] // inner * outer)
    return mu, x.weight.new_empty(*lead, parents), coupling


def unusable(votes: Votes, device: torch.device) -> str | None:
    """Why no operator can take these votes on that device."""
    if not isinstance(votes, ProductVotes):
        return "the votes are given, not made of poses and matrices"
    if not votes.field.local and padded_windows(votes.field) is None:
        return f"parents of {type(votes.field).__name__} compete in a way of their own"
    return watched(votes) or elsewhere(operands(votes), device)


def route(
    op: Callable[[Problem], tuple[Tensor, ...]], votes: Any, beta_u: Tensor | float, beta_a: Tensor | float,
    temperatures: list[float],
) -> Routed:  # fmt: skip
    """Run the operator on products of poses and matrices; the bias is one more shift."""
    weight, windows = full_precision(votes.matrices), padded_windows(votes.field)
    lead, shift = votes.activation.shape[:-1], votes.shift
    if windows is None:
        pose, activation = (x.flatten(0, len(lead) - 1)[:, None, None] for x in (votes.pose, votes.activation))
        windows = Windows(1, 1, 1, convention=votes.field.convention)
    else:
        pose, activation = (padded_map(votes.field, x) for x in votes.children)
    if votes.bias is not None:
        added = full_precision(votes.bias).unsqueeze(0)
        shift = added if shift is None else full_precision(shift) + added
    betas = (
        torch.as_tensor(b, dtype=weight.dtype, device=weight.device).expand(votes.parents) for b in (beta_u, beta_a)
    )
    tensors = (None if x is None else x.to(weight.dtype) for x in (pose, activation, weight, *betas, shift))
    settings = (windows.kernel, windows.stride, windows.convention, temperatures, votes.wanted)
    mu, length, coupling, *_ = op(Problem(*tensors, *settings))  # type: ignore[arg-type]
    flat = (x.flatten(0, 2) if x.dim() > 2 else x for x in (mu, length, coupling))
    return outcome(votes, lead, *flat)
