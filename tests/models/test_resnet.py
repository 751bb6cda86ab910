"""ResNet-20, which serves beside every capsule network and under some."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import torchcaps as tc
from torchcaps.models import ResNet
from torchcaps.testing import seeded


def make_model(num_classes=3, in_chans=1, img_size=12, **options):
    with tc.nn.use_generator(seeded()):
        return ResNet(num_classes, in_chans, img_size, **{"width": 4} | options)


def sample_images(count=3):
    return torch.rand(count, 1, 12, 12, generator=seeded())


def residual_block(block, x):
    """A block whose shortcut subsamples, and has zeros for the channels that it lacks."""
    stride = block.first[0].stride[0]
    subsampled = x[:, :, ::stride, ::stride]
    shortcut = torch.zeros(len(x), block.first[0].out_channels, *subsampled.shape[2:])
    shortcut[:, : x.shape[1]] = subsampled
    inner = block.first[1](block.first[0](x)).relu()
    return (block.second[1](block.second[0](inner)) + shortcut).relu()


def test_the_network_is_that_of_the_paper():
    model = make_model().eval()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    stem, *blocks = model.trunk
    x = stem[1](stem[0](sample_images())).relu()
    shapes = []
    for block in blocks:
        x = residual_block(block, x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [(4, 12, 12)] * 3 + [(8, 6, 6)] * 3 + [(16, 3, 3)] * 3
    logits = x.mean(dim=(2, 3)) @ model.classes_layer.weight.T + model.classes_layer.bias
    assert_close(model.logits(sample_images()), logits)
    assert_close(model(sample_images()), logits.softmax(dim=1))


def test_weights_start_as_in_the_paper():
    """He: of deviation sqrt(2 / inputs of a unit)."""
    for layer in ResNet().modules():
        if isinstance(layer, nn.Conv2d):
            std = (2 / layer.weight[0].numel()) ** 0.5
            assert layer.weight.std().item() == pytest.approx(std, rel=0.2)
            assert layer.bias is None
