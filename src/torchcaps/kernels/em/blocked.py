"""Matrix votes and EM routing on a CPU, a block of samples at a time, with recomputation in the backward pass.

The votes of a batch are never stored, and nothing of the iterations is kept but what went in. Votes of a block lie
beside their squares, so that sums of (V - mu)^2, weighted over children or divided by variances, are one product each:

    sum (V - mu)^2 = sum V^2 - 2 mu sum V + mu^2 sum 1

Votes are taken from their mean over children first, which keeps the difference of large numbers harmless. Letters:
b samples of a block, w windows, i children of a window, j parents, h pose dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.functional.fields import Windows
from torchcaps.functional.routing.em import EPSILON, VAR_MIN
from torchcaps.functional.votes import Votes
from torchcaps.kernels.em.problem import Problem, route, shapes, unusable
from torchcaps.kernels.operator import Parts, operator
from torchcaps.kernels.registry import Support, fast_path
from torchcaps.types import Routed

# Votes of one block and their squares, in bytes; a GPU needs more work at a time.
BLOCK_BYTES, GPU_BLOCK_BYTES = 4 << 20, 256 << 20


def supports(votes: Votes) -> Support:
    """Whether blocks of samples can take these votes."""
    device = votes.children.pose.device
    reason = unusable(votes, device)
    if reason is None and device.type == "meta":
        reason = "tensors on meta hold no numbers"
    if reason is not None:
        return Support(False, reason)
    return Support(True, "blocked over samples: the votes of a batch are never stored")


@fast_path("em_routing", "blocked", supports, rank=20)
def run(votes: Votes, *, beta_u: Tensor | float, beta_a: Tensor | float, temperatures: list[float]) -> Routed:
    """EM routing of products of poses and matrices."""
    return route(_routed, votes, beta_u, beta_a, temperatures)


def _forward(x: Problem) -> tuple[Tensor, ...]:
    x = x.bounded()
    parents, length, coupling = shapes(x)
    for rows in _blocks(x, parents):
        block = Block(x, rows)
        fit = block.fits(x.beta_u, x.beta_a, x.temperatures)[-1]
        parents[rows] = (fit.mean + block.centre).view_as(parents[rows])
        length[rows] = torch.sigmoid(fit.logit).view_as(length[rows])
        if x.want_coupling:
            coupling[rows] = fit.coupling.transpose(-1, -2).view_as(coupling[rows])
    return parents, length, coupling


def _backward(x: Problem, kept: Sequence[Tensor], grads: Sequence[Tensor], wanted: Sequence[bool]) -> Sequence[Tensor]:
    del kept, wanted  # each is made on the way to the others
    x = x.bounded()
    grad_parents, grad_length, grad_coupling = grads
    children, parents, inner, outer = x.weight.shape
    grad_pose, grad_activation, grad_u, grad_a = (
        torch.zeros_like(y) for y in (x.pose, x.activation, x.beta_u, x.beta_a)
    )
    flat = x.weight.transpose(1, 2).reshape(children, inner, parents * outer)
    grad_weight = torch.zeros_like(flat)
    grad_shift = flat.new_zeros(parents, x.pose.shape[-1] // inner * outer, children)
    for rows in _blocks(x, grad_parents):
        block = Block(x, rows)
        fits = block.fits(x.beta_u, x.beta_a, x.temperatures)
        length = torch.sigmoid(fits[-1].logit)
        grad_logit = grad_length[rows].flatten(1, 2) * length * (1 - length)
        through = grad_coupling[rows].flatten(1, 2).transpose(-1, -2) if x.want_coupling else None
        votes, a, u, b = block.backward(
            fits, x.beta_u, x.temperatures, grad_parents[rows].flatten(1, 2), grad_logit, through
        )
        grad_u += u
        grad_a += b
        if x.shift is not None:
            grad_shift += votes.sum(dim=(0, 1))
        grad_activation[rows] = block.windows.scatter(a.unflatten(1, block.windows.positions))
        # [i, b w rows, j outer]: what both products over votes want
        columns = votes.unflatten(3, (-1, outer)).permute(5, 0, 1, 3, 2, 4).reshape(children, -1, parents * outer)
        grad_weight.baddbmm_(block.matrices.permute(4, 3, 0, 1, 2).reshape(children, inner, -1), columns)
        poses = torch.bmm(columns, flat.transpose(1, 2)).view(children, len(a), *block.windows.positions, -1)
        grad_pose[rows] = _folded(poses, block.windows)
    grad_weight = grad_weight.view(children, inner, parents, outer).transpose(1, 2)
    return grad_pose, grad_activation, grad_weight, grad_u, grad_a, grad_shift.movedim(-1, 0)


_routed = operator("em_routing_blocked", Problem, 3, Parts(_forward, _backward, shapes))


class Fit(NamedTuple):
    """One M-step: what the backward pass needs of it. Means are relative to `Block.centre`."""

    coupling: Tensor  # R [b, w, j, i]
    weight: Tensor  # R a / (S + epsilon), likewise
    data: Tensor  # S [b, w, j]
    first: Tensor  # sum of weight * vote [b, w, j, h]
    mean: Tensor  # [b, w, j, h]
    var: Tensor  # [b, w, j, h]
    logit: Tensor  # [b, w, j]

    @property
    def total(self) -> Tensor:
        """Sum of the weights, almost one, `[b, w, j, 1]`."""
        return (self.data / (self.data + EPSILON)).unsqueeze(-1)


class Block:
    """Votes of some samples, and routing forth and back. Layouts end with children: `[b, w, j, h, i]`."""

    def __init__(self, x: Problem, samples: slice) -> None:
        self.windows = x.windows
        inner = x.weight.shape[2]
        poses = self.windows.gather(x.pose[samples]).flatten(1, 2)
        self.matrices = poses.unflatten(-1, (-1, inner)).permute(0, 1, 3, 4, 2)
        self.children = self.windows.gather(x.activation[samples]).flatten(1, 2).unsqueeze(2)  # [b, w, 1, i]
        self.squared = self._votes(x.weight.permute(1, 2, 3, 0).contiguous(), x.shift)

    def _votes(self, weight: Tensor, shift: Tensor | None) -> Tensor:
        """Centred votes and their squares, `[b, w, j, 2 h, i]`; `weight` is `[j, inner, outer, i]`."""
        b, w, rows, inner, i = self.matrices.shape
        j, _, outer, _ = weight.shape
        both = weight.new_empty(b, w, j, 2, rows, outer, i)
        votes = both[:, :, :, 0]
        poses = self.matrices.contiguous()
        torch.mul(poses[:, :, None, :, 0, None], weight[None, None, :, None, 0], out=votes)
        for r in range(1, inner):
            votes.addcmul_(poses[:, :, None, :, r, None], weight[None, None, :, None, r])
        if shift is not None:
            votes.add_(shift.permute(1, 2, 0).unflatten(1, (rows, outer)))
        centre = votes.mean(dim=-1, keepdim=True)
        votes.sub_(centre)
        torch.mul(votes, votes, out=both[:, :, :, 1])
        self.centre = centre.flatten(3)  # [b, w, j, h]
        return both.flatten(3, 5)

    @property
    def votes(self) -> Tensor:
        """Centred votes `[b, w, j, h, i]`."""
        return self.squared[:, :, :, : self.squared.shape[3] // 2]

    def over_children(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of weighted votes and of weighted squares, `[b, w, j, h]` each; `weight` is `[b, w, j, i]`."""
        sums = torch.matmul(self.squared, weight.unsqueeze(-1)).squeeze(-1)
        first, second = sums.chunk(2, dim=-1)
        return first, second

    def over_dimensions(self, linear: Tensor, square: Tensor) -> Tensor:
        """`sum_h linear_h V_h + square_h V_h^2`, `[b, w, j, i]`."""
        return torch.matmul(torch.cat([linear, square], dim=-1).unsqueeze(-2), self.squared).squeeze(-2)

    def share(self, log_weight: Tensor) -> Tensor:
        """Softmax over a child's parents, of `[b, w, j, i]`."""
        return self._as_links(log_weight, self.windows.share)

    def among_parents(self, x: Tensor) -> Tensor:
        """Sum over the parents that compete for a child, in the place of each."""
        return self._as_links(x, self.windows.total)

    def _as_links(self, x: Tensor, change: Any) -> Tensor:
        links = x.unflatten(1, self.windows.positions).transpose(-1, -2)  # [b, rows, columns, i, j]
        changed: Tensor = change(links)
        return changed.transpose(-1, -2).flatten(1, 2) if changed.dim() == links.dim() else changed

    def fits(self, beta_u: Tensor, beta_a: Tensor, temperatures: list[float]) -> list[Fit]:
        """Every M-step."""
        b, w, j, _, i = self.squared.shape
        coupling = self._as_links(self.squared.new_zeros(b, w, j, i), self.windows.first)
        fits: list[Fit] = []
        for inverse in temperatures:
            if fits:
                coupling = self.share(self._log_weight(fits[-1]))
            fits.append(self._fit(coupling, beta_u, beta_a, inverse))
        return fits

    def _fit(self, coupling: Tensor, beta_u: Tensor, beta_a: Tensor, inverse: float) -> Fit:
        r = coupling * self.children
        data = r.sum(dim=-1)
        weight = r / (data + EPSILON).unsqueeze(-1)
        first, second = self.over_children(weight)
        total = (data / (data + EPSILON)).unsqueeze(-1)
        mean = first - (1 - total) * self.centre
        var = second - 2 * mean * first + mean.square() * total
        # What rounding leaves of a difference of equal numbers is not a variance.
        var = torch.maximum(var, 4 * torch.finfo(var.dtype).eps * second) + VAR_MIN
        cost = (beta_u * mean.shape[-1] + 0.5 * var.log().sum(dim=-1)) * data
        return Fit(coupling, weight, data, first, mean, var, inverse * (beta_a - cost))

    def _log_weight(self, fit: Fit) -> Tensor:
        constant = F.logsigmoid(fit.logit) - 0.5 * (fit.var.log() + fit.mean.square() / fit.var).sum(dim=-1)
        return self.over_dimensions(fit.mean / fit.var, -0.5 / fit.var).add_(constant.unsqueeze(-1))

    def backward(
        self, fits: list[Fit], beta_u: Tensor, temperatures: list[float], grad_mean: Tensor, grad_logit: Tensor,
        grad_coupling: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """Gradients of votes `[b, w, j, h, i]`, children's activation `[b, w, i]`, beta_u and beta_a `[j]`."""
        grad_children: Tensor | float = 0.0
        grad_u, grad_a = torch.zeros_like(beta_u), torch.zeros_like(beta_u)
        grad_var, grad_r = torch.zeros_like(grad_mean), grad_coupling
        outer: list[tuple[Tensor, Tensor, Tensor]] = []  # the votes' gradient: sum of (a + b V) x c
        for t in reversed(range(len(fits))):
            fit, inverse = fits[t], temperatures[t]
            grad_logit = inverse * grad_logit
            grad_a += grad_logit.sum(dim=(0, 1))
            grad_u -= (grad_logit * fit.data).sum(dim=(0, 1)) * fit.mean.shape[-1]
            grad_var = grad_var - 0.5 * (grad_logit * fit.data).unsqueeze(-1) / fit.var
            grad_data = -grad_logit * (beta_u * fit.mean.shape[-1] + 0.5 * fit.var.log().sum(dim=-1))
            grad_mean = grad_mean - 2 * grad_var * (fit.first - fit.total * fit.mean)
            slope = grad_mean - 2 * grad_var * fit.mean
            outer.append((slope, 2 * grad_var, fit.weight))
            constant = (grad_mean * self.centre + grad_var * fit.mean.square()).sum(dim=-1, keepdim=True)
            grad_weight = self.over_dimensions(slope, grad_var).add_(constant)
            grad_weight -= (grad_weight * fit.weight).sum(dim=-1, keepdim=True)
            grad = grad_weight / (fit.data + EPSILON).unsqueeze(-1) + grad_data.unsqueeze(-1)
            grad_children = grad_children + (grad * fit.coupling).sum(dim=2)
            if t == 0:
                break
            grad = grad * self.children if grad_r is None else grad * self.children + grad_r
            grad = grad * fit.coupling
            grad = grad - fit.coupling * self.among_parents(grad)
            grad_r = None
            fit = fits[t - 1]
            count, (first, second) = grad.sum(dim=-1, keepdim=True), self.over_children(grad)
            grad_logit = torch.sigmoid(-fit.logit) * count.squeeze(-1)
            grad_mean = (first - count * fit.mean) / fit.var
            spread = (second - 2 * fit.mean * first + fit.mean.square() * count) / fit.var
            grad_var = 0.5 * (spread - count) / fit.var
            outer.append((fit.mean / fit.var, -1 / fit.var, grad))
        assert isinstance(grad_children, Tensor)
        return self._votes_gradient(outer), grad_children, grad_u, grad_a

    def _votes_gradient(self, outer: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        constant, slope = (torch.stack([term[k] for term in outer], dim=-1) for k in (0, 1))
        children = torch.stack([term[2] for term in outer], dim=-2)
        return torch.matmul(slope, children).mul_(self.votes).add_(torch.matmul(constant, children))


def _folded(poses: Tensor, windows: Windows) -> Tensor:
    """Gradients of windows' poses, `[i, b, rows, columns, in_dim]`, added up on the map `[b, h, w, n, in_dim]`."""
    kernel = windows.kernel**2
    by_window = poses.unflatten(0, (kernel, -1)).permute(2, 3, 4, 0, 1, 5)  # [b, rows, columns, K * K, n, in_dim]
    n, in_dim = by_window.shape[-2:]
    return windows.scatter(by_window.flatten(3)).unflatten(-1, (n, in_dim))


def _blocks(x: Problem, parents: Tensor) -> list[slice]:
    """Samples of each block."""
    per_sample = 2 * parents[:1].numel() * x.weight.shape[0] * x.weight.element_size()
    size = max(1, (BLOCK_BYTES if x.pose.device.type == "cpu" else GPU_BLOCK_BYTES) // max(1, per_sample))
    return [slice(start, min(start + size, len(x.pose))) for start in range(0, len(x.pose), size)]
