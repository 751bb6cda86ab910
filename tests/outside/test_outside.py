"""Routers from outside the library work in benchmarks, ablation, diagnosis and stacks."""

import time
from functools import partial

import pytest
import torch
from benchmarks.layer import Sizes
from benchmarks.routers import benchmark_routers
from torch import nn

import torchcaps as tc
from torchcaps.evaluation import diagnose, iteration_dynamics, routing_ablation
from torchcaps.functional import ConvField, DenseField
from torchcaps.functional.votes import FixedCoupling, RoutingContext
from torchcaps.nn import LinearVotes, RoutedLayer
from torchcaps.testing import seeded
from torchcaps.types import LayerSizes

from .routers import VOTES


class Stack(nn.Module):
    """Rows of a `[1, children, dim]` image are poses; a layer with the paper's votes, then classes."""

    def __init__(self, name):
        super().__init__()
        kind = VOTES[name]
        self.below = RoutedLayer(kind(LayerSizes(6, 4, 5, 4)), name)
        self.top = RoutedLayer(LinearVotes(LayerSizes(5, 4, 3, 4)))

    def forward(self, images):
        return self.top(self.below(images.squeeze(1))).activation


class Digits:
    images = torch.rand(40, 1, 6, 4, generator=seeded())
    labels = torch.arange(40) % 3
    classes = ("a", "b", "c")

    def float_images(self, indices):
        return self.images[indices]


@pytest.mark.parametrize("name", VOTES)
def test_ablation_and_diagnosis(name):
    model = Stack(name)
    ablation = routing_ablation(model, Digits.images, Digits.labels)
    assert 0 <= ablation.uniform <= 1
    diagnosis = diagnose(model, Digits(), count=20)
    assert diagnosis.ablation is not None
    assert set(diagnosis.verdicts()) >= {"ablation", "iterations", "below: entropy", "top: sign"}
    assert ("below: parents" in diagnosis.verdicts()) == (model.below.router.activation != "none")
    dynamics = iteration_dynamics(model, Digits.images, Digits.labels)
    assert len(dynamics.iterations) == max(model.below.router.num_iterations, 3)


def test_benchmark():
    sizes = Sizes(
        batch=2,
        children=6,
        parents=3,
        dim=4,
        in_dim=4,
        iterations=2,
    )
    rows = benchmark_routers(sizes, list(VOTES), 2, time.perf_counter)
    assert [row["variant"] for row in rows] == list(VOTES)


def test_a_bias_that_a_router_does_not_add_is_refused():
    layer = tc.nn.CapsuleLinear(6, 4, 5, 4, "prototype", bias=True)
    with pytest.raises(
        ValueError, match="bias: expected False for a layer routed by prototype, which adds none"
    ):
        layer(torch.randn(2, 6, 4))


@pytest.mark.parametrize("field", [DenseField, partial(ConvField, kernel=2)])
def test_an_equal_share_leaves_some_to_none_of_them(field):
    space, children = ((), 6) if field is DenseField else ((2, 2), 24)
    layer = RoutedLayer(
        LinearVotes(LayerSizes(children, 4, 5, 4)),
        "dynamic",
        field,
        leaky=True,
    )
    fixed = RoutingContext(fixed=FixedCoupling(0, 0.0, uses=[]))
    votes = layer.make_votes(torch.randn(2, *space, 6, 4)).bind(fixed)
    shared = votes.couple(torch.randn_like(votes.couple()), leaky=True)
    torch.testing.assert_close(shared, torch.full_like(shared, 1 / 6))


def test_hooks_on_routers_fire_and_see_couplings():
    layer = tc.nn.CapsuleLinear(6, 4, 5, 4)
    couplings = []
    layer.router.register_forward_hook(lambda _, inputs, routed: couplings.append(routed.coupling))
    layer(torch.randn(2, 6, 4))
    assert couplings[0].shape == (2, 6, 5)
