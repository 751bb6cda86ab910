"""Matrix votes and EM routing in compiled loops: votes are made in registers wherever they are needed, never stored.

Samples are laid out in groups of LANES, one to each lane of a vector register (see `em_lanes.py`, which needs numba and
is imported at the first call). A thread routes a group through all passes. What is kept for the backward pass is the
state of every parent after every pass; the couplings are made anew from it. Letters: b batch, g groups, w windows,
i children of a window, j parents.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torchcaps.functional.windows import Convention, Windows
from torchcaps.kernels.cpu.dynamic_numba import LANES, by_lane, in_threads
from torchcaps.kernels.cpu.em import em_bounded, empty_gradients, empty_outcome
from torchcaps.kernels.registration import refuse


@torch.library.custom_op("torchcaps::routed_em_numba", mutates_args=())
def routed_em(
    pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, shift: Tensor | None,
    kernel: int, stride: int, convention: str, temperatures: list[float], want_coupling: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Parents' pose, activation, coupling (empty unless wanted), and the state of every pass; see `em_lanes.py`."""
    pose, activation, weight, shift = em_bounded(pose, activation, weight, shift)
    parents, length, coupling = empty_outcome(pose, weight, kernel, stride, want_coupling)
    layer = _Layer.of(pose, activation, weight, shift, kernel, stride, cast(Convention, convention), len(temperatures))
    state = layer.state()
    kept = layer.links() if want_coupling and len(temperatures) > 1 else weight.new_empty(0)
    heat = weight.new_tensor(temperatures)
    layer.run("forward_pass", beta_u * layer.dim, beta_a, heat, state, kept)
    last, dim = state[:, -1], layer.dim
    parents.copy_(layer.by_sample(last[..., :dim, :]).view_as(parents))
    torch.sigmoid(layer.by_sample(last[..., -1, :]).reshape(length.shape), out=length)
    if want_coupling:
        found = layer.by_sample(kept) if kept.numel() else layer.start.unsqueeze(1)
        coupling.copy_(found.transpose(-1, -2).unflatten(-3, coupling.shape[1:3]))
    return parents, length, coupling, state


@torch.library.custom_op("torchcaps::routed_em_numba_backward", mutates_args=())
def routed_em_backward(
    pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, shift: Tensor | None,
    state: Tensor, grad_parents: Tensor, grad_length: Tensor, grad_coupling: Tensor | None, kernel: int, stride: int,
    convention: str, temperatures: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of all tensors that went in; that of `shift` is `[i, j, h]` (empty without one)."""
    del beta_a  # the state has what it led to
    pose, activation, weight, shift = em_bounded(pose, activation, weight, shift)
    layer = _Layer.of(pose, activation, weight, shift, kernel, stride, cast(Convention, convention), len(temperatures))
    (children, parents, inner, outer), dim, groups = weight.shape, layer.dim, len(layer.pose)
    kept = weight.new_empty(0)
    if grad_coupling is not None and len(temperatures) > 1:
        kept = by_lane(grad_coupling.flatten(1, 2).transpose(-1, -2))
    grad_state = _grad_state(state, grad_parents.flatten(1, 2), grad_length.flatten(1, 2))
    grad_pose, grad_activation = torch.zeros_like(layer.pose), torch.zeros_like(layer.activation)
    grad_weight = weight.new_empty(groups, parents, children, inner, outer)
    grad_shift = weight.new_empty((0,) if shift is None else (groups, parents, children, dim))
    grad_betas = weight.new_empty(groups, parents, 2)
    heat = weight.new_tensor(temperatures)
    grads = (grad_pose, grad_activation, grad_weight, grad_shift, grad_betas)
    layer.run("backward_pass", beta_u * dim, heat, state, grad_state, kept, *grads)
    return (
        layer.by_sample(grad_pose).contiguous(),
        layer.by_sample(grad_activation).contiguous(),
        grad_weight.sum(dim=0).transpose(0, 1).contiguous(),
        grad_betas[..., 0].sum(dim=0) * dim,
        grad_betas[..., 1].sum(dim=0),
        weight.new_empty(()) if shift is None else grad_shift.sum(dim=0).transpose(0, 1).contiguous(),
    )


class _Layer(NamedTuple):
    """A batch before the compiled loops: all tensors in their layout, and the sizes of things."""

    pose: Tensor
    activation: Tensor
    weight: Tensor
    shift: Tensor
    start: Tensor
    windows: Windows
    batch: int
    convention: Convention
    form: Any
    passes: int

    @classmethod
    def of(
        cls, pose: Tensor, activation: Tensor, weight: Tensor, shift: Tensor | None, kernel: int, stride: int,
        convention: Convention, passes: int,
    ) -> _Layer:  # fmt: skip
        """From tensors of any strides."""
        from torchcaps.kernels.cpu.em_vectors import form_of  # numba takes half a second to import

        children, parents, inner, outer = weight.shape
        windows = Windows(pose.shape[1], pose.shape[2], kernel, stride)
        rows = pose.shape[-1] // inner
        by_parent = weight.new_empty(0)
        if shift is not None:
            by_parent = shift.detach().expand(children, parents, rows * outer).transpose(0, 1).contiguous()
        return cls(
            by_lane(pose.detach()), by_lane(activation.detach()), weight.detach().transpose(0, 1).contiguous(),
            by_parent, _first_coupling(windows, convention, children, parents, weight), windows, len(pose), convention,
            form_of(rows, inner, outer, shift is not None), passes,
        )  # fmt: skip

    @property
    def dim(self) -> int:
        return self.pose.shape[-2] // self.weight.shape[2] * self.weight.shape[3]

    def state(self) -> Tensor:
        """Memory for the state of every parent after every pass `[g, t, w, j, 2 H + 3, LANES]`."""
        size = (len(self.pose), self.passes, len(self.start), len(self.weight), 2 * self.dim + 3, LANES)
        return self.weight.new_empty(size)

    def links(self) -> Tensor:
        """Memory for a number for each child and parent, `[g, w, j, i, LANES]`."""
        return self.weight.new_empty((len(self.pose), len(self.start), *self.weight.shape[:2], LANES))

    def by_sample(self, x: Tensor) -> Tensor:
        """`[g, ..., LANES]` -> `[b, ...]`."""
        return x.movedim(-1, 1).flatten(0, 1)[: self.batch]

    def run(self, name: str, *arguments: Tensor) -> None:
        """Run a loop of `em_lanes.py` on all groups, shared out among as many threads as torch uses."""
        from torchcaps.kernels.cpu import em_lanes

        parents, _, inner, outer = self.weight.shape
        windows, per_place = self.windows, self.pose.shape[3]
        step = windows.width * per_place
        shape = em_lanes.Shape(
            passes=self.passes, windows=len(self.start), columns=windows.positions[1], down=windows.stride * step,
            right=windows.stride * per_place, runs=windows.kernel, step=step, across=windows.kernel * per_place,
            places=windows.height * step, parents=parents, dim=self.dim, in_dim=self.pose.shape[-2],
            numbers=inner * outer, convention=getattr(em_lanes, self.convention.upper()),
        )  # fmt: skip
        tensors = (self.pose, self.activation, self.weight, self.shift, self.start, *arguments)
        flat = [x.detach().contiguous().view(-1).numpy() for x in tensors]
        in_threads(getattr(em_lanes, name), len(self.pose), self.form, shape, *flat)


def _first_coupling(windows: Windows, convention: Convention, children: int, parents: int, like: Tensor) -> Tensor:
    """R before the first M-step `[w, i]`, which is the same for all parents of a window."""
    nothing = like.new_zeros(1, *windows.positions, children, parents)
    start = windows.first_coupling(convention, nothing)
    return (windows.share(nothing, convention) if start is None else start)[0, ..., 0].flatten(0, 1).contiguous()


def _grad_state(state: Tensor, grad_pose: Tensor, grad_length: Tensor) -> Tensor:
    """Gradient of mean, variance and logit of the last pass, `[g, w, j, 2 H + 1, LANES]`."""
    last = state[:, -1]
    dim = (last.shape[-2] - 3) // 2
    grad = last.new_zeros((*last.shape[:3], 2 * dim + 1, LANES))
    grad[..., :dim, :] = by_lane(grad_pose)
    length = torch.sigmoid(last[..., -1, :])
    grad[..., -1, :] = by_lane(grad_length) * length * (1 - length)
    return grad


def _sizes(pose: Tensor, weight: Tensor, kernel: int, stride: int, passes: int) -> tuple[int, ...]:
    """Of the state."""
    _, parents, inner, outer = weight.shape
    windows = ((pose.shape[1] - kernel) // stride + 1) * ((pose.shape[2] - kernel) // stride + 1)
    return -(-pose.shape[0] // LANES), passes, windows, parents, 2 * (pose.shape[-1] // inner * outer) + 3, LANES


@routed_em.register_fake
def _(
    pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, shift: Tensor | None,
    kernel: int, stride: int, convention: str, temperatures: list[float], want_coupling: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    del activation, beta_u, beta_a, shift, convention
    outcome = empty_outcome(pose, weight, kernel, stride, want_coupling)
    return *outcome, weight.new_empty(_sizes(pose, weight, kernel, stride, len(temperatures)))


@routed_em_backward.register_fake
def _(
    pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, shift: Tensor | None,
    state: Tensor, grad_parents: Tensor, grad_length: Tensor, grad_coupling: Tensor | None, kernel: int, stride: int,
    convention: str, temperatures: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    del state, grad_parents, grad_length, grad_coupling, kernel, stride, convention, temperatures
    return empty_gradients(pose, activation, weight, beta_u, beta_a, shift)


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:6], output[3])
    ctx.settings, ctx.want_coupling = inputs[6:10], inputs[10]


def _backward(ctx: Any, grad_parents: Tensor, grad_length: Tensor, grad_coupling: Tensor, _grad_state: Tensor) -> Any:
    tensors = ctx.saved_tensors
    through = grad_coupling if ctx.want_coupling else None
    grads = routed_em_backward(*tensors, grad_parents, grad_length, through, *ctx.settings)
    shift = None if tensors[5] is None else grads[5].sum_to_size(tensors[5].shape)
    return *grads[:5], shift, None, None, None, None, None


routed_em.register_autograd(_backward, setup_context=_remember)
routed_em_backward.register_autograd(refuse)
