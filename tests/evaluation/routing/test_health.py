from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchcaps.evaluation import activation_decay, capsule_activity, sign_test, starvation

from ..stubs import RoutedPixels

LABELS = torch.tensor([0, 1, 2, 0])


@pytest.fixture
def images() -> Tensor:
    return torch.rand(4, 1, 6, 4)


def test_dead_and_constant_capsules_are_counted() -> None:
    activation = torch.rand(20, 10) * 0.5 + 0.1
    activation[:, 0] = 0.009  # never above 0.01
    activation[:, 1] = 0.0
    activation[:, 2] = 0.8  # always the same
    activation[0, 3], activation[1:, 3] = 0.02, 0.0  # once awake, but nearly constant
    found = capsule_activity(activation)
    assert found.dead == pytest.approx(0.2)
    assert found.constant == pytest.approx(0.4)
    assert found.capsules == 10
    assert found.strongest == pytest.approx(0.8)
    assert "in use" in found.verdict


def test_capsules_of_each_position_count() -> None:
    assert capsule_activity(torch.zeros(3, 2, 2, 5)).capsules == 20
    assert "never active" in capsule_activity(torch.zeros(3, 2, 2, 5)).verdict
    assert "same of every image" in capsule_activity(torch.full((3, 5), 0.5)).verdict


def test_activations_that_fade() -> None:
    course = {
        "first": torch.full((3, 4), 0.8),
        "second": torch.full((3, 4), 0.2),
        "third": torch.full((3, 2), 0.04),
    }
    found = activation_decay(course)
    assert found.layers == ("first", "second", "third")
    assert found.median == found.strongest == pytest.approx((0.8, 0.2, 0.04))
    assert "fade" in found.verdict
    assert "survive" in activation_decay({"only": torch.ones(1, 2)}).verdict


def test_a_capsule_without_a_way_to_the_loss_is_starved(images: Tensor) -> None:
    model = RoutedPixels(6, 3)
    with torch.no_grad():
        model.layers[0].weight[1] = 0  # its votes are zero whatever its pose
    found = starvation(model, images, LABELS)["layers.0"]
    assert found.capsules == 6
    assert found.starved == pytest.approx(1 / 6)
    assert found.median > 0
    assert "Many" in found.verdict


def test_starvation_does_not_depend_on_the_batch_size(images: Tensor) -> None:
    model = RoutedPixels(6, 3)
    whole, parts = (
        starvation(model, images, LABELS, batch_size=size)["layers.0"] for size in (4, 3)
    )
    assert parts.median == pytest.approx(whole.median, rel=1e-4)


def test_starvation_by_hand() -> None:
    # Two children of one dimension; the loss is the mean of the first parent's activation.
    class OneChild(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = RoutedPixels(2, 2, dim=1, routing="uniform").layers[0]
            with torch.no_grad():
                self.layer.weight.copy_(
                    torch.tensor([2.0, 0.0]).view(2, 1, 1, 1).expand(2, 2, 1, 1)
                )

        def forward(self, images: Tensor) -> Tensor:
            return self.layer(images.squeeze(1)).activation

    images = torch.tensor([0.5, 0.3]).view(1, 1, 2, 1)
    found = starvation(OneChild(), images, torch.tensor([0]), loss=lambda a, _: a[:, 0].mean())[
        "layer"
    ]
    # s = 2 u / 2 = u, and |squash(s)| = s^2 / (1 + s^2), whose slope is 2 s / (1 + s^2)^2.
    slope = 2 * 0.5 / (1 + 0.25) ** 2
    assert found.starved == 0.5
    assert found.median in (0.0, pytest.approx(slope, rel=1e-4))
    everyone = starvation(OneChild(), images, torch.tensor([0]), loss=lambda a, _: 0 * a.mean())[
        "layer"
    ]
    assert everyone.starved == 1
    assert "No gradient" in everyone.verdict


def test_no_parameter_gets_a_gradient_and_the_mode_comes_back(images: Tensor) -> None:
    model = RoutedPixels(6, 5, 3).train()
    assert list(starvation(model, images, LABELS)) == ["layers.0", "layers.1"]
    sign_test(model, images)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert not any(layer._forward_pre_hooks for layer in model.layers)


def test_a_stack_without_bias_is_blind_to_sign(images: Tensor) -> None:
    found = sign_test(RoutedPixels(6, 5, 3), images)
    assert all(layer.blind and layer.largest < 1e-6 for layer in found.values())
    assert "cannot tell" in found["layers.0"].verdict


def test_a_bias_opens_its_eyes(images: Tensor) -> None:
    found = sign_test(RoutedPixels(6, 5, 3, bias=True), images)
    assert not any(layer.blind for layer in found.values())
    assert "tells poses" in found["layers.0"].verdict


@pytest.mark.parametrize("measure", [lambda m, x: starvation(m, x, LABELS), sign_test])
def test_a_model_without_routed_layers(measure, images: Tensor) -> None:
    with pytest.raises(
        ValueError, match="model: expected a capsule network with routed layers, got Sequential"
    ):
        measure(nn.Sequential(nn.Flatten(), nn.Linear(24, 3)), images)


def test_no_layer_at_all() -> None:
    with pytest.raises(ValueError, match="number of layers: expected at least 1, got 0"):
        activation_decay({})
