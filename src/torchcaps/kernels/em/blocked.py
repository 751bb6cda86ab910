"""EM routing in torch operations, a block of samples at a time; see `kernels/samples.py`."""

from torch import Tensor

from torchcaps.functional.routing.em import em_routing
from torchcaps.functional.votes import Votes
from torchcaps.kernels.registry import fast_path
from torchcaps.kernels.samples import by_samples
from torchcaps.kernels.support import BLOCKED, not_recomputable
from torchcaps.types import Routed


@fast_path("em_routing", "blocked", not_recomputable, rank=20, reason=BLOCKED)
def run(
    votes: Votes, *, beta_u: Tensor | float, beta_a: Tensor | float, temperatures: list[float]
) -> Routed:
    """EM routing of products of poses and matrices."""

    def route(block: Votes) -> Routed:
        return em_routing(block, None, beta_u, beta_a, len(temperatures), temperatures)

    return Routed._make(by_samples(route, votes))
