"""EM routing as a router: `functional.em_routing` with its two learned costs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchcaps import functional, ops
from torchcaps.functional.routing.em import temperatures
from torchcaps.functional.squash import full_precision
from torchcaps.functional.windows import Convention, Windows
from torchcaps.nn.routers import Router, check_iterations, register_router
from torchcaps.types import Routed


@register_router("em")
class EMRouting(Router):
    """`functional.em_routing` with learned `beta_u` and `beta_a` (Hinton, Sabour, Frosst, ICLR 2018).

    `beta_a` is kept multiplied by lambda, so that a step of the optimiser moves the argument of the sigmoid by as much:
    the published values are in the thousands, out of the reach of steps of 0.001.

    Args:
        iterations: from 1 to 100; the paper uses 3.
        parents: number of parent types, which then have costs of their own, as in the authors' code; None for one pair
            of costs that all parents share.
        inverse_temperature: lambda after many iterations, or one for each; see `functional.em_routing`.
        beta_u: value at the start.
        beta_a: value of `lambda * beta_a` at the start; 0 is an activation of 1/2 for a parent without data.
        impl: "auto", "reference", "numba" or "cpu"; see `torchcaps.ops`.

    Raises:
        ValueError: for iterations out of range, or another number of temperatures.
    """

    operators = ("routed_em",)

    def __init__(
        self,
        iterations: int = 3,
        *,
        parents: int | None = None,
        inverse_temperature: float | Sequence[float] = 0.01,
        beta_u: float = 0.0,
        beta_a: float = 0.0,
        impl: ops.Impl = "auto",
    ) -> None:
        super().__init__()
        check_iterations(iterations)
        schedule = temperatures(iterations, inverse_temperature)
        self.iterations, self.impl = iterations, impl
        self.inverse_temperature = tuple(schedule)
        self.start = (beta_u, beta_a)
        self.beta_u, self.beta_a = (nn.Parameter(torch.empty(parents or 1)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set both costs to where they start."""
        for beta, value in zip((self.beta_u, self.beta_a), self.start, strict=True):
            nn.init.constant_(beta, value)

    def costs(self, parents: int) -> tuple[Tensor, Tensor]:
        """beta_u and beta_a of the paper, `[parents]` each."""
        beta_a = full_precision(self.beta_a) / self.inverse_temperature[-1]
        return self.beta_u.expand(parents), beta_a.expand(parents)

    def forward(self, votes: Tensor, activation: Tensor, bias: Tensor | None = None) -> Routed:
        """Route votes `[batch, *space, children, parents, dim]`; a bias `[parents, dim]` is added to them."""
        if bias is not None:
            votes = full_precision(votes) + full_precision(bias)
        costs = self.costs(votes.shape[-2])
        return functional.em_routing(votes, activation, *costs, self.iterations, self.inverse_temperature)

    def linear(
        self, pose: Tensor, activation: Tensor, weight: Tensor, bias: Tensor | None = None, *,
        want_coupling: bool = True,
    ) -> Routed:  # fmt: skip
        """Votes of a linear layer and their routing as one operator."""
        shift = None if bias is None else bias.unsqueeze(0)
        return self.matrices(pose, activation, weight.transpose(2, 3), shift, want_coupling=want_coupling)

    def matrices(
        self, pose: Tensor, activation: Tensor, weight: Tensor, shift: Tensor | None = None, *,
        want_coupling: bool = True,
    ) -> Routed:  # fmt: skip
        """Matrix votes of children `[batch, children, in_dim]` and their routing: a map of one position."""
        children = pose[:, None, None], activation[:, None, None]
        routed = self.windowed(
            *children, weight, shift, windows=Windows(1, 1, 1), convention="type", want_coupling=want_coupling
        )
        coupling = None if routed.coupling is None else routed.coupling[:, 0, 0]
        return Routed(routed.pose[:, 0, 0], routed.activation[:, 0, 0], coupling)

    def windowed(
        self, pose: Tensor, activation: Tensor, weight: Tensor, shift: Tensor | None = None, *, windows: Windows,
        convention: Convention = "all", want_coupling: bool = True,
    ) -> Routed:  # fmt: skip
        """Matrix votes within windows and their routing as one operator; see `functional.routed_em`."""
        return ops.routed_em(
            pose, activation, weight, *self.costs(weight.shape[1]), shift, windows=windows,
            iterations=self.iterations, inverse_temperature=self.inverse_temperature, convention=convention,
            want_coupling=want_coupling, impl=self.impl,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """The options."""
        return f"iterations={self.iterations}, impl={self.impl!r}"
