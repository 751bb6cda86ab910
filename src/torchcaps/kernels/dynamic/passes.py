"""Routing by agreement, pass by pass: what its implementations share.

Source: Sabour, Frosst, Hinton, "Dynamic Routing Between Capsules", arXiv 1710.09829, procedure 1.
After t passes the logits are b_ij = <u_ij, V_j>, where V_j is the sum of the first t parents v_j.
So the s_j of each pass is all that the backward pass needs:

    forward    c_i = softmax over j of b_ij;  s_j = sum_i c_ij u_ij;  v_j = squash(s_j)
    backward   dL/dc_ij = <u_ij, dL/ds_j>;  dL/db_ij = c_ij (dL/dc_ij - sum_k c_ik dL/dc_ik)
               dL/dV_j = sum_i dL/db_ij u_ij;  dL/du_ij = c_ij dL/ds_j + dL/db_ij V_j

where L is a loss. A vote u_ij = weight_ij pose_i is linear in the pose of child i.

Children of all positions form one batch. Letters: b batch, i children, j parents, d and k
dimensions of a parent and of a child, t passes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.functional.fields import Convention, ConvField, DenseField, Field
from torchcaps.functional.routing.dynamic import dynamic_routing
from torchcaps.functional.squash import full_precision, squash_with_length
from torchcaps.functional.votes import DenseVotes, ProductVotes, Votes, linear_votes
from torchcaps.kernels.numerics import squash_backward
from torchcaps.kernels.operator import Grads, define_operator
from torchcaps.kernels.support import HALF_PRECISION, needs_reference, padded_windows
from torchcaps.types import Capsules, Routed


class Problem(NamedTuple):
    """Operands of the operators.

    Outputs: v `[b, j, d]`, its length `[b, j]`, the coupling `[b, i, j]` (empty unless wanted) and,
    saved for the backward pass, s of every pass `[t, b, j, d]`.

    Attributes:
        pose: `[b, i, k]`; or votes `[b, i, j, d]` if there is no weight.
        weight: `[i, j, d, k]`, or None; the vote is `weight_ij pose_i`.
        bias: `[j, d]`, or None.
        windows: height, width, kernel and stride of the windows whose parents compete; empty if the
            parents of one position compete alone.
        convention: of the windows; see `ConvField`.
        iterations, leaky, detach: see `functional.dynamic_routing`.
        want_coupling: whether to return the last coupling.
    """

    pose: Tensor
    weight: Tensor | None
    bias: Tensor | None
    windows: list[int]
    convention: Convention
    iterations: int
    leaky: bool
    detach: bool
    want_coupling: bool

    @property
    def field(self) -> Field:
        """Says which parents compete."""
        if not self.windows:
            return DenseField()
        height, width, kernel, stride = self.windows
        return ConvField(height, width, kernel, stride, convention=self.convention)

    def empty_outputs(self) -> tuple[Tensor, ...]:
        """Empty outputs; half precision is computed in float32."""
        b, i = self.pose.shape[:2]
        like = self.pose if self.weight is None else self.weight
        j, d = self.pose.shape[2:] if self.weight is None else self.weight.shape[1:3]
        dtype = torch.float32 if like.dtype in HALF_PRECISION else like.dtype
        coupling = (b, i, j) if self.want_coupling else (0,)
        sizes = ((b, j, d), (b, j), coupling, (self.iterations, b, j, d))
        return tuple(like.new_empty(size, dtype=dtype) for size in sizes)

    def passes(self, backward: bool) -> Passes:
        """Passes of an implementation: forward or, if `backward`, from last to first.

        Raises:
            NotImplementedError: a class that does not define it.
        """
        raise NotImplementedError

    def forward(self) -> tuple[Tensor, ...]:
        """The outputs; see above."""
        passes = self.passes(backward=False)
        _, _, coupling, s = self.empty_outputs()
        for block in passes.blocks():
            V = None
            for t in range(self.iterations):
                sums = passes.weighted_sums(V)
                s[t, block] = sums if self.bias is None else sums + self.bias
                if t < self.iterations - 1:
                    v, _ = passes.squash(s[t, block])
                    V = v if V is None else V + v
            if self.want_coupling:
                coupling[block] = passes.coupling()
        v, length = passes.squash(s[-1])
        return v, length, coupling, s

    def backward(
        self, saved: Sequence[Tensor], grads: Sequence[Tensor], _needed: Sequence[bool]
    ) -> Grads:
        """Gradients of pose, weight and bias."""
        (s,), (grad_v, grad_length, grad_coupling) = saved, grads
        passes = self.passes(backward=True)
        grad_pose = s.new_empty(self.pose.shape)
        grad_bias = None if self.bias is None else s.new_zeros(s.shape[2:])
        for block in passes.blocks():
            grads_s = _passes_backward(
                passes,
                s[:, block],
                grad_v[block],
                grad_length[block],
                grad_coupling[block] if self.want_coupling else None,
            )
            grad_pose[block] = passes.votes_backward()
            if grad_bias is not None:
                grad_bias += sum(grad_s.sum(dim=0) for grad_s in grads_s)
        if passes.scale is not None:
            grad_pose = grad_pose * passes.scale
        if self.weight is None or passes.grad_weight is None:
            return grad_pose, None, grad_bias
        return grad_pose, passes.grad_weight.view(self.weight.shape), grad_bias

    def reference(self) -> tuple[Tensor, ...]:
        """v, its length and the coupling in torch operations, all votes stored."""
        votes = self.pose if self.weight is None else linear_votes(self.pose, self.weight)
        by_position = votes.unflatten(0, (-1, *self.field.positions))
        dense = DenseVotes(by_position, bias=self.bias, field=self.field)
        routed = dynamic_routing(dense, self.iterations, leaky=self.leaky, detach=self.detach)
        coupling: Any = routed.coupling if self.want_coupling else routed.pose.new_empty(0, 1, 1)
        return routed.pose.flatten(0, -3), routed.activation.flatten(0, -2), coupling.flatten(0, -3)


class Passes(ABC):
    """The passes of routing on a problem, a block of samples at a time; an implementation.

    Attributes:
        scale: factor of the gradients of the poses, or None.
        grad_weight: gradient of the weight, to which `votes_backward` adds; None without one.
    """

    scale: Tensor | None = None
    grad_weight: Tensor | None = None

    @abstractmethod
    def blocks(self) -> Iterator[slice]:
        """Blocks of samples; the other methods work on the last one."""

    @abstractmethod
    def weighted_sums(self, V: Tensor | None) -> Tensor:
        """s `[b, j, d]` without the bias; `coupling` returns its c.

        Args:
            V: sum of the parents of the passes before, `[b, j, d]`; None in the first pass.
        """

    @abstractmethod
    def coupling(self) -> Tensor:
        """The coupling of the last `weighted_sums`, `[b, i, j]`."""

    @abstractmethod
    def pass_backward(
        self, V: Tensor | None, grad_s: Tensor, grad_coupling: Tensor | None
    ) -> Tensor | None:
        """Backward of a pass; passes come from last to first.

        Args:
            V: as in `weighted_sums`.
            grad_s: dL/ds `[b, j, d]`.
            grad_coupling: dL/dc `[b, i, j]` of the coupling itself, or None.

        Returns:
            dL/dV `[b, j, d]`; None in the first pass, and with `detach`.
        """

    @abstractmethod
    def votes_backward(self) -> Tensor:
        """Gradient of the poses, after all passes; that of the weight is added to `grad_weight`."""

    def squash(self, s: Tensor) -> Capsules:
        """Parents v of s `[..., b, j, d]`, and their lengths `[..., b, j]`."""
        return squash_with_length(s)

    def squash_backward(self, s: Tensor, grad_v: Tensor, grad_length: Tensor | None) -> Tensor:
        """dL/ds `[b, j, d]`; see `numerics.squash_backward`."""
        return squash_backward(s, grad_v, grad_length)


def _passes_backward(
    passes: Passes, s: Tensor, grad_v: Tensor, grad_length: Tensor, grad_coupling: Tensor | None
) -> list[Tensor]:
    """Passes of a block from the last to the first; returns dL/ds `[b, j, d]` of each."""
    last = len(s) - 1
    parents, _ = passes.squash(s)
    V = parents.cumsum(dim=0)
    # dL/dv of each pass; later passes add to earlier ones.
    grad_parents = torch.zeros_like(s)
    grad_parents[last] = grad_v
    grads_s = []
    for t in range(last, -1, -1):
        is_last = t == last
        grad_s = passes.squash_backward(s[t], grad_parents[t], grad_length if is_last else None)
        grads_s.append(grad_s)
        V_before = V[t - 1] if t else None
        grad_V = passes.pass_backward(V_before, grad_s, grad_coupling if is_last else None)
        if grad_V is None:  # no earlier pass has a gradient
            break
        grad_parents[:t] += grad_V
    return grads_s


def not_linear(votes: Votes) -> str | None:
    """Reason for votes that are not linear, or whose parents compete across positions."""
    if not isinstance(votes, ProductVotes):
        return "the votes are given, not made of poses and matrices; 'blocked' takes them"
    if votes.rows > 1:
        return f"poses are matrices of {votes.rows} rows"
    if votes.shift is not None:
        return "the votes are shifted"
    if not votes.field.local:
        return f"parents at different positions compete (convention {votes.field.convention!r})"
    return needs_reference(votes)


def define_route(
    impl: str, make_passes: Callable[[Problem, bool], Passes], *, in_autocast: bool = False
) -> Callable[..., Routed]:
    """An implementation of routing by agreement on given or linear votes, as an operator.

    Args:
        impl: its name.
        make_passes: makes the passes of a problem, forward or from last to first; see
            `Problem.passes`.
        in_autocast: whether poses have the type of the caller's autocast.

    Returns:
        What `fast_path` registers.
    """

    class Implemented(Problem):
        def passes(self, backward: bool) -> Passes:
            return make_passes(self, backward)

    name = f"dynamic_routing_{impl}"
    run_operator = define_operator(name, Implemented, num_saved=1)

    def run(votes: Votes, *, iterations: int, leaky: bool, detach: bool) -> Routed:
        weight = None
        if isinstance(votes, ProductVotes):
            pose = votes.pose.flatten(0, -3)
            weight = votes.matrices.transpose(2, 3)
        else:
            pose = votes.dense().flatten(0, -4)
        if in_autocast and votes.autocast_dtype is not None:
            pose = pose.to(votes.autocast_dtype)
        bias = votes.bias
        if bias is not None:
            bias = bias.to(full_precision(pose if weight is None else weight).dtype)

        windows = padded_windows(votes.field)
        sizes: list[int] = []
        if windows is not None and not windows.local:
            sizes = [windows.height, windows.width, windows.kernel, windows.stride]
        problem = Problem(
            pose,
            weight,
            bias,
            sizes,
            votes.field.convention,
            iterations,
            leaky,
            detach,
            votes.context.needs_coupling,
        )
        v, length, coupling, _ = run_operator(problem)
        return restore_positions(votes, votes.activation.shape[:-1], v, length, coupling)

    return run


def restore_positions(
    votes: Votes, lead: torch.Size, v: Tensor, length: Tensor, coupling: Tensor
) -> Routed:
    """Outputs of an operator at their positions.

    Args:
        votes: that were routed.
        lead: batch and positions.
        v: poses of the parents, `[batch * positions, j, d]`.
        length: their lengths, `[batch * positions, j]`.
        coupling: `[batch * positions, i, j]`; couplings of absent children become 0.
    """
    v = v.unflatten(0, lead)
    length = length.unflatten(0, lead)
    if not votes.context.needs_coupling:
        return Routed(v, length, None)
    coupling = coupling.unflatten(0, lead)
    if votes.mask is not None:
        coupling = coupling * votes.mask.to(coupling).unsqueeze(-1)
    return Routed(v, length, coupling)
