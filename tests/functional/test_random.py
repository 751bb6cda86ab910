"""Fixed random couplings: where they come from, and that nothing but the seed and the place moves them."""

import numpy as np
import pytest
import torch

from torchcaps.functional import random_coupling, random_routing, squash, uniform_routing
from torchcaps.nn import CapsuleLinear, create_router, record_routing
from torchcaps.testing import random_capsules, random_votes
from torchcaps.types import Capsules


def test_equals_the_weighted_sum():
    votes = random_votes(3, 7, 4, 5, dtype=torch.float64)
    routed = random_routing(votes, 2, scale=1.5)
    c = random_coupling(7, 4, 2, scale=1.5).double()
    torch.testing.assert_close(routed.pose, squash(torch.einsum("ij,bijd->bjd", c, votes)))
    torch.testing.assert_close(routed.coupling, c.expand(3, 7, 4))


def test_logits_are_normal_numbers():
    logits = random_coupling(2000, 8).log()
    centered = (logits - logits.mean(dim=1, keepdim=True)).numpy()
    expected = (1 - 1 / 8) ** 0.5  # the mean of a row takes its share
    assert centered.std() == pytest.approx(expected, rel=0.02)
    assert (centered**4).mean() / centered.var() ** 2 == pytest.approx(3, abs=0.15)
    assert np.abs(centered.mean(axis=0)).max() < 0.1
    assert abs(np.corrcoef(centered[:-1].ravel(), centered[1:].ravel())[0, 1]) < 0.03


def test_depend_on_the_seed_alone():
    torch.manual_seed(1)
    first = random_coupling(20, 5)
    before = torch.get_rng_state()
    torch.testing.assert_close(random_coupling(20, 5), first, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), before)
    others = torch.stack([random_coupling(20, 5, seed).log() for seed in range(6)]).flatten(1)
    assert (torch.corrcoef(others) - torch.eye(6)).abs().max() < 0.4
    torch.testing.assert_close(random_coupling(20, 5, 0xFFFFFFFF).sum(dim=1), torch.ones(20))


KNOWN = [[0.175631, 0.568399, 0.255970], [0.745263, 0.124935, 0.129802]]


def test_known_values():
    """So that runs of today can be repeated tomorrow."""
    found = random_coupling(2, 3, 7)
    torch.testing.assert_close(found, torch.tensor(KNOWN), rtol=0, atol=1e-5)


def test_no_scale_is_uniform():
    votes = random_votes(2, 6, 5, 4, space=(2, 3))
    for found, expected in zip(
        random_routing(votes, scale=0.0), uniform_routing(votes), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_moves_with_its_couplings():
    """Children and parents may not be renumbered alone; together with their couplings they may."""
    votes, rows, columns = (
        random_votes(2, 6, 5, 4),
        torch.tensor([2, 0, 1, 5, 3, 4]),
        torch.tensor([4, 2, 0, 1, 3]),
    )
    routed = random_routing(votes)
    c = routed.coupling[:, rows][:, :, columns]
    moved = squash(torch.einsum("bij,bijd->bjd", c, votes[:, rows][:, :, columns]))
    torch.testing.assert_close(moved, routed.pose[:, columns])
    assert not create_router("random").permutation_equivariant
    assert create_router("dynamic").permutation_equivariant


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("impl", ["auto", "reference", "blocked"])
def test_one_operator_gives_what_stored_votes_give(bias, impl):
    layer = CapsuleLinear(6, 4, 5, 3, "random", seed=3, scale=2.0, bias=bias, impl=impl)
    pose, activation = random_capsules(3, 6, 4)
    children = Capsules(pose, activation)
    with record_routing(layer) as record:
        layer(children)
    truth = random_routing(layer.make_votes(children), 3, scale=2.0)
    found = record[""][0]
    for one, expected in zip((found.pose, found.activation, found.coupling), truth, strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"seed": -1}, "seed: expected between 0 and 4294967295, got -1"),
        ({"scale": -1.0}, "scale: expected at least 0.0, got -1.0"),
    ],
)
def test_out_of_range(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        create_router("random", **options)
    with pytest.raises(ValueError, match=complaint):
        random_routing(random_votes(), **options)


def test_compiles_whole(request):
    if request.config.getoption("--typecheck"):
        pytest.skip("compiled functions cannot be traced through the checks of shapes")
    router = create_router("random")
    votes, activation = random_votes(), torch.rand(2, 6)
    compiled = torch.compile(router, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(votes, activation).pose, router(votes, activation).pose)
