"""EM routing as a router: `functional.em_routing` with its two learned costs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from torchcaps import ops
from torchcaps.functional.routing.em import temperatures
from torchcaps.functional.squash import full_precision
from torchcaps.functional.votes import Votes
from torchcaps.nn.routers import IterativeRouter, Router, register_router
from torchcaps.types import Capsules, LayerSizes, Routed


@register_router("em")
class EMRouting(IterativeRouter):
    """`functional.em_routing` with learned `beta_u` and `beta_a`.

    Source: Hinton, Sabour, Frosst, "Matrix capsules with EM routing", ICLR 2018. Each parent of a
    layer has its own costs, as in the authors' code; a router without a layer has one pair.
    `beta_a` is stored as `lambda * beta_a`, so that a step of the optimizer moves the argument of
    the sigmoid by as much: the published values are in the thousands, out of reach of steps of
    0.001.

    Args:
        iterations: from 1 to 100; the paper has 3.
        inverse_temperature: lambda of each iteration, or its limit; see `functional.em_routing`.
        beta_u: initial value.
        beta_a: initial value of `lambda * beta_a`; 0 is an activation of 1/2 for a parent without
            data.
        impl: "auto", "reference", "blocked" or "numba"; see `torchcaps.ops`.
    """

    operators = ("em_routing",)
    activation = "probability"
    agreement = True  # the cost of a parent is the logarithm of the variance of its votes
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
        super().__init__(iterations)
        self.impl = impl
        self.inverse_temperature = tuple(temperatures(iterations, inverse_temperature))
        self.beta_u = nn.Parameter(torch.full((1,), float(beta_u)))
        self.beta_a = nn.Parameter(torch.full((1,), float(beta_a)))

    def build(self, sizes: LayerSizes) -> None:
        if self.sizes is None:
            self.beta_u = nn.Parameter(self.beta_u.detach().repeat(sizes.parents))
            self.beta_a = nn.Parameter(self.beta_a.detach().repeat(sizes.parents))
        super().build(sizes)

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        beta_u = self.beta_u.expand(votes.parents)
        beta_a = self.beta_a.expand(votes.parents)
        beta_a = full_precision(beta_a) / self.inverse_temperature[-1]
        temperatures = self.inverse_temperature[-self.num_iterations :]
        if not self.agreement:
            votes = votes.bind(replace(votes.context, needs_coupling=True))
        routed = ops.em_routing(
            votes,
            None,
            beta_u,
            beta_a,
            len(temperatures),
            temperatures,
            impl=self.impl,
        )
        if self.agreement:
            return routed
        assert routed.coupling is not None
        # A variance of 1 has no cost.
        S = (routed.coupling * votes.activation.unsqueeze(-1)).sum(dim=-2)
        logit = temperatures[-1] * (beta_a - full_precision(beta_u) * votes.dim * S)
        return Routed(routed.pose, logit.sigmoid(), routed.coupling)

    def with_iterations(self, iterations: int) -> Router:
        router: Any = super().with_iterations(iterations)
        if router is not self:
            router.inverse_temperature = self.inverse_temperature[:iterations]
            # The learned cost is a multiple of the last temperature, which is another one now.
            router.beta_a.data.mul_(router.inverse_temperature[-1] / self.inverse_temperature[-1])
        return router
