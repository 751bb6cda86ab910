"""Slot attention: exchangeable parents compete for children and are updated by a recurrent unit.

Francesco Locatello and others, "Object-Centric Learning with Slot Attention", NeurIPS 2020, arXiv
2006.15055, algorithm 1; constants as in the authors' code. Differs from it in: the noise of the
start is the same for every sample while the router evaluates, so that a call is repeatable; layer
norms and the recurrent unit have torch's constants (1e-5, and its uniform start).

What comes in: the pose x_i of each child i. What goes out: the pose s_j of each parent j, a slot,
and the couplings c_ij, the share of child i that belongs to slot j. The authors' network has
`SharedVotes`: a child makes one vote for all slots, and these are exchangeable. With other votes,
such as one matrix for each pair, each slot has a task of its own.

Shapes: `...` is the batch and the positions of the parents on a map; d are the numbers of a slot.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.errors import check_known, check_positive
from torchcaps.functional.bounds import clamp_finite, factor_limit, full_precision
from torchcaps.functional.random_coupling import random_logits
from torchcaps.functional.votes import Votes
from torchcaps.nn.routers import IterativeRouter, register_router
from torchcaps.nn.votes import ModuleVotes, VotesModule
from torchcaps.types import Capsules, LayerSizes, Routed

Start = Literal["random", "learned"]
EPSILON = 1e-8  # added to couplings, so that a slot that won nothing takes the mean of all children


@register_router("slot_attention")
class SlotAttention(IterativeRouter):
    """Slots share each child among themselves, and take the mean of their shares.

        k_i = W_k x_i
        s_j = mu + sigma * normal noise, or learned for each slot                        (1)
        repeat `iterations` times:
            q_j = W_q norm(s_j)
            c_i = softmax over slots of <k_i, q_j> / sqrt(d)                             (2)
            w_ij = (c_ij + 1e-8) / sum_i (c_ij + 1e-8)                                   (3)
            u_j = sum_i w_ij V_ij                                                        (4)
            s_j = GRU(u_j, s_j);  s_j = s_j + MLP(norm(s_j))                             (5)

    In training the noise is drawn anew in every call. Evaluation has the same noise for every
    sample: a hash of the place of the slot. Where a layer is given parents, slots start from their
    poses. Nothing but the noise tells slots apart: without it they stay equal.

    An ablation keeps all iterations, as the recurrent unit and the MLP work in each of them.

    Example:
        >>> votes = SharedVotes(LayerSizes(children=64, in_dim=32, parents=7, dim=64))
        >>> layer = RoutedLayer(votes, "slot_attention")

    Args:
        iterations: from 1 to 100; the paper has 3.
        start: "random" has one mean mu and one deviation sigma for all slots, whose number may
            then change after the training; "learned" has a start of each slot and no noise.
        hidden: width of the MLP, at least 1.
        detach: send the gradient through the last iteration alone, in constant memory (arXiv
            2207.00787). The start gets that of the slots before it (arXiv 2210.08990).

    Attributes:
        mean: mu `[1, d]`; of learned starts `[slots, d]`.
        log_deviation: logarithm of sigma, `[1, d]`; of random starts alone.

    Raises:
        ArgumentError: an unknown start, or a number out of range.
    """

    activation = "none"  # nothing says whether a slot is present
    permutation_equivariant = False  # the noise of a slot is that of its place
    adds_bias = True  # `route` adds the learned bias of the layer to u
    convention = "type"  # the slots of one position compete

    def __init__(
        self,
        iterations: int = 3,
        *,
        start: Start = "random",
        hidden: int = 128,
        detach: bool = False,
    ) -> None:
        super().__init__(iterations)
        check_known("start", start, Start)
        check_positive(hidden=hidden)
        self.start = start
        self.draws = start == "random"
        self.hidden = hidden
        self.detach = detach

    @property
    def num_iterations(self) -> int:
        """Iterations of a call, also with fixed couplings."""
        return self.iterations

    def build_parameters(self, sizes: LayerSizes) -> None:
        """Make the parameters; only learned starts belong to a slot.

        Args:
            sizes: numbers of children and slots, and the dimensions of their poses.
        """
        dim = sizes.dim
        self.norm_slots = nn.LayerNorm(dim)
        self.norm_mlp = nn.LayerNorm(dim)
        self.key = nn.Linear(sizes.in_dim, dim, bias=False)
        self.query = nn.Linear(dim, dim, bias=False)
        self.gru = nn.GRUCell(dim, dim)
        self.expand = nn.Linear(dim, self.hidden)
        self.contract = nn.Linear(self.hidden, dim)
        is_learned = self.start == "learned"
        self.mean = nn.Parameter(torch.empty(sizes.parents if is_learned else 1, dim))
        drawn = [self.mean, self.key.weight, self.query.weight]
        if not is_learned:
            self.log_deviation = nn.Parameter(torch.empty(1, dim))
            drawn.append(self.log_deviation)
        for parameter in drawn:
            nn.init.xavier_uniform_(parameter)

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        """Update slots `iterations` times.

        Args:
            votes: V of a layer, stored or not, with `pose` x `[..., i, in_dim]` of the children.
            parents: slots to start from, or None.

        Returns:
            Pose s `[..., j, d]`, activation 1 `[..., j]`, coupling c `[..., i, j]`, and as an extra
            the weights w `[..., i, j]` of the last mean.
        """
        k = _apply(self.key, clamp_finite(full_precision(votes.pose), factor_limit))
        starts = self._starts(votes, k) if parents is None else full_precision(parents.pose)
        s = starts
        for _ in range(self.iterations):
            if self.detach:
                s = s.detach() + (starts - starts.detach())
            q = _apply(self.query, _normalize(self.norm_slots, s)) * votes.dim**-0.5
            c = votes.couple(k @ q.mT)
            w = mean_weights(c, votes.mask)
            s = self._update(votes.add_bias(votes.weighted(w)), s)
        votes.context.record(weights=w)
        return Routed(s, torch.ones_like(s[..., 0]), c)

    def _starts(self, votes: Votes, like: Tensor) -> Tensor:
        """Equation 1, `[..., j, d]` in the type of `like`."""
        shape = (*like.shape[:-2], votes.parents, votes.dim)
        mean = self.mean.to(like).expand(shape)
        if self.start == "learned":
            return mean
        if self.training:
            noise = torch.randn(shape, dtype=like.dtype, device=like.device)
        else:
            noise = random_logits(votes.parents, votes.dim, device=like.device).to(like)
        return mean + self.log_deviation.to(like).exp() * noise

    def _update(self, u: Tensor, s: Tensor) -> Tensor:
        """Equation 5: gated recurrent unit with state s, then the MLP."""
        gru = self.gru
        input_gates = F.linear(u, gru.weight_ih.to(u), gru.bias_ih.to(u)).chunk(3, dim=-1)
        state_gates = F.linear(s, gru.weight_hh.to(s), gru.bias_hh.to(s)).chunk(3, dim=-1)
        reset, keep = (
            torch.sigmoid(of_input + of_state)
            for of_input, of_state in zip(input_gates[:2], state_gates[:2], strict=True)
        )
        candidate = torch.tanh(input_gates[2] + reset * state_gates[2])
        s = keep * s + (1 - keep) * candidate
        return s + _apply(self.contract, _apply(self.expand, _normalize(self.norm_mlp, s)).relu())


class _LazySharedVotes(ModuleVotes):
    """Votes of `SharedVotes`: children are summed before they are transformed."""

    @property
    def pose(self) -> Tensor:
        return self._memoized("pose", self._normalized)

    def _normalized(self) -> Tensor:
        pose = full_precision(self.field.gather(self.children.pose))
        return _normalize(self.module.norm, clamp_finite(pose, factor_limit))

    def _compute(self) -> Tensor:
        votes = _apply(self.module, self.pose).unsqueeze(-2)
        return votes.expand(*votes.shape[:-2], self.parents, self.dim)

    def weighted(self, coefficients: Tensor) -> Tensor:
        return _apply(self.module, coefficients.mT @ self.pose)


class SharedVotes(VotesModule):
    """`V_ij = W_v norm(x_i)`: one vote of a child for all parents, by one matrix for all children.

    Args:
        sizes: of the layer; the number of children and parents may change from call to call.

    Attributes:
        norm: layer norm of the poses; a router that reads them gets them normalized.
        weight: W_v, `[dim, in_dim]`.

    Raises:
        ArgumentError: a size below 1.
    """

    lazy_votes = _LazySharedVotes

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__(sizes)
        self.norm = nn.LayerNorm(sizes.in_dim)
        self.weight = nn.Parameter(torch.empty(sizes.dim, sizes.in_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the matrix anew, and set the layer norm to 1 and 0."""
        self.norm.reset_parameters()
        nn.init.xavier_uniform_(self.weight)


def mean_weights(coupling: Tensor, mask: Tensor | None = None, epsilon: float = EPSILON) -> Tensor:
    """Equation 3: couplings as weights whose sum over children is one.

    Args:
        coupling: c `[..., i, j]`.
        mask: `[..., i]`, 1 for children that are present and 0 for others; None for all present.
        epsilon: added to the couplings of the children that are present.

    Returns:
        `[..., i, j]`; zeros where all children are absent.
    """
    shares = coupling + epsilon
    if mask is not None:
        shares = shares * mask.to(shares).unsqueeze(-1)
    return shares / shares.sum(dim=-2, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)


def _apply(layer: nn.Linear | SharedVotes, x: Tensor) -> Tensor:
    """A linear layer in the precision of x, which may be higher than that of its weights."""
    return F.linear(x, layer.weight.to(x), None if layer.bias is None else layer.bias.to(x))


def _normalize(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """A layer norm in the precision of x."""
    return F.layer_norm(x, x.shape[-1:], norm.weight.to(x), norm.bias.to(x), norm.eps)
