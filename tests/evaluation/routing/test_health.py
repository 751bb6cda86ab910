import pytest
import torch
from torch import nn

from torchcaps.errors import ArgumentError
from torchcaps.evaluation import ActivationDecay, capsule_activity, sign_test, starvation
from torchcaps.evaluation.routing import couplings as health

from ..stubs import RoutedPixels

LABELS = torch.tensor([0, 1, 2, 0])


@pytest.fixture
def images():
    return torch.rand(4, 1, 6, 4)


def test_dead_and_constant_capsules_are_counted():
    activation = torch.rand(20, 10) * 0.5 + 0.1
    activation[:, 0] = 0.009  # never above 0.01
    activation[:, 1] = 0.0
    activation[:, 2] = 0.8  # always the same
    activation[:, 3] = 0.0
    activation[0, 3] = 0.02  # once awake, but nearly constant
    activity = capsule_activity(activation)
    assert activity.dead == pytest.approx(0.2)
    assert activity.constant == pytest.approx(0.4)
    assert activity.capsules == 10
    assert activity.strongest == pytest.approx(0.8)
    assert "in use" in activity.verdict
    pair = torch.tensor([[0.5], [0.519]])  # a deviation of 0.0095 from their mean
    assert capsule_activity(pair).constant == 1
    assert capsule_activity(torch.tensor([[0.5], [0.521]])).constant == 0


def test_capsules_of_each_position_count():
    idle = capsule_activity(torch.zeros(3, 2, 2, 5))
    assert idle.capsules == 20
    assert "never active" in idle.verdict
    assert "same of every image" in capsule_activity(torch.full((3, 5), 0.5)).verdict


def test_activations_that_fade():
    names = ("first", "second", "third")
    assert "fade" in ActivationDecay(names, (0.5, 0.1, 0.0), (0.8, 0.2, 0.04)).verdict
    assert "survive" in ActivationDecay(names[:1], (0.0,), (1.0,)).verdict


def test_a_capsule_without_a_way_to_the_loss_is_starved(images):
    model = RoutedPixels(6, 3)
    with torch.no_grad():
        model.layers[0].weight[1] = 0  # its votes are zero whatever its pose
    figures = starvation(model, images, LABELS)["layers.0"]
    assert figures.capsules == 6
    assert figures.starved == pytest.approx(1 / 6)
    assert figures.median > 0
    assert "Many" in figures.verdict


def test_starvation_by_hand(monkeypatch):
    # Three children of one dimension; two have votes, of twice their poses. Two equal images.
    model = RoutedPixels(3, 2, dim=1, routing="uniform")
    with torch.no_grad():
        model.layers[0].weight.fill_(2.0)
        model.layers[0].weight[2] = 0.0
    poses = torch.tensor([0.5, 0.3, 0.9]).view(1, 1, 3, 1).expand(2, -1, -1, -1)
    arguments = (model, poses, torch.tensor([0, 0]))
    # s = u_1 + u_2, and |squash(s)| = s^2 / (1 + s^2), whose slope is 2 s / (1 + s^2)^2.
    slope = 2 * 0.8 / (1 + 0.64) ** 2
    monkeypatch.setattr(health, "margin_penalty", lambda a, _: a[:, 0].mean())
    for batch_size in (1, 2):
        monkeypatch.setattr(health, "ROUTED_BATCH", batch_size)
        figures = starvation(*arguments)["layers.0"]
        assert figures.starved == pytest.approx(1 / 3)
        assert figures.median == pytest.approx(slope, rel=1e-4)
    monkeypatch.setattr(health, "margin_penalty", lambda a, _: 0 * a.mean())
    flat = starvation(*arguments)["layers.0"]
    assert flat.starved == 1
    assert "No gradient" in flat.verdict


def test_a_bias_lets_a_stack_see_the_sign(images):
    for layer in sign_test(RoutedPixels(6, 5, 3), images).values():
        assert layer.blind
        assert layer.largest < 1e-6
        assert "cannot tell" in layer.verdict
    for layer in sign_test(RoutedPixels(6, 5, 3, bias=True), images).values():
        assert not layer.blind
        assert "tells poses" in layer.verdict


@pytest.mark.parametrize("measure", [lambda m, x: starvation(m, x, LABELS), sign_test])
def test_a_model_without_routed_layers_is_refused(measure, images):
    with pytest.raises(
        ArgumentError, match="model: expected a capsule network with routed layers, got Sequential"
    ):
        measure(nn.Sequential(nn.Flatten(), nn.Linear(24, 3)), images)
