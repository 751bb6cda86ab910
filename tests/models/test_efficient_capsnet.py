"""Efficient-CapsNet: counts as published, lengths of a port, other sizes and stems."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import torchcaps as tc
from torchcaps.models.notebook import parameter_count
from torchcaps.nn.decoder import UpsamplingDecoder
from torchcaps.nn.primary import WholeMapConv2d
from torchcaps.testing import seeded

COUNTS = {
    "efficient_capsnet": 161_824,
    "efficient_capsnet_smallnorb": 151_664,
    "efficient_capsnet_multimnist": 154_656,
}
# Of a port to PyTorch whose norms come first, and of the same weights with activations first.
PORT_LENGTHS = [
    0.30961,
    0.06117,
    0.10436,
    0.06914,
    0.05585,
    0.05701,
    0.09121,
    0.12142,
    0.10911,
    0.10160,
]
ACTIVATION_FIRST_LENGTHS = [0.29603]


def make_model(name="efficient_capsnet", **options):
    return tc.create_model(name, **{"decoder": False} | options)


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_published_counts_are_of_the_network_without_its_decoder(name, count):
    assert parameter_count(make_model(name)) == count
    model = make_model(name, decoder="dense")
    assert parameter_count(model) - parameter_count(model.decoder) == count


def test_weights_start_as_in_the_authors_code():
    model = make_model()
    convolution = model.stem[3].weight
    std = (2 / (9 * 32)) ** 0.5
    assert convolution.std().item() == pytest.approx(std, rel=0.02)
    assert convolution.abs().max() <= 2 * std / 0.87
    bound = (6 / 10449) ** 0.5
    assert model.primary.weight.abs().max().item() == pytest.approx(bound, rel=1e-3)
    assert model.class_capsules.weight.std().item() == pytest.approx(0.0395, rel=0.02)
    assert not any(x.bias.any() for x in model.modules() if isinstance(x, nn.Conv2d))


def numbers(shape, seed, size=0.05):
    """A tensor that any program can make, for each seed another one."""
    j = torch.arange(math.prod(shape))
    integers = (j * j + 31 * j + 17 * seed) % 65521
    return (size * (integers.double() / 32760.5 - 1)).float().double().reshape(shape)


def fill_like_the_port(model):
    for block in range(4):
        layers = {type(layer): layer for layer in model.stem[3 * block : 3 * block + 3]}
        conv = layers[nn.Conv2d]
        norm = layers[nn.BatchNorm2d]
        weights = (conv.weight, conv.bias, norm.weight, norm.bias)
        for i, tensor in enumerate((*weights, norm.running_mean, norm.running_var)):
            is_scale = i in (2, 5)
            tensor.data.copy_(numbers(tensor.shape, 7 * block + i) + is_scale)
    model.primary.weight.data.copy_(numbers((128, 1, 9, 9), 28))
    model.primary.bias.data.copy_(numbers((128,), 29))
    matrices = numbers((10, 16, 8, 16), 30, size=2.0)
    model.class_capsules.weight.data.copy_(matrices.permute(1, 0, 3, 2))
    model.class_capsules.router.prior.data.copy_(numbers((10, 16), 31).T)


@pytest.mark.parametrize(
    ("norm_first", "lengths"),
    [
        (True, PORT_LENGTHS),
        (False, ACTIVATION_FIRST_LENGTHS),
    ],
)
def test_lengths_of_a_published_port(norm_first, lengths):
    """akhdanfadh/efficient-capsnet-pytorch ran with these weights and this image."""
    model = make_model(norm_first=norm_first, norm_options={"eps": 1e-5}).double().eval()
    fill_like_the_port(model)
    row = torch.arange(28).view(-1, 1)
    column = torch.arange(28)
    image = ((7 * row + 3 * column + row * column) % 16).double() / 15
    outputs = model(image.view(1, 1, 28, 28))[0, : len(lengths)]
    expected = torch.tensor(lengths, dtype=torch.float64)
    assert_close(outputs, expected, atol=6e-6, rtol=0)


def convolve(layer, x):
    """The layer as a convolution of torch."""
    kernel = layer.kernel_size
    outputs = nn.functional.conv2d(x, layer.weight, layer.bias, stride=kernel, groups=6)
    return outputs.flatten(1)


@pytest.mark.parametrize("edge", [0, 1])
def test_a_kernel_as_large_as_the_map_is_a_convolution(edge):
    layer = WholeMapConv2d(6, (4, 5)).double()
    nn.init.normal_(layer.bias)
    x = torch.randn(3, 6, 4 + edge, 5 + edge, generator=seeded())
    x = x.double().requires_grad_()
    outputs = [layer(x), convolve(layer, x)]
    assert_close(outputs[0], outputs[1])
    leaves = [x, *layer.parameters()]
    gradients = [torch.autograd.grad(y.square().sum(), leaves) for y in outputs]
    assert_close(gradients[0], gradients[1])


def test_a_kernel_as_large_as_the_map_in_half_precision():
    layer = WholeMapConv2d(6, (4, 5)).bfloat16()
    x = torch.randn(3, 6, 4, 5, generator=seeded()).bfloat16()
    expected = convolve(layer, x)
    assert_close(layer(x), expected, check_dtype=False, atol=0.02, rtol=0.02)


def test_the_decoder_of_smallnorb_starts_from_the_published_map():
    assert UpsamplingDecoder(5, 16, (2, 48, 48)).start == [8, 8]


def test_a_stem_of_six_convolutions_with_padding():
    stem = [
        [5, 2, 4, 2],
        [3, 1, 8, 1],
        [3, 1, 8, 1],
        [3, 2, 8, 1],
        [3, 1, 16, 1],
        [3, 1, 16],
    ]
    model = make_model(stem=stem)
    # The maps before have sides of 14, 14, 14, 7 and 7.
    features = model.stem(torch.rand(3, 1, 28, 28))
    assert features.shape == (3, 16, 5, 5)
    assert model.class_capsules.weight.shape == (2, 10, 16, 8)
    side = model.spec.smallest
    smallest = make_model(stem=stem, img_size=side)
    features = smallest.stem(torch.rand(1, *smallest.image_shape))
    assert features.shape[2:] == (2, 2)
