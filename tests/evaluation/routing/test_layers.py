import torch
from torch import nn

from torchcaps.evaluation import route_images
from torchcaps.functional import straightness
from torchcaps.nn import ConvCaps
from torchcaps.types import Capsules

from ..stubs import RoutedPixels


def test_all_images_are_recorded_whatever_the_batch_size(monkeypatch):
    model = RoutedPixels(6, 5, 3)
    images = torch.rand(5, 1, 6, 4)
    record = route_images(model, images)
    assert list(record.layers) == ["layers.0", "layers.1"]
    assert record.layers["layers.0"].coupling.shape == (5, 6, 5)
    assert torch.allclose(record.activation, model(images), atol=1e-6)
    parents = record.layers["layers.1"].pose
    assert torch.allclose(parents.norm(dim=-1), record.activation, atol=1e-6)
    lengths = images.squeeze(1).norm(dim=-1)
    extras = record.layers["layers.0"].extras
    assert torch.allclose(extras["children"], lengths, atol=1e-6)
    assert not record.activation.is_inference()
    monkeypatch.setattr("torchcaps.evaluation.routing.layers.ROUTED_BATCH", 2)
    in_parts = route_images(model, images).layers
    for name, trace in record.layers.items():
        tensors = trace[:4] + tuple(trace.extras.values())
        parts = in_parts[name][:4] + tuple(in_parts[name].extras.values())
        for tensor, expected in zip(parts, tensors, strict=True):
            assert torch.allclose(tensor, expected, atol=1e-4)
    votes = torch.einsum("ijdk,bik->bijd", model.layers[0].weight, images.squeeze(1))
    expected = straightness(record.layers["layers.0"].coupling, votes)
    assert torch.allclose(extras["straightness"], expected, atol=1e-5)


class Convolution(nn.Module):
    """One layer of convolutional capsules on poses from pixels."""

    def __init__(self):
        super().__init__()
        self.conv = ConvCaps(2, 3, 3, iterations=1, impl="reference")

    def forward(self, images):
        pose = images.permute(0, 2, 3, 1).unflatten(-1, (2, 16))
        return self.conv(Capsules(pose, pose[..., 0])).activation.flatten(1)


def test_a_child_in_several_windows_stands_among_the_children_once():
    trace = route_images(Convolution(), torch.rand(2, 32, 5, 5)).layers["conv"]
    assert trace.extras["children"].shape == (2, 5, 5, 2)
    assert trace.child_activation.shape == (2, 3, 3, 18)
    assert trace.extras["straightness"].shape == (2, 3)
