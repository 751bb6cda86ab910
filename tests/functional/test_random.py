"""Fixed random couplings depend on nothing but the seed and the place."""

import pytest
import torch
from torch.testing import assert_close

from torchcaps.errors import ArgumentError
from torchcaps.functional import random_coupling, random_routing, squash, uniform_routing
from torchcaps.nn import CapsuleLinear, create_router, record_routing
from torchcaps.testing import assert_outcome, random_capsules, random_votes


def test_poses_are_weighted_sums_of_votes():
    votes = random_votes(3, 7, 4, 5, dtype=torch.float64)
    routed = random_routing(votes, 2, scale=1.5)
    c = random_coupling(7, 4, 2, scale=1.5).double()
    assert_close(routed.pose, squash(torch.einsum("ij,bijd->bjd", c, votes)))
    assert_close(routed.coupling, c.expand(3, 7, 4))


def test_the_global_random_state_is_left_alone():
    first = random_coupling(20, 5)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert torch.equal(random_coupling(20, 5), first)
    assert torch.equal(torch.get_rng_state(), state)


def test_seeds_give_independent_numbers():
    logits = torch.stack([random_coupling(20, 5, seed).log() for seed in range(6)]).flatten(1)
    assert (torch.corrcoef(logits) - torch.eye(6)).abs().max() < 0.4
    assert_close(random_coupling(20, 5, 0xFFFFFFFF).sum(dim=1), torch.ones(20))


def test_known_values():
    """So that runs of today can be repeated tomorrow."""
    expected = [[0.175631, 0.568399, 0.255970], [0.745263, 0.124935, 0.129802]]
    coupling = random_coupling(2, 3, 7)
    assert_close(
        coupling,
        torch.tensor(expected),
        rtol=0,
        atol=1e-5,
    )


def test_a_scale_of_zero_is_uniform():
    votes = random_votes(2, 6, 5, 4, space=(2, 3))
    assert_close(random_routing(votes, scale=0.0), uniform_routing(votes))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("impl", ["auto", "reference", "blocked"])
def test_one_operator_gives_the_parents_of_stored_votes(bias, impl):
    layer = CapsuleLinear(
        6,
        4,
        5,
        3,
        "random",
        seed=3,
        scale=2.0,
        bias=bias,
        impl=impl,
    )
    children = random_capsules(3, 6, 4)
    with record_routing(layer) as record:
        layer(children)
    trace = record[""][0]
    expected = random_routing(layer.make_votes(children), 3, scale=2.0)
    actual = expected._replace(
        pose=trace.pose, activation=trace.activation, coupling=trace.coupling
    )
    assert_outcome("routing", actual, expected, 1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed: expected between 0 and 4294967295, got -1"),
        ({"scale": -1.0}, "scale: expected at least 0.0, got -1.0"),
    ],
)
def test_out_of_range(options, message):
    with pytest.raises(ArgumentError, match=message):
        create_router("random", **options)
    with pytest.raises(ArgumentError, match=message):
        random_routing(random_votes(), **options)
