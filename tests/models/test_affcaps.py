"""AffCapsNet: the summed form against votes, and its sizes."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchcaps as tc
from torchcaps.functional import Votes, uniform_routing
from torchcaps.models.affcaps import AffineCaps
from torchcaps.models.notebook import parameter_count
from torchcaps.types import Capsules

from .small import SMALL, small_model

SHARES = ("all", "position", "none")
CONSTANTS = {
    "1/K": 1 / 5,
    "1/sqrt(N)": 12**-0.5,
    "1/N": 1 / 12,
}


def make_layer(*arguments, **options):
    return AffineCaps(12, 8, 5, 4, *arguments, **options)


@pytest.fixture
def children():
    pose = 0.3 * torch.randn(2, 12, 8)
    return Capsules(pose, pose.norm(dim=-1))


@pytest.fixture
def images():
    return torch.rand(2, 1, 20, 20)


@pytest.mark.parametrize(
    ("share", "size", "votes", "encoder", "decoder"),
    [
        ("none", 28, 1_474_560, 6_804_224, 1_411_344),
        ("position", 40, 40_960, 5_370_624, 2_247_744),
        ("all", 40, 1_280, 5_330_944, 2_247_744),
    ],
)
def test_sizes(share, size, votes, encoder, decoder):
    with torch.device("meta"):
        model = tc.create_model("affcaps", img_size=size, share=share)
    assert model.class_capsules.weight.numel() == votes
    assert parameter_count(model.decoder) == decoder
    assert parameter_count(model) == encoder + decoder


@pytest.mark.parametrize("constant", CONSTANTS)
@pytest.mark.parametrize("num_matrices", [1, 3, None])
@pytest.mark.parametrize("bias", [False, True])
def test_the_sum_is_that_of_the_votes(num_matrices, constant, bias, children):
    layer = make_layer(num_matrices=num_matrices, constant=constant, bias=bias, iterations=1)
    parents = layer(children)
    expected = uniform_routing(layer.make_votes(children).dense(), bias=layer.bias)
    assert_close(parents.pose, expected.pose, rtol=1e-5, atol=1e-6)
    assert_close(parents.activation, expected.activation, rtol=1e-5, atol=1e-6)


def test_the_sum_makes_no_votes(children, monkeypatch):
    monkeypatch.setattr(Votes, "dense", lambda votes: pytest.fail("votes were made"))
    make_layer(iterations=1)(children)


def test_equal_couplings_are_recorded(children):
    layer = make_layer(iterations=1)
    pose = layer(children).pose
    with tc.record_routing(layer) as record:
        assert_close(layer(children).pose, pose, rtol=1e-5, atol=1e-6)
    assert torch.equal(record[""][0].coupling, torch.full((2, 12, 5), 0.2))


@pytest.mark.parametrize(("constant", "c"), CONSTANTS.items())
def test_the_equation(constant, c, children):
    layer = make_layer(constant=constant, iterations=1)
    poses = layer(children).pose.detach().numpy()
    u = children.pose.double().numpy()
    w = layer.weight.detach().double().numpy()[0]
    for b in range(2):
        for k in range(5):
            s = c * (u[b] @ w[k].T).sum(axis=0)
            expected = s * np.linalg.norm(s) / (1 + s @ s)
            np.testing.assert_allclose(poses[b, k], expected, rtol=1e-4)


@pytest.mark.parametrize("iterations", [1, 3])
def test_without_sharing_and_with_equal_couplings_it_is_capsnet(iterations, images):
    model = small_model("affcaps", share="none", constant="1/K", routing_iters=iterations)
    capsnet = tc.create_model("capsnet", iterations=iterations, **SMALL["affcaps"])
    capsnet.load_state_dict(model.state_dict())
    assert_close(model(images), capsnet(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", SHARES)
def test_routing_changes_the_couplings(share, images):
    model = small_model("affcaps", share=share, routing_iters=3)
    with tc.record_routing(model) as record:
        activation = model(images)
    coupling = record["class_capsules"][0].coupling
    assert_close(coupling.sum(dim=2), torch.ones(2, 12))
    assert coupling.std() > 0
    once = small_model("affcaps", share=share)
    once.load_state_dict(model.state_dict())
    assert not torch.allclose(once(images), activation)


def test_couplings_may_be_fixed(children):
    layer = make_layer(iterations=3)
    router = layer.router
    layer.router = router.uniform()
    expected = layer(children).pose
    layer.router = router.random(1)
    assert not torch.allclose(layer(children).pose, expected)
    layer.router = router.with_iterations(1)
    assert_close(layer(children).pose, expected)


@pytest.mark.parametrize(
    ("routing", "options"),
    [
        ("em", {"iterations": 1}),
        ("self_attention", {}),
        ("random", {}),
        ("dynamic", {"iterations": 1, "over": "children"}),
    ],
)
def test_another_routing_gets_votes(routing, options, children):
    layer = make_layer(routing, **options)
    expected = layer.router(layer.make_votes(children))
    parents = layer(children)
    assert torch.equal(parents.pose, expected.pose)
    assert torch.equal(parents.activation, expected.activation)
