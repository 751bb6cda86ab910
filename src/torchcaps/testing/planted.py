"""Votes whose right answer is planted: it is in their agreement alone, or in their mean alone."""

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from torchcaps.errors import ArgumentError, check_known, check_range
from torchcaps.functional import DenseVotes
from torchcaps.nn.routers import Router, Routing
from torchcaps.testing.properties import build_router
from torchcaps.testing.random import seeded
from torchcaps.types import LayerSizes

Kind = Literal["agreement", "mean"]
NOISE = 0.3  # of votes that agree, before they are as long as all others
SHARE = 0.5  # of the children that agree on the right parent
LENGTH = 0.3  # of the mean of a parent's votes, about which they have a variance of 1
JITTER = 0.2  # standard deviation of this length, in shares of it
ADVANTAGE = 0.15  # of the right parent, in length, where the mean tells


def planted_votes(
    agrees: Bool[Tensor, "n children parents"],
    dim: int = 16,
    *,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "n children parents dim"]:
    """Votes of length 1 in random directions, but those that agree point nearly the same way.

    Args:
        agrees: which children agree on which parents, `[n, children, parents]`.
        dim: dimensions of a vote.
        generator: draws the votes; by default a new one with seed 0.

    Returns:
        Votes `[n, children, parents, dim]`.
    """
    generator = generator or seeded()
    n, _, parents = agrees.shape
    directions = normalize(torch.randn(*agrees.shape, dim, generator=generator), dim=-1)
    poses = normalize(torch.randn(n, 1, parents, dim, generator=generator), dim=-1)
    agreed = normalize(poses + NOISE * directions, dim=-1)
    return torch.where(agrees.unsqueeze(-1), agreed, directions)


class PlantedAnswers(NamedTuple):
    """Votes and the parent that is right.

    Attributes:
        votes: `[n, children, parents, dim]`.
        labels: the right parent, `[n]`.
    """

    votes: Float[Tensor, "n children parents dim"]
    labels: Int64[Tensor, " n"]


def planted_answers(
    kind: Kind,
    num_samples: int = 1000,
    children: int = 64,
    parents: int = 10,
    dim: int = 16,
    *,
    seed: int = 0,
) -> PlantedAnswers:
    """Votes that tell the right parent by their agreement alone, or by their mean alone.

    The votes for every parent have a variance of 1 about their mean. The length of the mean varies.

    Args:
        kind: "agreement": half of the children agree on the right parent, but the lengths of votes
            and means are drawn as for every other parent. "mean": no children agree, and the mean
            vote for the right parent is longer than the others by 2.5 of their standard deviations.
        num_samples: n, 1 or more.
        children: 2 or more.
        parents: 2 or more; each is right as often.
        dim: of a vote.
        seed: of all that is random.

    Returns:
        The votes and the right parents.

    Raises:
        ArgumentError: an unknown kind, or sizes out of range.
    """
    check_known("kind", kind, Kind)
    check_range("children", children, low=2)
    check_range("parents", parents, low=2)
    generator = seeded(seed)
    labels = torch.arange(num_samples) % parents
    is_right = one_hot(labels, parents)
    order = torch.rand(num_samples, children, generator=generator).argsort(dim=1)
    in_cluster = order < (SHARE * children if kind == "agreement" else 0)
    agrees = in_cluster.unsqueeze(-1) & is_right.bool().unsqueeze(1)
    votes = planted_votes(agrees, dim, generator=generator)

    mean = votes.mean(dim=1, keepdim=True)
    spread = votes - mean
    spread = spread / spread.square().sum(dim=-1, keepdim=True).mean(dim=1, keepdim=True).sqrt()
    noise = torch.randn(num_samples, parents, generator=generator)
    length = LENGTH * (1 + JITTER * noise) + (ADVANTAGE * is_right if kind == "mean" else 0)
    return PlantedAnswers(spread + length[:, None, :, None] * normalize(mean, dim=-1), labels)


class PlantedAccuracy(NamedTuple):
    """How often the most active parent is the right one, in [0, 1].

    Attributes:
        routed: as the router is.
        uniform: with equal couplings.
        without_agreement: with equal couplings, and activations without the spread of votes; as
            `uniform` for a router whose activations do not depend on it.
    """

    routed: float
    uniform: float
    without_agreement: float


class PlantedPair(NamedTuple):
    """What one router makes of both kinds of planted answers.

    Attributes:
        agreement: where only the agreement of votes tells the answer.
        mean: where only the mean of votes does.
    """

    agreement: PlantedAccuracy
    mean: PlantedAccuracy


def planted_pair(
    routing: Routing, num_samples: int = 1000, *, seed: int = 0, **options: Any
) -> PlantedPair:
    """Measure what a router gains by agreement where only agreement tells, and where it does not.

    Parameters of the router stay as they are: a trained one is measured as trained.

    Args:
        routing: a name, or a router, which is not changed. One that a layer has built gets votes of
            the sizes of this layer.
        num_samples: of each kind of answers.
        seed: of the votes.
        options: of the router of that name, such as `iterations=2`.

    Returns:
        The accuracies; chance is 1 / parents, by default 0.1.

    Raises:
        ArgumentError: for a router whose activations mean nothing.
        AblationUnsupportedError: for a function, or a router that makes its couplings by itself.

    Example:
        >>> planted_pair("dynamic").agreement.uniform < 0.2
        True
    """
    sizes = getattr(routing, "sizes", None) or LayerSizes(64, 16, 10, 16)
    router = build_router(routing, options, sizes)
    if router.activation == "none":
        raise ArgumentError(
            "routing", f"expected activations of parents, got {router.describe()}, which has none"
        )
    pose = torch.randn(num_samples, sizes.children, sizes.in_dim, generator=seeded(seed))
    ablations = (router, router.uniform(), router.uniform(agreement=False))

    def measure(kind: Kind) -> PlantedAccuracy:
        size = (sizes.children, sizes.parents, sizes.dim)
        votes, labels = planted_answers(kind, num_samples, *size, seed=seed)
        children = DenseVotes(votes, pose=pose)
        return PlantedAccuracy._make(_accuracy(ablated, children, labels) for ablated in ablations)

    return PlantedPair(measure("agreement"), measure("mean"))


@torch.no_grad()
def _accuracy(router: Router, votes: DenseVotes, labels: Tensor) -> float:
    answer = router(votes).activation.argmax(dim=-1)
    return float((answer == labels).double().mean())
