"""ResNet-20, which serves beside every capsule network and under some."""

import pytest
import torch

import torchcaps as tc
from torchcaps.errors import UnknownNameError
from torchcaps.models import ResNet, matched_cnn
from torchcaps.testing import check_module, seeded


def tiny(num_classes=3, in_chans=1, img_size=12, **options):
    return ResNet(num_classes, in_chans, img_size, **{"width": 4} | options)


@pytest.mark.parametrize(
    "options", [{}, {"multilabel": True}, {"shortcut": "B"}, {"standardized": True}]
)
def test_small_ones_keep_every_property_of_models(options):
    with tc.nn.use_generator(seeded()):
        model = tiny(**options)
    check_module(model, torch.rand(3, 1, 12, 12, generator=seeded()))


def test_the_network_is_that_of_the_paper():
    """Written out: a convolution; blocks whose shortcuts subsample and lack channels; the mean; the classes."""
    model = tiny().eval()
    images = torch.rand(2, 1, 12, 12, generator=seeded())
    for norm in (m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    stem, *blocks = model.trunk
    x = stem[1](stem[0](images)).relu()
    sizes = []
    for block in blocks:
        stride = block.first[0].stride[0]
        straight = torch.zeros(
            2, block.first[0].out_channels, *(-(-side // stride) for side in x.shape[2:])
        )
        straight[:, : x.shape[1]] = x[:, :, ::stride, ::stride]
        inner = block.first[1](block.first[0](x)).relu()
        x = (block.second[1](block.second[0](inner)) + straight).relu()
        sizes.append((x.shape[1], *x.shape[2:]))
    assert sizes == [(4, 12, 12)] * 3 + [(8, 6, 6)] * 3 + [(16, 3, 3)] * 3
    logits = x.mean(dim=(2, 3)) @ model.classes_layer.weight.T + model.classes_layer.bias
    torch.testing.assert_close(model.logits(images), logits)
    torch.testing.assert_close(model(images), logits.softmax(dim=1))


def test_weights_start_as_in_the_paper():
    """He: of deviation sqrt(2 / inputs of a unit)."""
    for layer in (m for m in ResNet().modules() if isinstance(m, torch.nn.Conv2d)):
        assert layer.bias is None
        std = (2 / layer.weight[0].numel()) ** 0.5
        assert layer.weight.std().item() == pytest.approx(std, rel=0.2)


@pytest.mark.parametrize(
    ("num_classes", "in_chans", "img_size"), [(1, 1, 5), (43, 3, (9, 30)), (5, 2, 33)]
)
def test_any_size(num_classes, in_chans, img_size):
    model = tiny(num_classes, in_chans, img_size)
    height, width = model.img_size
    one = model.train()(torch.rand(1, in_chans, height, width, generator=seeded()))
    assert one.shape == (1, num_classes)
    assert one.isfinite().all()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"img_size": (5, 4)},
            "img_size: expected images of at least 5x5 pixels, got 5x4",
        ),
        ({"width": 0}, "width: expected at least 1, got 0"),
        ({"num_classes": 0}, "num_classes: expected at least 1, got 0"),
    ],
)
def test_wrong_options(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        tiny(**options)
    with pytest.raises(UnknownNameError, match="unknown shortcut 'C'; known: A, B"):
        tiny(shortcut="C")


def test_it_is_no_capsule_network():
    with pytest.raises(ValueError, match="model: expected a capsule network, got a CNN"):
        matched_cnn(tiny())
    with pytest.raises(ValueError, match="reconstruct: ResNet has no decoder"):
        tiny().reconstruct(None)
