"""Self-attention routing (arXiv 2101.12491) against loops in NumPy, in float64."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from torchcaps.functional import DenseVotes, steep_squash_with_length
from torchcaps.nn import create_router
from torchcaps.testing import random_votes, seeded
from torchcaps.types import LayerSizes

CHILDREN = 6
PARENTS = 3
DIM = 4


def route_by_loops(u, prior, scale):
    """The layer FCCaps of the paper, with its Gram matrix, of votes `[children, parents, dim]`."""
    children, parents, _ = u.shape
    a = np.zeros((children, parents))
    for k in range(parents):
        gram = u[:, k] @ u[:, k].T / scale
        a[:, k] = gram.sum(axis=1)
    c = np.zeros_like(a)
    for n in range(children):
        weight = np.exp(a[n] - a[n].max())
        c[n] = weight / weight.sum()
    v = np.zeros_like(u[0])
    for k in range(parents):
        s = (c[:, k] + prior[:, k]) @ u[:, k]
        length = math.sqrt(s @ s)
        v[k] = (1 - math.exp(-length)) * s / length
    return v, np.sqrt((v**2).sum(axis=-1)), c


def build_router(prior=0.0, **options):
    """A router whose prior has random numbers of this standard deviation."""
    router = create_router("self_attention", **options)
    router.build(LayerSizes(CHILDREN, 0, PARENTS, DIM))
    router = router.double()
    router.prior.data.add_(prior * torch.randn(CHILDREN, PARENTS, generator=seeded(3)))
    return router


@pytest.fixture
def votes():
    return random_votes(2, CHILDREN, PARENTS, DIM).double()


@pytest.mark.parametrize(("options", "scale"), [({}, DIM**0.5), ({"scale": 8}, 8.0)])
@pytest.mark.parametrize("prior", [0.0, 0.7])
def test_it_equals_loops(votes, options, scale, prior):
    router = build_router(prior, **options)
    routed = router(votes)
    for sample in range(2):
        expected = route_by_loops(
            votes[sample].numpy(),
            router.prior.detach().numpy(),
            scale,
        )
        for tensor, array in zip(routed, expected, strict=True):
            np.testing.assert_allclose(
                tensor[sample].detach(),
                array,
                rtol=1e-6,
                atol=1e-6,
            )


def test_absent_children_have_no_part_in_the_sum(votes):
    """An offset of a layer gives votes to the padding of a convolution."""

    class PaddedVotes(DenseVotes):
        mask = (torch.arange(CHILDREN) < 4).double().unsqueeze(0)

    router = build_router(0.7)
    padded = router(PaddedVotes(votes))
    router.prior.data = router.prior.data[:4].clone()
    expected = router(votes[:, :4])
    assert_close(padded.pose, expected.pose)
    assert_close(padded.coupling[:, :4], expected.coupling)


def test_uniform_coupling_keeps_the_learned_prior(votes):
    router = build_router(0.7)
    routed = router.uniform()(votes)
    s = ((1 / PARENTS + router.prior).unsqueeze(-1) * votes).sum(dim=-3)
    assert_close(routed.pose, steep_squash_with_length(s)[0])
    assert_close(build_router(0.7, equal=True)(votes).pose, routed.pose)


def test_votes_of_zero_have_a_finite_gradient_that_is_not_zero():
    votes = torch.zeros(1, CHILDREN, PARENTS, DIM, requires_grad=True)
    router = build_router().float()
    routed = router(votes)
    (routed.pose.sum() + routed.activation.sum()).backward()
    assert votes.grad.isfinite().all()
    assert votes.grad.abs().min() > 0.1
    assert router.prior.grad.isfinite().all()


@pytest.mark.parametrize("scale", [0, float("nan")])
def test_a_scale_that_is_not_above_zero(scale):
    with pytest.raises(ValueError, match="scale: expected at least 1e-06, got"):
        create_router("self_attention", scale=scale)
