"""AffCapsNet: the summed form against votes, and its sizes."""

import numpy as np
import pytest
import torch

import torchcaps as tc
from torchcaps.functional import Votes, uniform_routing
from torchcaps.models.affcaps import AffineCaps
from torchcaps.types import Capsules

SMALL = {"img_size": 20, "channels": 6, "primary_types": 3}  # 3 x 4 children
SHARES = ("all", "position", "none")
CONSTANTS = ("1/K", "1/sqrt(N)", "1/N")


def capsules(*shape):
    pose = 0.3 * torch.randn(shape)
    return Capsules(pose, pose.norm(dim=-1))


@pytest.mark.parametrize(
    ("share", "size", "votes", "encoder", "decoder"),
    [
        ("none", 28, 1_474_560, 6_804_224, 1_411_344),
        ("none", 40, 5_898_240, 11_227_904, 2_247_744),
        ("position", 28, 40_960, 5_370_624, 1_411_344),
        ("position", 40, 40_960, 5_370_624, 2_247_744),
        ("all", 28, 1_280, 5_330_944, 1_411_344),
        ("all", 40, 1_280, 5_330_944, 2_247_744),
    ],
)
def test_sizes(share, size, votes, encoder, decoder):
    with torch.device("meta"):
        model = tc.create_model("affcaps", img_size=size, share=share)
    drawing = sum(p.numel() for p in model.decoder.parameters())
    assert model.class_capsules.weight.numel() == votes
    assert (sum(p.numel() for p in model.parameters()) - drawing, drawing) == (encoder, decoder)


@pytest.mark.parametrize("constant", CONSTANTS)
@pytest.mark.parametrize("own", [1, 3, None])
@pytest.mark.parametrize("bias", [False, True])
def test_the_sum_is_that_of_the_votes(own, constant, bias, monkeypatch):
    layer, children = (
        AffineCaps(12, 8, 5, 4, own=own, constant=constant, bias=bias, iterations=1),
        capsules(2, 12, 8),
    )
    with monkeypatch.context() as patch:
        patch.setattr(Votes, "dense", lambda votes: pytest.fail("votes were made"))
        found = layer(children)
    votes = layer.make_votes(children)
    expected = uniform_routing(votes.dense(), bias=layer.bias)
    torch.testing.assert_close(found.pose, expected.pose, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.activation, expected.activation, rtol=1e-5, atol=1e-6)
    with tc.record_routing(layer) as record:
        torch.testing.assert_close(layer(children).pose, found.pose, rtol=1e-5, atol=1e-6)
    assert torch.equal(record[""][0].coupling, torch.full((2, 12, 5), 0.2))


@pytest.mark.parametrize(
    ("constant", "c"), [("1/K", 1 / 5), ("1/sqrt(N)", 12**-0.5), ("1/N", 1 / 12)]
)
def test_the_equation(constant, c):
    layer, children = AffineCaps(12, 8, 5, 4, constant=constant, iterations=1), capsules(2, 12, 8)
    u, w = children.pose.double().numpy(), layer.weight.detach().double().numpy()[0]
    for b in range(2):
        for k in range(5):
            s = sum(c * (w[k] @ u[b, n]) for n in range(12))
            size = np.linalg.norm(s)
            np.testing.assert_allclose(
                layer(children).pose[b, k].detach(), s * size / (1 + size**2), rtol=1e-4
            )


def test_children_may_be_permuted():
    layer, children = AffineCaps(12, 8, 5, 4, iterations=1), capsules(2, 12, 8)
    moved = Capsules(*(x[:, torch.randperm(12)] for x in children))
    torch.testing.assert_close(layer(moved).pose, layer(children).pose)


def test_without_sharing_and_with_equal_couplings_it_is_capsnet():
    images = torch.rand(2, 1, 20, 20)
    for iterations in (1, 3):
        model = tc.create_model(
            "affcaps", share="none", constant="1/K", routing_iters=iterations, **SMALL
        )
        same = tc.create_model("capsnet", iterations=iterations, **SMALL)
        same.load_state_dict(model.state_dict())
        torch.testing.assert_close(model(images), same(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", SHARES)
def test_routing_changes_the_couplings(share):
    model, images = (
        tc.create_model("affcaps", share=share, routing_iters=3, **SMALL),
        torch.rand(2, 1, 20, 20),
    )
    with tc.record_routing(model) as record:
        routed = model(images)
    coupling = record["class_capsules"][0].coupling
    torch.testing.assert_close(coupling.sum(dim=2), torch.ones(2, 12))
    assert coupling.std() > 0
    once = tc.create_model("affcaps", share=share, **SMALL)
    once.load_state_dict(model.state_dict())
    assert not torch.allclose(once(images), routed)


def test_couplings_may_be_fixed():
    layer, children = AffineCaps(12, 8, 5, 4, iterations=3), capsules(2, 12, 8)
    plain, layer.router = layer.router, layer.router.uniform()
    summed = layer(children).pose
    layer.router = plain.random(1)
    assert not torch.allclose(layer(children).pose, summed)
    layer.router = plain.with_iterations(1)
    torch.testing.assert_close(layer(children).pose, summed)


@pytest.mark.parametrize(
    ("routing", "options"),
    [
        ("em", {"iterations": 1}),
        ("self_attention", {}),
        ("random", {}),
        ("dynamic", {"iterations": 1, "over": "children"}),
    ],
)
def test_another_routing_is_taken(routing, options):
    layer, children = AffineCaps(12, 8, 5, 4, routing, **options), capsules(2, 12, 8)
    expected = layer.router(layer.make_votes(children))
    found = layer(children)
    assert torch.equal(found.pose, expected.pose)
    assert torch.equal(found.activation, expected.activation)


@pytest.mark.parametrize("share", SHARES)
def test_it_starts_neither_dead_nor_saturated(share):
    model = tc.create_model("affcaps", share=share, decoder=False)
    lengths = model(torch.rand(2, 1, 40, 40))
    assert 0.02 < lengths.mean() < 0.9


def test_gradients_at_zero_and_what_is_refused():
    layer = AffineCaps(12, 8, 5, 4, iterations=1)
    pose = torch.zeros(2, 12, 8, requires_grad=True)
    layer(pose).pose.sum().backward()
    assert pose.grad.isfinite().all()
    with pytest.raises(
        ValueError,
        match=r"children: expected \[batch, children=12, dim=8\], got \[batch=2, children=11",
    ):
        layer(torch.zeros(2, 11, 8))
    with pytest.raises(ValueError, match="unknown share 'some'"):
        tc.create_model("affcaps", share="some")
    with pytest.raises(ValueError, match="unknown constant '1/C'"):
        tc.create_model("affcaps", constant="1/C")
