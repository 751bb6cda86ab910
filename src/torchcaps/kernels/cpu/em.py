"""Matrix votes and EM routing on a CPU, a block of samples at a time, with recomputation in the backward pass.

The votes of a batch are never stored, and nothing of the iterations is kept but what went in. Votes of a block lie
beside their squares, so that sums of (V - mu)^2, weighted over children or divided by variances, are one product each:

    sum (V - mu)^2 = sum V^2 - 2 mu sum V + mu^2 sum 1

Votes are taken from their mean over children first, which keeps the difference of large numbers harmless. Letters:
b samples of a block, w windows, i children of a window, j parents, h pose dimensions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.functional.bounds import FACTOR, STEADY, limit
from torchcaps.functional.routing.em import EPSILON, VAR_MIN
from torchcaps.functional.windows import Convention, Windows
from torchcaps.kernels.registration import largest, refuse, within

# Votes of one block and their squares, in bytes.
BLOCK_BYTES = 4 << 20


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

    def __init__(
        self, pose: Tensor, activation: Tensor, weight: Tensor, shift: Tensor | None, windows: Windows,
        convention: Convention,
    ) -> None:  # fmt: skip
        self.windows, self.convention = windows, convention
        inner = weight.shape[2]
        self.matrices = windows.unfold(pose).flatten(1, 2).unflatten(-1, (-1, inner)).permute(0, 1, 3, 4, 2)
        self.children = windows.unfold(activation).flatten(1, 2).unsqueeze(2)  # [b, w, 1, i]
        self.squared = self._votes(weight.permute(1, 2, 3, 0).contiguous(), shift)

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
        return self._as_links(log_weight, lambda x: self.windows.share(x, self.convention))

    def among_parents(self, x: Tensor) -> Tensor:
        """Sum over the parents that compete for a child, in the place of each."""
        return self._as_links(x, lambda links: self.windows.total(links, self.convention))

    def _as_links(self, x: Tensor, change: Any) -> Tensor:
        links = x.unflatten(1, self.windows.positions).transpose(-1, -2)  # [b, rows, columns, i, j]
        changed: Tensor = change(links)
        return changed.transpose(-1, -2).flatten(1, 2) if changed.dim() == links.dim() else changed

    def fits(self, beta_u: Tensor, beta_a: Tensor, temperatures: list[float]) -> list[Fit]:
        """Every M-step."""
        b, w, j, _, i = self.squared.shape
        nothing = self.squared.new_zeros(b, w, j, i)
        links = nothing.unflatten(1, self.windows.positions).transpose(-1, -2)
        start = self.windows.first_coupling(self.convention, links)
        coupling = self.share(nothing) if start is None else start.transpose(-1, -2).flatten(1, 2)
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


@torch.library.custom_op("torchcaps::routed_em_cpu", mutates_args=())
def routed_em(
    pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, shift: Tensor | None,
    kernel: int, stride: int, convention: str, temperatures: list[float], want_coupling: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Parents' pose, activation and coupling (empty unless wanted); `activation` is of the type of `weight`."""
    pose, activation, weight, shift = em_bounded(pose, activation, weight, shift)
    outcome = empty_outcome(pose, weight, kernel, stride, want_coupling)
    parents, length, coupling = outcome
    with torch.autocast("cpu", enabled=False):  # a caller's autocast reaches into operators
        for rows in _blocks(pose, weight, parents):
            block = _block(pose[rows], activation[rows], weight, shift, kernel, stride, convention)
            fit = block.fits(beta_u, beta_a, temperatures)[-1]
            parents[rows] = (fit.mean + block.centre).view_as(parents[rows])
            length[rows] = torch.sigmoid(fit.logit).view_as(length[rows])
            if want_coupling:
                coupling[rows] = fit.coupling.transpose(-1, -2).view_as(coupling[rows])
    return outcome


@torch.library.custom_op("torchcaps::routed_em_cpu_backward", mutates_args=())
def routed_em_backward(
    pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, shift: Tensor | None,
    grad_parents: Tensor, grad_length: Tensor, grad_coupling: Tensor | None, kernel: int, stride: int, convention: str,
    temperatures: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of all tensors that went in; that of `shift` is `[i, j, h]` (empty without one)."""
    pose, activation, weight, shift = em_bounded(pose, activation, weight, shift)
    children, parents, inner, outer = weight.shape
    grad_pose, grad_activation = (
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (pose, activation)
    )
    grad_u, grad_a = torch.zeros_like(beta_u), torch.zeros_like(beta_a)
    grad_weight = weight.new_zeros(children, inner, parents * outer)
    grad_shift = weight.new_zeros(() if shift is None else (parents, pose.shape[-1] // inner * outer, children))
    flat = weight.transpose(1, 2).reshape(children, inner, parents * outer)
    with torch.autocast("cpu", enabled=False):  # a caller's autocast reaches into operators
        for rows in _blocks(pose, weight, grad_parents):
            block = _block(pose[rows], activation[rows], weight, shift, kernel, stride, convention)
            fits = block.fits(beta_u, beta_a, temperatures)
            length = torch.sigmoid(fits[-1].logit)
            grad_logit = grad_length[rows].flatten(1, 2) * length * (1 - length)
            through = None if grad_coupling is None else grad_coupling[rows].flatten(1, 2).transpose(-1, -2)
            votes, a, u, b = block.backward(
                fits, beta_u, temperatures, grad_parents[rows].flatten(1, 2), grad_logit, through
            )
            grad_u += u
            grad_a += b
            if shift is not None:
                grad_shift += votes.sum(dim=(0, 1))
            grad_activation[rows] = block.windows.fold(a.unflatten(1, block.windows.positions))
            # [i, b w rows, j outer]: what both products over votes want
            columns = votes.unflatten(3, (-1, outer)).permute(5, 0, 1, 3, 2, 4).reshape(children, -1, parents * outer)
            matrices = block.matrices.permute(4, 3, 0, 1, 2).reshape(children, inner, -1)
            grad_weight.baddbmm_(matrices, columns)
            poses = torch.bmm(columns, flat.transpose(1, 2)).view(children, len(a), *block.windows.positions, -1)
            grad_pose[rows] = _folded(poses, block.windows)
    grad_weight = grad_weight.view(children, inner, parents, outer).transpose(1, 2).contiguous()
    return grad_pose, grad_activation, grad_weight, grad_u, grad_a, grad_shift.movedim(-1, 0).contiguous()


def _folded(poses: Tensor, windows: Windows) -> Tensor:
    """Gradients of windows' poses, `[i, b, rows, columns, in_dim]`, added up on the map `[b, h, w, n, in_dim]`."""
    kernel = windows.kernel**2
    by_window = poses.unflatten(0, (kernel, -1)).permute(2, 3, 4, 0, 1, 5)  # [b, rows, columns, K * K, n, in_dim]
    n, in_dim = by_window.shape[-2:]
    return windows.fold(by_window.flatten(3)).unflatten(-1, (n, in_dim))


def _block(
    pose: Tensor, activation: Tensor, weight: Tensor, shift: Tensor | None, kernel: int, stride: int, convention: str
) -> Block:
    windows = Windows(pose.shape[1], pose.shape[2], kernel, stride)
    return Block(pose, activation, weight, shift, windows, convention)  # type: ignore[arg-type]


def _blocks(pose: Tensor, weight: Tensor, parents: Tensor) -> list[slice]:
    """Samples of each block."""
    per_sample = 2 * parents[:1].numel() * weight.shape[0] * weight.element_size()
    size = max(1, BLOCK_BYTES // max(1, per_sample))
    return [slice(start, min(start + size, len(pose))) for start in range(0, len(pose), size)]


def em_bounded(
    pose: Tensor, activation: Tensor, weight: Tensor, shift: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The same tensors, so bounded that squares of votes stay finite."""
    most, vote = limit(weight.dtype, STEADY), limit(weight.dtype, FACTOR)
    weight = within(weight, most)
    pose = within(pose, vote / (weight.shape[2] * max(1.0, largest(weight))))
    return pose, within(activation, most), weight, None if shift is None else within(shift, vote)


def empty_outcome(
    pose: Tensor, weight: Tensor, kernel: int, stride: int, want_coupling: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the outcome."""
    children, parents, inner, outer = weight.shape
    space = ((pose.shape[1] - kernel) // stride + 1, (pose.shape[2] - kernel) // stride + 1)
    lead = (pose.shape[0], *space)
    dim = pose.shape[-1] // inner * outer
    coupling = weight.new_empty((*lead, children, parents) if want_coupling else (0,))
    return weight.new_empty(*lead, parents, dim), weight.new_empty(*lead, parents), coupling


@routed_em.register_fake
def _(
    pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, shift: Tensor | None,
    kernel: int, stride: int, convention: str, temperatures: list[float], want_coupling: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    del activation, beta_u, beta_a, shift, convention, temperatures
    return empty_outcome(pose, weight, kernel, stride, want_coupling)


@routed_em_backward.register_fake
def _(
    pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, shift: Tensor | None,
    grad_parents: Tensor, grad_length: Tensor, grad_coupling: Tensor | None, kernel: int, stride: int, convention: str,
    temperatures: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    del grad_parents, grad_length, grad_coupling, kernel, stride, convention, temperatures
    return empty_gradients(pose, activation, weight, beta_u, beta_a, shift)


def empty_gradients(
    pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, shift: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Memory for what a backward operator returns."""
    children, parents, inner, outer = weight.shape
    size = () if shift is None else (children, parents, pose.shape[-1] // inner * outer)
    grad_pose, grad_activation, grad_weight, grad_u, grad_a = (
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (pose, activation, weight, beta_u, beta_a)
    )
    return grad_pose, grad_activation, grad_weight, grad_u, grad_a, weight.new_empty(size)


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    del output
    ctx.save_for_backward(*inputs[:6])
    ctx.settings, ctx.want_coupling = inputs[6:10], inputs[10]


def _backward(ctx: Any, grad_parents: Tensor, grad_length: Tensor, grad_coupling: Tensor) -> Any:
    tensors = ctx.saved_tensors
    through = grad_coupling if ctx.want_coupling else None
    grads = routed_em_backward(*tensors, grad_parents, grad_length, through, *ctx.settings)
    shift = None if tensors[5] is None else grads[5].sum_to_size(tensors[5].shape)
    return *grads[:5], shift, None, None, None, None, None


routed_em.register_autograd(_backward, setup_context=_remember)
routed_em_backward.register_autograd(refuse)
