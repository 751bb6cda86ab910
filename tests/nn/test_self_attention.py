"""Self-attention routing (arXiv 2101.12491) against loops in NumPy, in float64."""

import math

import numpy as np
import pytest
import torch

import torchcaps as tc
from torchcaps.functional import DenseVotes
from torchcaps.nn import create_router
from torchcaps.testing import random_votes, seeded
from torchcaps.types import LayerSizes

BATCH, CHILDREN, PARENTS, DIM = 2, 6, 3, 4


def plain(u, prior, scale):
    """FCCaps, with its Gram matrix: `u` is [children, parents, dim]."""
    N, K, _ = u.shape
    a = np.zeros((N, K))
    for k in range(K):
        gram = np.array([[u[n, k] @ u[m, k] / scale for m in range(N)] for n in range(N)])
        a[:, k] = gram.sum(axis=1)
    c, v = np.zeros((N, K)), np.zeros_like(u[0])
    for n in range(N):
        weight = np.exp(a[n] - a[n].max())
        c[n] = weight / weight.sum()
    for k in range(K):
        s = sum((c[n, k] + prior[n, k]) * u[n, k] for n in range(N))
        length = math.sqrt(s @ s)
        v[k] = (1 - math.exp(-length)) * s / length
    return v, np.sqrt((v**2).sum(axis=-1)), c


def built(prior=0.0, **options):
    router = create_router("self_attention", **options)
    router.build(LayerSizes(CHILDREN, 0, PARENTS, DIM))
    router = router.double()
    router.prior.data.add_(prior * torch.randn(CHILDREN, PARENTS, generator=seeded(3)))
    return router


@pytest.mark.parametrize(
    ("options", "scale"), [({}, DIM**0.5), ({"scale": 1.0}, 1.0), ({"scale": 8}, 8.0)]
)
@pytest.mark.parametrize("prior", [0.0, 0.7])
def test_it_equals_loops(options, scale, prior):
    votes, router = random_votes(BATCH, CHILDREN, PARENTS, DIM).double(), built(prior, **options)
    routed = router(votes)
    for found, u in zip(zip(*routed, strict=True), votes.numpy(), strict=True):
        expected = plain(u, router.prior.detach().numpy(), scale)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.detach().numpy(), other, rtol=1e-6, atol=1e-6)


def test_the_prior_comes_after_the_softmax():
    votes = random_votes(BATCH, CHILDREN, PARENTS, DIM).double()
    without, with_prior = built()(votes), built(0.7)(votes)
    torch.testing.assert_close(with_prior.coupling, without.coupling)
    assert (with_prior.pose - without.pose).abs().max() > 0.01
    assert (with_prior.coupling.sum(dim=-1) - 1).abs().max() < 1e-12


def test_absent_children_have_no_part_in_the_sum():
    """Of a padded convolution: votes that an offset of the layer gives to children that are not there."""

    class Padded(DenseVotes):
        mask = (torch.arange(CHILDREN) < 4).double().unsqueeze(0)

    votes, router = random_votes(BATCH, CHILDREN, PARENTS, DIM).double(), built(0.7)
    padded, cut = router(Padded(votes)), built(0.7)
    cut.prior.data = router.prior.data[:4].clone()
    expected = cut(votes[:, :4])
    torch.testing.assert_close(padded.pose, expected.pose)
    torch.testing.assert_close(padded.coupling[:, :4], expected.coupling)


def test_uniform_coupling_keeps_what_the_prior_has_learned():
    votes, router = random_votes(BATCH, CHILDREN, PARENTS, DIM).double(), built(0.7)
    routed = router.uniform()(votes)
    s = ((1 / PARENTS + router.prior).unsqueeze(-1) * votes).sum(dim=-3)
    torch.testing.assert_close(routed.pose, tc.functional.steep_squash_with_length(s)[0])
    torch.testing.assert_close(built(0.7, equal=True)(votes).pose, routed.pose)


def test_finite_gradients_at_zero():
    votes = torch.zeros(1, CHILDREN, PARENTS, DIM, requires_grad=True)
    router = built().float()
    routed = router(votes)
    (routed.pose.sum() + routed.activation.sum()).backward()
    assert votes.grad.isfinite().all()
    assert votes.grad.abs().min() > 0.1  # steep: what votes nothing still learns
    assert router.prior.grad.isfinite().all()


@pytest.mark.parametrize("scale", [0, -1.0, float("nan")])
def test_a_scale_that_is_none(scale):
    with pytest.raises(ValueError, match="scale: expected at least 1e-06, got"):
        create_router("self_attention", scale=scale)
