"""Every registered router passes the checks that ship with the library: a new one needs no test."""

import pytest
import torch

import outside.routers  # noqa: F401  it registers "prototype"
from torchcaps import functional, testing
from torchcaps.errors import ArgumentError
from torchcaps.nn import Router, create_router
from torchcaps.nn.routers import RandomRouting
from torchcaps.testing import PropertyError, check_router
from torchcaps.types import Routed

from .variants import ROUTERS


@pytest.mark.parametrize(("name", "options"), ROUTERS)
def test_router(name, options):
    check_router(name, **options)


@pytest.mark.parametrize("routing", ["prototype", create_router("uniform")], ids=["user", "module"])
def test_router_of_a_user_and_router_module(routing):
    check_router(routing)


def test_a_false_declaration_is_caught():
    """Random couplings belong to places: declared permutation equivariant, they are caught."""

    class Careless(RandomRouting):
        permutation_equivariant = True

    with pytest.raises(PropertyError, match="parents: pose"):
        testing.check_permutations(Careless())


def children_softmax(votes, activation):
    """The widely copied mistake: softmax over children."""
    b = torch.zeros_like(votes[..., 0])
    for step in range(3):
        c = b.softmax(dim=-2)
        v, length = functional.squash_with_length(torch.einsum("...ij,...ijd->...jd", c, votes))
        if step < 2:
            b = b + torch.einsum("...ijd,...jd->...ij", votes, v)
    return Routed(v, length, c)


def favored_parent(votes, activation):
    """Favors the first parent: not equivariant."""
    routed = functional.dynamic_routing(votes)
    is_first = torch.arange(votes.shape[-2]) == 0
    return routed._replace(pose=routed.pose * (1 + is_first.unsqueeze(-1)))


def batch_mixed(votes, activation):
    """Shares logits across the batch."""
    return functional.dynamic_routing(votes + votes.mean(dim=0, keepdim=True))


def bare_root(votes, activation):
    """Divides by a norm that may be zero."""
    s = votes.mean(dim=-3)
    n = s.norm(dim=-1, keepdim=True)
    pose = n / (1 + n**2) * s
    coupling = torch.full_like(votes[..., 0], 1 / votes.shape[-2])
    return Routed(pose / n * n, pose.norm(dim=-1), coupling)


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


def half_precision(votes, activation):
    return Routed(*(tensor.bfloat16() for tensor in functional.dynamic_routing(votes)))


def cut_off(votes, activation):
    """Does not declare the gradient that it drops."""
    return functional.dynamic_routing(votes, detach=True)


class Forgetful(torch.nn.Module):
    """Forgets its parameters when it is copied."""

    def __init__(self, scale=0.5):
        super().__init__()
        self.scale = scale

    def __deepcopy__(self, memo):
        return Forgetful(1.0)

    def forward(self, votes, activation):
        return functional.dynamic_routing(votes * self.scale)


@pytest.mark.parametrize(
    ("broken", "check", "message"),
    [
        (children_softmax, testing.check_ranges, "sum of couplings over parents"),
        (favored_parent, testing.check_permutations, "parents: pose"),
        (batch_mixed, testing.check_purity, "batch of one: pose"),
        (Hoarder(), testing.check_purity, "second call"),
        (Overwriting(), testing.check_purity, "votes after the call"),
        (bare_root, testing.check_extremes, "votes of size 0 .* not finite"),
        (cut_off, testing.check_gradients, "gradient against finite differences"),
        (half_precision, testing.check_precision, "pose: expected torch.float32, got torch.bfloat"),
        (Forgetful(), testing.check_copies, "deepcopy: pose"),
    ],
)
def test_checks_catch_mistakes_of_public_code(broken, check, message):
    with pytest.raises(PropertyError, match=message):
        check(broken)


def squashed(votes, coupling):
    return Routed(*functional.squash_with_length(votes.weighted(coupling)), coupling)


class OwnSoftmax(Router):
    """Makes its couplings by itself."""

    def route(self, votes, parents):
        return squashed(votes, votes.dense().sum(dim=-1).softmax(dim=-1))


class TemperedCoupling(Router):
    """Tempers the couplings, not their logits."""

    def route(self, votes, parents):
        coupling = votes.couple(votes.dense().sum(dim=-1)).square()
        return squashed(votes, coupling / coupling.sum(dim=-1, keepdim=True))


class EqualCoupling(Router):
    """Follows every convention."""

    def route(self, votes, parents):
        return squashed(votes, votes.couple())


class CoupledTwice(Router):
    """Couples once more for nothing: recorded iterations are too many."""

    def route(self, votes, parents):
        votes.couple()
        return squashed(votes, votes.couple())


class BiasNotAdded(EqualCoupling):
    adds_bias = True


class BiasNotDeclared(EqualCoupling):
    def route(self, votes, parents):
        coupling = votes.couple()
        s = votes.weighted(coupling)
        s = s if votes.bias is None else s + votes.bias
        return Routed(*functional.squash_with_length(s), coupling)


class AgreementNotDeclared(EqualCoupling):
    activation = "probability"

    def route(self, votes, parents):
        routed = super().route(votes, parents)
        variance = votes.dense().var(dim=-3, correction=0).sum(dim=-1)
        return routed._replace(activation=torch.exp(-variance))


class AgreementNotLeftOut(AgreementNotDeclared):
    agreement = True


@pytest.mark.parametrize(
    ("router", "message"),
    [
        (AgreementNotDeclared, "agreement: declared False, which uniform"),
        (AgreementNotLeftOut, "activations of uniform.agreement=False. depend on it"),
    ],
)
def test_a_router_declares_the_agreement_in_its_activations_and_leaves_it_out(router, message):
    with pytest.raises(PropertyError, match=message):
        testing.check_ablations(router())


@pytest.mark.parametrize("router", [OwnSoftmax, TemperedCoupling, BiasNotAdded, BiasNotDeclared])
def test_a_router_that_breaks_a_convention_fails_its_check(router):
    check_router(EqualCoupling())
    with pytest.raises(PropertyError):
        check_router(router())


def test_a_router_couples_once_an_iteration():
    with pytest.raises(PropertyError, match="expected 1 calls, one an iteration, got 2"):
        check_router(CoupledTwice())


def test_routing_that_returns_a_bare_tuple_is_refused_by_name():
    class Bare(EqualCoupling):
        def route(self, votes, parents):
            return tuple(super().route(votes, parents))

    with pytest.raises(ArgumentError, match="^routing: .*Bare"):
        Bare()(testing.random_votes(2, 3, 4, 5))


def test_a_router_without_coupling_is_refused():
    def route(votes, activation):
        return functional.dynamic_routing(votes)._replace(coupling=None)

    with pytest.raises(ArgumentError, match="router: expected a coupling"):
        check_router(route)
