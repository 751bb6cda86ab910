"""Every registered router, put to the checks that ship with the library: a new one needs no new test."""

import pytest
import torch

from outside.routers import VOTES
from torchcaps import functional, testing
from torchcaps.nn import Router, create_router
from torchcaps.nn.routers import RandomRouting
from torchcaps.testing import PropertyError, check_router
from torchcaps.types import Routed

from .variants import ROUTERS, named

CHECKS = [
    testing.check_ranges,
    testing.check_permutations,
    testing.check_batch_independence,
    testing.check_purity,
    testing.check_extremes,
    testing.check_gradients,
    testing.check_precision,
    testing.check_copies,
    testing.check_ablations,
]


@pytest.mark.parametrize(("name", "options"), ROUTERS, ids=named)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_router(name, options, check):
    check(name, **options)


@pytest.mark.parametrize("name", VOTES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_router_of_somebody_else(name, check):
    check(name)


def test_all_checks_at_once():
    check_router(create_router("dynamic"))
    check_router("dynamic", leaky=True, detach=True)


def test_what_is_declared_is_what_is_checked():
    """Random couplings belong to places: said to be permutation_equivariant, they are caught."""

    class Careless(RandomRouting):
        permutation_equivariant = True

    with pytest.raises(PropertyError, match="parents: pose"):
        testing.check_permutations(Careless())


def children_softmax(votes, activation):
    """The widely copied slip: softmax over children."""
    b = torch.zeros_like(votes[..., 0])
    for step in range(3):
        c = b.softmax(dim=-2)
        v, length = functional.squash_with_length(torch.einsum("...ij,...ijd->...jd", c, votes))
        if step < 2:
            b = b + torch.einsum("...ijd,...jd->...ij", votes, v)
    return Routed(v, length, c)


def parents_apart(votes, activation):
    """Favors the first parent: not equivariant."""
    routed = functional.dynamic_routing(votes)
    favor = torch.arange(votes.shape[-2]) == 0
    return routed._replace(pose=routed.pose * (1 + favor.unsqueeze(-1)))


def batch_mixed(votes, activation):
    """Shares logits across the batch."""
    return functional.dynamic_routing(votes + votes.mean(dim=0, keepdim=True))


def bare_root(votes, activation):
    """Divides by a norm without care."""
    s = votes.mean(dim=-3)
    n = s.norm(dim=-1, keepdim=True)
    pose = n / (1 + n**2) * s
    return Routed(
        pose / n * n, pose.norm(dim=-1), torch.full_like(votes[..., 0], 1 / votes.shape[-2])
    )


class Hoarder(torch.nn.Module):
    """Keeps its logits from one call to the next."""

    logits = 0.0

    def forward(self, votes, activation):
        c = (torch.zeros_like(votes[..., 0]) + self.logits).softmax(dim=-1)
        v, length = functional.squash_with_length(torch.einsum("...ij,...ijd->...jd", c, votes))
        self.logits = torch.einsum("...ijd,...jd->...ij", votes, v).detach()
        return Routed(v, length, c)


class Overwriting(Router):
    """Scales the caller's votes in place."""

    handles_extreme_votes = True

    def route(self, votes, parents):
        with torch.no_grad():
            return functional.uniform_routing(votes.dense().mul_(1.5))


def half_way(votes, activation):
    """Gives half precision."""
    return Routed(*(t.bfloat16() for t in functional.dynamic_routing(votes)))


def cut_off(votes, activation):
    """Says nothing of the gradient that it drops."""
    return functional.dynamic_routing(votes, detach=True)


class Copied(torch.nn.Module):
    """Forgets its parameters when it is copied."""

    def __init__(self, scale=0.5):
        super().__init__()
        self.scale = scale

    def __deepcopy__(self, memo):
        return Copied(1.0)

    def forward(self, votes, activation):
        return functional.dynamic_routing(votes * self.scale)


@pytest.mark.parametrize(
    ("broken", "check", "message"),
    [
        (children_softmax, testing.check_ranges, "sum of couplings over parents"),
        (parents_apart, testing.check_permutations, "parents: pose"),
        (batch_mixed, testing.check_batch_independence, "batch of one: pose"),
        (Hoarder(), testing.check_purity, "second call"),
        (Overwriting(), testing.check_purity, "votes after the call"),
        (bare_root, testing.check_extremes, "votes of size 0: .* not finite"),
        (cut_off, testing.check_gradients, "gradient against finite differences"),
        (half_way, testing.check_precision, "pose: expected torch.float32, got torch.bfloat16"),
        (Copied(), testing.check_copies, "deepcopy: pose"),
    ],
)
def test_checks_catch_what_public_code_gets_wrong(broken, check, message):
    with pytest.raises(PropertyError, match=message):
        check(broken)


def test_a_router_without_coupling_is_told_so():
    with pytest.raises(ValueError, match="router: expected a coupling"):
        check_router(
            lambda votes, activation: functional.dynamic_routing(votes)._replace(coupling=None)
        )
