"""Models so small that every figure they lead to can be worked out by hand."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchcaps.evaluation import score
from torchcaps.evaluation.base import image_activations
from torchcaps.nn import CapsuleLinear, RoutingTrace
from torchcaps.types import Capsules, ModelSpec


def share(flags):
    """The part of flags that is true."""
    return float(flags.double().mean())


def assert_model_is_back(model):
    """A model in training mode is left as it was: its mode, no gradient, no hook."""
    for module in model.modules():
        assert module.training
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    for parameter in model.parameters():
        assert parameter.grad is None


@dataclass
class StubData:
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def float_images(self, indices):
        return self.images[indices]


def data_of(activations, labels, classes):
    """Images whose pixels are the activations that `PixelReader` will give."""
    images = torch.tensor(activations)[:, None, None, :]  # [n, 1, 1, classes]
    return StubData(images, torch.tensor(labels), classes)


def evaluate(model, data, batch_size=256):
    """Evaluate a classifier on images."""
    activations = image_activations(model, data.images, batch_size=batch_size)
    return score(activations, data.labels, data.classes)


class PixelReader(nn.Module):
    """The pixels of an image are its activations, by way of one matrix product."""

    def __init__(self, classes):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(classes))
        self.calls = []  # batch size, whether there are gradients

    def forward(self, images):
        self.calls.append((len(images), torch.is_grad_enabled()))
        return images.flatten(1) @ self.weight


class Decodes(nn.Module):
    """A model of vector capsules with a decoder, by `capsules` and `reconstruct`."""

    spec = ModelSpec(pose=True, activation="length", decoder=True)

    def forward(self, images):
        return self.capsules(images).activation


class PoseReader(Decodes):
    """The pixels of a `[1, classes, dim]` image are the poses, and the decoder copies the poses."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.decoded = []

    def capsules(self, images):
        pose = self.dropout(images.squeeze(1))
        return Capsules(pose, pose.norm(dim=-1))

    def reconstruct(self, capsules, labels):
        self.decoded.append((capsules, labels))
        return capsules.pose.unsqueeze(1)


class Linear(nn.Module):
    """Logits of two classes, `w x` and `-w x`, squashed to activations.

    Every attack on it is known in closed form. `offset` moves the plane between the classes.
    """

    def __init__(self, weight, offset=0.0):
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.offset = offset

    def forward(self, images):
        score = (images - self.offset).flatten(1) @ self.weight.flatten()
        return torch.sigmoid(torch.stack([score, -score], dim=1))


class RoutedPixels(nn.Module):
    """The rows of a `[1, children, dim]` image are poses, which routed layers take to classes."""

    def __init__(self, *sizes, dim=4, **options):
        super().__init__()
        options = {"impl": "reference"} | options
        pairs = zip(sizes, sizes[1:], strict=False)
        self.layers = nn.Sequential(*(CapsuleLinear(i, dim, o, dim, **options) for i, o in pairs))

    def forward(self, images):
        return self.layers(images.squeeze(1)).activation


def recorded(coupling, activation=None):
    """The trace of a layer with these couplings `[n, children, parents]`."""
    n, children, parents = coupling.shape
    child_activation = torch.ones(n, children) if activation is None else activation
    return RoutingTrace(
        coupling,
        torch.ones(n, parents),
        child_activation,
        torch.ones(n, parents, 1),
    )
