from operator import methodcaller

import pytest
import torch

from torchcaps.errors import AblationUnsupportedError, ArgumentError
from torchcaps.evaluation import (
    RoutingAblation,
    compare_answers,
    iteration_dynamics,
    routing_ablation,
)
from torchcaps.evaluation.routing.layers import swapped_routers
from torchcaps.functional import dynamic_routing, em_routing, straightness, uniform_routing
from torchcaps.functional.routing.em import VAR_MIN
from torchcaps.nn import CapsuleLinear, DynamicRouting, EMRouting, Router
from torchcaps.testing import seeded

from ..stubs import RoutedPixels, share

IMAGES = torch.rand(8, 1, 6, 4, generator=seeded(1))
LABELS = torch.arange(8) % 3


@pytest.fixture
def sharp():
    """Weights so large that routing changes answers."""
    model = RoutedPixels(6, 3, iterations=3)
    torch.nn.init.normal_(model.layers[0].weight, std=2.0)
    return model


def answer_of_twin(model, **options):
    """The answers of a model with the same weights and another routing."""
    twin = RoutedPixels(6, 3, **options)
    twin.load_state_dict(model.state_dict())
    return twin(IMAGES).argmax(dim=1)


def test_without_routing_is_the_model_with_uniform_coupling(sharp):
    routed = sharp(IMAGES).argmax(dim=1)
    uniform = answer_of_twin(sharp, routing="uniform")
    with swapped_routers(sharp, methodcaller("random", 5, agreement=True)):
        random = sharp(IMAGES).argmax(dim=1)
    # Labels for which the arms differ: the model is right, but for one image.
    labels = routed.clone()
    labels[0] = (labels[0] + 1) % 3
    ablation = routing_ablation(sharp, IMAGES, labels, seed=5)
    assert ablation.routed == 7 / 8
    assert ablation.uniform == pytest.approx(share(uniform == labels))
    assert ablation.random == pytest.approx(share(random == labels))
    assert ablation.changed == pytest.approx(share(routed != uniform))
    assert len({ablation.routed, ablation.uniform, ablation.random}) == 3
    assert ablation.changed not in (1 - ablation.uniform, ablation.routed - ablation.uniform)
    assert isinstance(sharp.layers[0].router, DynamicRouting)
    assert sharp.layers[0].router.iterations == 3


def test_a_model_trained_without_routing_loses_nothing():
    ablation = routing_ablation(RoutedPixels(6, 3, routing="uniform"), IMAGES, LABELS)
    assert ablation.routed == ablation.uniform
    assert ablation.changed == 0
    # Eight images are too few to call the two equivalent.
    assert "do not show" in ablation.verdict


def test_a_function_with_couplings_of_its_own_is_refused():
    def custom_routing(votes, activation):
        return uniform_routing(votes)

    model = RoutedPixels(6, 3)
    model.layers[0] = CapsuleLinear(6, 4, 3, 4, custom_routing)
    with pytest.raises(
        AblationUnsupportedError, match="custom_routing makes its couplings by itself"
    ):
        routing_ablation(model, IMAGES, LABELS)


@pytest.mark.parametrize(
    ("num_routed", "num_uniform", "n", "words"),
    [
        (90, 50, 100, "needs its routing"),
        (50, 90, 100, "better without"),
        (9, 8, 10, "do not show"),
        (900, 899, 1000, "as well without its routing, within"),
    ],
)
def test_verdicts_ask_for_evidence(num_routed, num_uniform, n, words):
    comparison = compare_answers(torch.arange(n) < num_routed, torch.arange(n) < num_uniform)
    assert words in RoutingAblation(comparison, 0.1, 0.1).verdict


def vote_layer(routing):
    layer = CapsuleLinear(6, 4, 3, 4, routing)
    generator = seeded(2)
    for parameter in layer.router.parameters():
        parameter.data.normal_(generator=generator)
    return layer


def test_em_without_agreement_takes_variances_of_one():
    """Votes +-c have variance c^2; c is such that the constant added to it makes 1."""
    router = EMRouting(3, inverse_temperature=0.5, beta_u=0.2, beta_a=-0.3)
    c = (1 - VAR_MIN) ** 0.5
    votes = c * torch.tensor([1.0, -1.0, 1.0, -1.0]).view(1, 4, 1, 1).expand(2, 4, 3, 5)
    # Votes of opposite signs weigh the same, so that the mean stays at 0.
    children = torch.tensor([0.3, 0.3, 0.8, 0.8]).expand(2, 4)
    expected = router.uniform()(votes, children).activation
    routed = router.uniform(agreement=False)(torch.randn(2, 4, 3, 5), children)
    torch.testing.assert_close(routed.activation, expected)


def test_an_ablation_without_agreement():
    model = RoutedPixels(6, 3)
    model.layers[0] = vote_layer("em")
    ablation = routing_ablation(model, IMAGES, LABELS, agreement=False)
    assert not ablation.agreement
    assert "how far votes agree" not in ablation.verdict
    with_agreement = routing_ablation(model, IMAGES, LABELS)
    assert with_agreement.agreement
    assert "activations still measure how far votes agree" in with_agreement.verdict
    with swapped_routers(model, lambda router: router.uniform(agreement=False)):
        answers = model(IMAGES).argmax(dim=1)
    assert ablation.uniform == pytest.approx(share(answers == LABELS))
    assert ablation.p_value == ablation.comparison.p_value
    assert not routing_ablation(RoutedPixels(6, 3), IMAGES, LABELS).agreement


def test_an_activation_without_agreement_has_none_to_leave_out(sharp):
    with pytest.raises(
        ArgumentError,
        match="agreement: expected True: with fixed couplings, no activation of this model",
    ):
        routing_ablation(sharp, IMAGES, LABELS, agreement=False)


def test_iterations_one_by_one(sharp):
    dynamics = iteration_dynamics(sharp, IMAGES, LABELS)
    assert dynamics.iterations == (1, 2, 3)
    first_answer = answer_of_twin(sharp, iterations=1)
    for index, count in enumerate(dynamics.iterations):
        answer = answer_of_twin(sharp, iterations=count)
        assert dynamics.accuracy[index] == pytest.approx(share(answer == LABELS))
        assert dynamics.changed[index] == pytest.approx(share(answer != first_answer))
    first, second, third = dynamics.entropy["layers.0"]
    assert first == pytest.approx(1)
    assert first > second > third
    by_iteration = dynamics.straightness["layers.0"]
    assert by_iteration[0] < by_iteration[1] < by_iteration[2] < 1


def test_straightness_of_a_class_is_that_of_its_own_images(sharp):
    labels = torch.tensor([0, 2, 0, 2, 0, 2, 0, 2])
    dynamics = iteration_dynamics(sharp, IMAGES, labels)
    votes = torch.einsum("ijdk,bik->bijd", sharp.layers[0].weight, IMAGES.squeeze(1))
    for count, (first, second, third) in enumerate(dynamics.class_straightness, start=1):
        ratio = straightness(dynamic_routing(votes, count).coupling, votes)
        assert first == pytest.approx(ratio[labels == 0, 0].mean().item(), rel=1e-4)
        assert second is None
        assert third == pytest.approx(ratio[labels == 2, 2].mean().item(), rel=1e-4)


@pytest.mark.parametrize(
    ("change", "iterations", "temperatures"),
    [
        (lambda router: router.with_iterations(2), 2, slice(2)),
        (Router.uniform, 1, slice(-1, None)),
    ],
)
def test_an_ablated_em_router_keeps_its_costs(change, iterations, temperatures):
    """Stopped early at the first temperatures, or in one pass at its last one."""
    router = EMRouting(3, inverse_temperature=0.5, beta_u=0.2, beta_a=-0.3)
    votes = torch.randn(2, 5, 3, 16)
    activation = torch.rand(2, 5)
    beta_u = router.beta_u.expand(3)
    beta_a = (router.beta_a / router.inverse_temperature[-1]).expand(3)
    temperature = router.inverse_temperature[temperatures]
    expected = em_routing(
        votes,
        activation,
        beta_u,
        beta_a,
        iterations,
        temperature,
    )
    routed = change(router)(votes, activation)
    assert torch.allclose(routed.activation, expected.activation, atol=1e-6)
    assert torch.allclose(routed.coupling, expected.coupling, atol=1e-6)
    assert router.with_iterations(7) is router
    assert router.iterations == 3


def test_leaky_routing_keeps_its_leak():
    layer = CapsuleLinear(6, 4, 3, 4, leaky=True, impl="reference")
    routed = layer.router.uniform()(torch.randn(2, 6, 3, 4), torch.rand(2, 6))
    assert torch.allclose(routed.coupling, torch.full((2, 6, 3), 1 / 4))
