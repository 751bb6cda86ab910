"""EM routing as a router: `functional.em_routing` with its two learned costs."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from torchcaps import ops
from torchcaps.functional.routing.em import temperatures
from torchcaps.functional.squash import full_precision
from torchcaps.functional.votes import Votes
from torchcaps.nn.routers import Router, check_iterations, register_router
from torchcaps.types import Capsules, LayerSizes, Routed


@register_router("em")
class EMRouting(Router):
    """`functional.em_routing` with learned `beta_u` and `beta_a` (Hinton, Sabour, Frosst, ICLR 2018).

    Each parent of a layer has costs of its own, as in the authors' code; a router without a layer has one pair.
    `beta_a` is kept multiplied by lambda, so that a step of the optimizer moves the argument of the sigmoid by as much:
    the published values are in the thousands, out of the reach of steps of 0.001.

    Args:
        iterations: from 1 to 100; the paper uses 3.
        inverse_temperature: lambda after many iterations, or one for each; see `functional.em_routing`.
        beta_u: value at the start.
        beta_a: value of `lambda * beta_a` at the start; 0 is an activation of 1/2 for a parent without data.
        impl: "auto", "reference", "blocked" or "numba"; see `torchcaps.ops`.
    """

    operators = ("em_routing",)
    activation = "probability"
    adds_bias = True
    handles_extreme_votes = True

    def __init__(
        self,
        iterations: int = 3,
        *,
        inverse_temperature: float | Sequence[float] = 0.01,
        beta_u: float = 0.0,
        beta_a: float = 0.0,
        impl: ops.Impl = "auto",
    ) -> None:
        super().__init__()
        self.iterations, self.impl = check_iterations(iterations), impl
        self.inverse_temperature = tuple(temperatures(iterations, inverse_temperature))
        self.beta_u, self.beta_a = (
            nn.Parameter(torch.full((1,), float(value))) for value in (beta_u, beta_a)
        )

    def build(self, sizes: LayerSizes) -> None:
        if self.sizes is None:
            pair = self.beta_u.detach(), self.beta_a.detach()
            self.beta_u, self.beta_a = (nn.Parameter(beta.repeat(sizes.parents)) for beta in pair)
        super().build(sizes)

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        beta_u, beta_a = (beta.expand(votes.parents) for beta in (self.beta_u, self.beta_a))
        beta_a = full_precision(beta_a) / self.inverse_temperature[-1]
        temperatures = self.inverse_temperature[-self.num_iterations :]
        return ops.em_routing(
            votes, None, beta_u, beta_a, len(temperatures), temperatures, impl=self.impl
        )

    def with_iterations(self, iterations: int) -> Router:
        copy: Any = super().with_iterations(iterations)
        if copy is not self:
            copy.inverse_temperature = self.inverse_temperature[:iterations]
            # The learned cost is kept as a multiple of the last temperature, which is another one now.
            copy.beta_a.data.mul_(copy.inverse_temperature[-1] / self.inverse_temperature[-1])
        return copy
