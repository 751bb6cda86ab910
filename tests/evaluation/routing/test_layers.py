from __future__ import annotations

import pytest
import torch
from torch import nn

from torchcaps import create_model
from torchcaps.evaluation import route_images
from torchcaps.evaluation.routing.layers import swapped_routers
from torchcaps.nn import ConvCaps, UniformRouting
from torchcaps.types import Capsules

from ..stubs import RoutedPixels


def test_all_images_are_recorded_whatever_the_batch_size() -> None:
    model, images = RoutedPixels(6, 5, 3), torch.rand(5, 1, 6, 4)
    whole, parts = (route_images(model, images, batch_size=size) for size in (5, 2))
    assert list(whole.layers) == ["layers.0", "layers.1"]
    assert whole.layers["layers.0"].coupling.shape == (5, 6, 5)
    assert torch.allclose(whole.activation, model(images), atol=1e-6)
    assert torch.allclose(whole.children["layers.0"], images.squeeze(1).norm(dim=-1), atol=1e-6)
    for name, layer in whole.layers.items():
        assert all(
            torch.allclose(a, b, atol=1e-4)
            for a, b in zip(layer[:4], parts.layers[name][:4], strict=True)
        )
        assert torch.allclose(whole.children[name], parts.children[name], atol=1e-5)
    assert not whole.activation.is_inference()


def test_a_child_in_several_windows_stands_among_the_children_once() -> None:
    class Map(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = ConvCaps(2, 3, 3, iterations=1, impl="reference")

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            pose = images.permute(0, 2, 3, 1).unflatten(-1, (2, 16))
            return self.conv(Capsules(pose, pose[..., 0])).activation.flatten(1)

    found = route_images(Map(), torch.rand(2, 32, 5, 5))
    assert found.children["conv"].shape == (2, 5, 5, 2)
    assert found.layers["conv"].child_activation.shape == (2, 3, 3, 18)


def test_swapped_routers_come_back_after_an_error() -> None:
    model = RoutedPixels(6, 3)
    own = model.layers[0].router
    with pytest.raises(KeyError), swapped_routers(model, lambda _: UniformRouting()):
        assert isinstance(model.layers[0].router, UniformRouting)
        raise KeyError
    assert model.layers[0].router is own


def test_a_model_without_capsules_is_named() -> None:
    with pytest.raises(ValueError, match="expected a capsule network with routed layers, got CNN"):
        route_images(
            create_model("cnn_multimnist", channels=(2, 2), hidden=(4,)), torch.rand(2, 1, 36, 36)
        )
