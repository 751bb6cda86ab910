from __future__ import annotations

import pytest
import torch

from torchcaps.evaluation import iteration_dynamics, routing_ablation
from torchcaps.evaluation.ablation import RoutingAblation, stopped_router, uniform_router
from torchcaps.functional import em_routing
from torchcaps.nn import CapsuleLinear, DynamicRouting, EMRouting

from .stubs import RoutedPixels

IMAGES, LABELS = torch.rand(8, 1, 6, 4, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


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
    assert found.random is not None
    assert isinstance(sharp.layers[0].router, DynamicRouting)
    assert sharp.layers[0].router.iterations == 3


def test_a_model_trained_without_routing_loses_nothing() -> None:
    found = routing_ablation(RoutedPixels(6, 3, routing="uniform"), IMAGES, LABELS)
    assert found.routed == found.uniform
    assert found.changed == 0
    assert "do not show" in found.verdict


def test_random_couplings_are_not_for_em() -> None:
    assert routing_ablation(RoutedPixels(6, 3, routing="em"), IMAGES, LABELS).random is None


@pytest.mark.parametrize(
    ("routed", "uniform", "p", "words"),
    [(0.9, 0.5, 0.01, "needs its routing"), (0.5, 0.9, 0.01, "better without"), (0.9, 0.8, 0.3, "do not show")],
)
def test_verdicts_ask_for_evidence(routed: float, uniform: float, p: float, words: str) -> None:
    assert words in RoutingAblation(routed, uniform, None, 0.1, p, 100).verdict


def test_iterations_one_by_one(sharp: RoutedPixels) -> None:
    found = iteration_dynamics(sharp, IMAGES, LABELS, batch_size=3)
    answers = []
    for count in (1, 2, 3):
        model = RoutedPixels(6, 3, iterations=count)
        model.load_state_dict(sharp.state_dict())
        answers.append(model(IMAGES).argmax(dim=1))
    assert found.iterations == (1, 2, 3)
    assert found.accuracy == pytest.approx([float((answer == LABELS).double().mean()) for answer in answers])
    assert found.changed == pytest.approx([float((answer != answers[0]).double().mean()) for answer in answers])
    entropy, shift = found.entropy["layers.0"], found.shift["layers.0"]
    assert entropy[0] == pytest.approx(1)
    assert entropy[0] > entropy[1] > entropy[2]
    assert shift[0] == 0
    assert shift[1] > 0


def test_one_pass_has_no_iterations() -> None:
    found = iteration_dynamics(RoutedPixels(6, 3, routing="uniform"), IMAGES, LABELS)
    assert found.iterations == (1,)
    assert "one pass" in found.verdict


def test_em_stopped_early_keeps_its_costs() -> None:
    router = EMRouting(3, inverse_temperature=0.5, beta_u=0.2, beta_a=-0.3)
    votes, activation = torch.randn(2, 5, 3, 16), torch.rand(2, 5)
    beta_u, beta_a = router.costs(3)
    want = em_routing(votes, activation, beta_u, beta_a, 2, router.inverse_temperature[:2])
    found = stopped_router(router, 2)(votes, activation)
    assert torch.allclose(found.activation, want.activation, atol=1e-6)
    assert stopped_router(router, 7) is router
    assert router.iterations == 3


def test_em_without_routing_shares_evenly_at_its_last_temperature() -> None:
    router = EMRouting(3, inverse_temperature=0.5, beta_a=-0.3)
    votes, activation = torch.randn(2, 5, 3, 16), torch.rand(2, 5)
    want = em_routing(votes, activation, *router.costs(3), 1, router.inverse_temperature[-1:])
    found = uniform_router(router)(votes, activation)
    assert torch.allclose(found.activation, want.activation, atol=1e-6)
    assert found.coupling is not None
    assert torch.allclose(found.coupling, torch.full((2, 5, 3), 1 / 3))


def test_leaky_routing_keeps_its_leak() -> None:
    layer = CapsuleLinear(6, 4, 3, 4, leaky=True, impl="reference")
    routed = uniform_router(layer.router)(torch.randn(2, 6, 3, 4), torch.rand(2, 6))
    assert routed.coupling is not None
    assert torch.allclose(routed.coupling, torch.full((2, 6, 3), 1 / 4))


def test_arguments_that_do_not_fit() -> None:
    model = RoutedPixels(6, 3)
    with pytest.raises(ValueError, match="labels: expected class indices from 0 to 2, got 3"):
        routing_ablation(model, IMAGES, torch.full((8,), 3))
    with pytest.raises(ValueError, match="iterations: expected at least 1, got 0"):
        stopped_router(DynamicRouting(), 0)
