from __future__ import annotations

import json

import pytest
import torch

from torchcaps.errors import AblationUnsupportedError
from torchcaps.evaluation import (
    RoutingAblation,
    compare_answers,
    iteration_dynamics,
    routing_ablation,
)
from torchcaps.functional import Votes, em_routing, uniform_routing
from torchcaps.nn import CapsuleLinear, DynamicRouting, EMRouting, Router
from torchcaps.types import Capsules, LayerSizes, Routed

from ..stubs import RoutedPixels

IMAGES, LABELS = (
    torch.rand(8, 1, 6, 4, generator=torch.Generator().manual_seed(1)),
    torch.arange(8) % 3,
)


@pytest.fixture
def sharp() -> RoutedPixels:
    """Weights so large that routing changes answers."""
    model = RoutedPixels(6, 3, iterations=3)
    torch.nn.init.normal_(model.layers[0].weight, std=2.0)
    return model


def test_without_routing_is_the_model_with_uniform_coupling(sharp: RoutedPixels) -> None:
    plain = RoutedPixels(6, 3, routing="uniform")
    plain.load_state_dict(sharp.state_dict())
    routed, uniform = sharp(IMAGES).argmax(dim=1), plain(IMAGES).argmax(dim=1)
    found = routing_ablation(sharp, IMAGES, LABELS)
    assert found.routed == pytest.approx(float((routed == LABELS).double().mean()))
    assert found.uniform == pytest.approx(float((uniform == LABELS).double().mean()))
    assert found.changed == pytest.approx(float((routed != uniform).double().mean()))
    assert found.changed > 0
    assert isinstance(sharp.layers[0].router, DynamicRouting)
    assert sharp.layers[0].router.iterations == 3


def test_a_model_trained_without_routing_loses_nothing() -> None:
    found = routing_ablation(RoutedPixels(6, 3, routing="uniform"), IMAGES, LABELS)
    assert found.routed == found.uniform
    assert found.changed == 0
    assert "do not show" in found.verdict  # eight images are too few to call the two equivalent


@pytest.mark.parametrize("routing", ["dynamic", "em", "uniform", "random"])
def test_every_routing_has_its_own_ablations(routing: str) -> None:
    found = routing_ablation(RoutedPixels(6, 3, routing=routing), IMAGES, LABELS)
    assert 0 <= found.uniform <= 1
    assert 0 <= found.random <= 1
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_function_with_couplings_of_its_own_is_refused() -> None:
    def own(votes: torch.Tensor, activation: torch.Tensor) -> Routed:
        return uniform_routing(votes)

    model = RoutedPixels(6, 3)
    model.layers[0] = CapsuleLinear(6, 4, 3, 4, own)
    with pytest.raises(
        AblationUnsupportedError, match="routing: own makes its couplings by itself"
    ):
        routing_ablation(model, IMAGES, LABELS)


@pytest.mark.parametrize(
    ("routed", "uniform", "n", "words"),
    [
        (90, 50, 100, "needs its routing"),
        (50, 90, 100, "better without"),
        (9, 8, 10, "do not show"),
        (900, 899, 1000, "as well without its routing, within"),
    ],
)
def test_verdicts_ask_for_evidence(routed: int, uniform: int, n: int, words: str) -> None:
    right = [torch.arange(n) < count for count in (routed, uniform)]
    assert words in RoutingAblation(compare_answers(*right), 0.1, 0.1).verdict


class Average(Router):
    """A routing whose couplings are always equal, and whose parents are not squashed."""

    activation = "none"

    def build_parameters(self, sizes: LayerSizes) -> None:
        self.gain = torch.nn.Parameter(torch.ones(sizes.parents))

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        c = votes.couple()
        s = votes.weighted(c) * self.gain.unsqueeze(-1)
        return Routed(s, s.square().sum(dim=-1), c)


def test_a_trained_router_with_equal_couplings_is_found_to_do_nothing() -> None:
    """Its ablation is itself: nothing is taken from it but its couplings, so nothing can change."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(600) % 3
    noise = 0.5 * torch.rand(600, 1, 6, 4, generator=generator)
    images = noise + 0.5 * torch.eye(3)[labels][:, None, None, [0, 1, 2, 0]]
    model = RoutedPixels(6, 3)
    model.layers[0] = CapsuleLinear(6, 4, 3, 4, Average(), init_std=0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(100):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    found = routing_ablation(model, images, labels)
    assert found.routed > 0.8
    assert found.changed == 0
    assert found.routed == found.uniform
    assert found.comparison.outcome == "equivalent"
    assert "as well without its routing" in found.verdict


def test_iterations_one_by_one(sharp: RoutedPixels) -> None:
    found = iteration_dynamics(sharp, IMAGES, LABELS, batch_size=3)
    answers = []
    for count in (1, 2, 3):
        model = RoutedPixels(6, 3, iterations=count)
        model.load_state_dict(sharp.state_dict())
        answers.append(model(IMAGES).argmax(dim=1))
    assert found.iterations == (1, 2, 3)
    assert found.accuracy == pytest.approx(
        [float((answer == LABELS).double().mean()) for answer in answers]
    )
    assert found.changed == pytest.approx(
        [float((answer != answers[0]).double().mean()) for answer in answers]
    )
    entropy = found.entropy["layers.0"]
    assert entropy[0] == pytest.approx(1)
    assert entropy[0] > entropy[1] > entropy[2]


def test_one_pass_has_no_iterations() -> None:
    found = iteration_dynamics(RoutedPixels(6, 3, routing="uniform"), IMAGES, LABELS)
    assert found.iterations == (1,)
    assert "one pass" in found.verdict


def costs(router: EMRouting) -> tuple[torch.Tensor, torch.Tensor]:
    """beta_u and beta_a of the paper."""
    return router.beta_u.expand(3), (router.beta_a / router.inverse_temperature[-1]).expand(3)


def test_em_stopped_early_keeps_its_costs() -> None:
    router = EMRouting(3, inverse_temperature=0.5, beta_u=0.2, beta_a=-0.3)
    votes, activation = torch.randn(2, 5, 3, 16), torch.rand(2, 5)
    want = em_routing(votes, activation, *costs(router), 2, router.inverse_temperature[:2])
    found = router.with_iterations(2)(votes, activation)
    assert torch.allclose(found.activation, want.activation, atol=1e-6)
    assert router.with_iterations(7) is router
    assert router.iterations == 3


def test_em_without_routing_shares_evenly_at_its_last_temperature() -> None:
    router = EMRouting(3, inverse_temperature=0.5, beta_a=-0.3)
    votes, activation = torch.randn(2, 5, 3, 16), torch.rand(2, 5)
    want = em_routing(votes, activation, *costs(router), 1, router.inverse_temperature[-1:])
    found = router.uniform()(votes, activation)
    assert torch.allclose(found.activation, want.activation, atol=1e-6)
    assert found.coupling is not None
    assert torch.allclose(found.coupling, torch.full((2, 5, 3), 1 / 3))


def test_leaky_routing_keeps_its_leak() -> None:
    layer = CapsuleLinear(6, 4, 3, 4, leaky=True, impl="reference")
    routed = layer.router.uniform()(torch.randn(2, 6, 3, 4), torch.rand(2, 6))
    assert routed.coupling is not None
    assert torch.allclose(routed.coupling, torch.full((2, 6, 3), 1 / 4))


def test_arguments_that_do_not_fit() -> None:
    model = RoutedPixels(6, 3)
    with pytest.raises(ValueError, match="labels: expected class indices from 0 to 2, got 3"):
        routing_ablation(model, IMAGES, torch.full((8,), 3))
    with pytest.raises(ValueError, match="iterations: expected at least 1, got 0"):
        DynamicRouting().with_iterations(0)
