"""Efficient-CapsNet: counts as published, values of its ports, its forms at other sizes, and what it refuses."""

import math

import pytest
import torch
from torch import nn

import torchcaps as tc
from torchcaps.errors import UnknownNameError
from torchcaps.models.notebook import parameter_count
from torchcaps.nn.decoder import UpsamplingDecoder
from torchcaps.nn.primary import WholeMapConv2d
from torchcaps.testing import seeded

FORMS = {
    "efficient_capsnet": 161_824,
    "efficient_capsnet_smallnorb": 151_664,
    "efficient_capsnet_multimnist": 154_656,
}


@pytest.mark.parametrize(("name", "count"), FORMS.items())
def test_published_counts_are_of_the_network_without_its_decoder(name, count):
    assert parameter_count(tc.create_model(name, decoder=False)) == count
    model = tc.create_model(name)
    assert parameter_count(model) - parameter_count(model.decoder) == count


def test_parts():
    model = tc.create_model("efficient_capsnet", decoder=False)
    assert parameter_count(model.primary) == 10_496
    assert model.class_capsules.weight.numel() == 20_480
    assert model.class_capsules.router.prior.numel() == 160
    assert (
        sum(b.numel() for b in model.buffers()) == 576 + 4
    )  # running statistics, and four counters of batches
    assert model.stem[3].weight.std().item() == pytest.approx((2 / (9 * 32)) ** 0.5, rel=0.02)
    assert model.stem[3].weight.abs().max() <= 2 * (2 / (9 * 32)) ** 0.5 / 0.87
    assert model.primary.weight.abs().max().item() == pytest.approx((6 / 10449) ** 0.5, rel=1e-3)
    assert model.class_capsules.weight.std().item() == pytest.approx(0.0395, rel=0.02)
    assert not any(x.bias.any() for x in model.modules() if isinstance(x, nn.Conv2d))
    assert (model.stem[2].eps, model.stem[2].momentum) == (1e-3, 0.1)
    smallnorb = tc.create_model("efficient_capsnet_smallnorb", decoder=False)
    assert smallnorb.class_capsules.weight.std().item() == pytest.approx(0.0559, rel=0.02)
    assert smallnorb.stem[1].negative_slope == 0.3
    assert 0.04 < smallnorb.stem[2].weight.abs().max() <= 0.05


def filled(shape, t, size=0.05):
    """Numbers that any program can make, each tensor (number t) its own."""
    j = torch.arange(math.prod(shape))
    return (
        (size * (((j * j + 31 * j + 17 * t) % 65521).double() / 32760.5 - 1))
        .float()
        .double()
        .reshape(shape)
    )


@pytest.mark.parametrize(
    ("norm_first", "expected"),
    [
        (
            True,
            (
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
            ),
        ),
        (False, (0.29603,)),
    ],
)
def test_lengths_of_a_published_port(norm_first, expected):
    """akhdanfadh/efficient-capsnet-pytorch, whose norms come first, ran with these weights and this image."""
    model = (
        tc.create_model("efficient_capsnet", norm_first=norm_first, epsilon=1e-5, decoder=False)
        .double()
        .eval()
    )
    for block in range(4):
        parts = {type(part): part for part in model.stem[3 * block : 3 * block + 3]}
        convolution, norm = parts[nn.Conv2d], parts[nn.BatchNorm2d]
        tensors = [
            convolution.weight,
            convolution.bias,
            norm.weight,
            norm.bias,
            norm.running_mean,
            norm.running_var,
        ]
        for i, tensor in enumerate(tensors):
            tensor.data.copy_(filled(tensor.shape, 7 * block + i) + (i in (2, 5)))
    model.primary.weight.data.copy_(filled((128, 1, 9, 9), 28))
    model.primary.bias.data.copy_(filled((128,), 29))
    model.class_capsules.weight.data.copy_(
        filled((10, 16, 8, 16), 30, size=2.0).permute(1, 0, 3, 2)
    )
    model.class_capsules.router.prior.data.copy_(filled((10, 16), 31).T)
    h, w = torch.arange(28).view(-1, 1), torch.arange(28)
    image = ((7 * h + 3 * w + h * w) % 16).double() / 15
    found = model(image.view(1, 1, 28, 28))[0, : len(expected)]
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), atol=6e-6, rtol=0
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("edge", [0, 1])
def test_a_kernel_as_large_as_the_map_is_torchs_convolution(dtype, edge):
    layer = WholeMapConv2d(6, (4, 5)).to(dtype)
    nn.init.normal_(layer.bias)
    x = torch.randn(3, 6, 4 + edge, 5 + edge, generator=seeded()).to(dtype).requires_grad_()
    expected = nn.functional.conv2d(x, layer.weight, layer.bias, stride=(4, 5), groups=6).flatten(1)
    tolerance = {"atol": 0.02, "rtol": 0.02} if dtype == torch.bfloat16 else {}
    found = layer(x)
    torch.testing.assert_close(found, expected, check_dtype=False, **tolerance)
    wanted = torch.autograd.grad(expected.float().square().sum(), [x, *layer.parameters()])
    for one, other in zip(
        torch.autograd.grad(found.float().square().sum(), [x, *layer.parameters()]),
        wanted,
        strict=True,
    ):
        torch.testing.assert_close(one, other, **({"atol": 0.2, "rtol": 0.1} if tolerance else {}))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("efficient_capsnet", {"img_size": (40, 28), "num_classes": 3, "in_chans": 3}),
        (
            "efficient_capsnet",
            {"img_size": 32, "num_classes": 43, "in_chans": 3, "norm": "instance", "slope": 0.1},
        ),
        ("efficient_capsnet_smallnorb", {"img_size": (23, 50), "num_classes": 2, "in_chans": 1}),
    ],
)
def test_any_size(name, options):
    model = tc.create_model(name, **options)
    images = torch.rand(2, model.in_chans, *model.img_size)
    capsules = model.capsules(images)
    assert capsules.pose.shape == (2, model.num_classes, 16)
    assert model.reconstruct(capsules).shape == images.shape
    least = model.spec.smallest
    tc.create_model(name, **options | {"img_size": least}).capsules(
        torch.rand(1, model.in_chans, least, least)
    )
    with pytest.raises(ValueError, match=f"img_size: expected images of at least {least}x{least}"):
        tc.create_model(name, **options | {"img_size": (least, least - 1)})


def test_what_it_refuses():
    with pytest.raises(UnknownNameError, match="unknown norm 'layer'"):
        tc.create_model("efficient_capsnet", norm="layer")
    with pytest.raises(UnknownNameError, match="unknown decoder 'convolutional'"):
        tc.create_model("efficient_capsnet", decoder="convolutional")
    with pytest.raises(ValueError, match="slope: expected between 0 and 1, got -1"):
        tc.create_model("efficient_capsnet", slope=-1.0)
    with pytest.raises(TypeError, match="takes no option 'iterations'"):
        tc.create_model("efficient_capsnet", iterations=3)


def test_the_decoder_of_smallnorb_draws_every_size():
    for side in (48, 47, 23, 56):
        assert UpsamplingDecoder(5, 16, (2, side, 40))(torch.randn(3, 5, 16)).shape == (
            3,
            2,
            side,
            40,
        )
    assert UpsamplingDecoder(5, 16, (2, 48, 48)).start == [8, 8]


def test_a_stem_of_six_convolutions_with_padding():
    stem = [[5, 2, 4, 2], [3, 1, 8, 1], [3, 1, 8, 1], [3, 2, 8, 1], [3, 1, 16, 1], [3, 1, 16]]
    model = tc.create_model("efficient_capsnet", stem=stem, decoder=False)
    assert model.stem(torch.rand(3, 1, 28, 28)).shape == (3, 16, 5, 5)  # 14, 14, 14, 7, 7 before
    assert model(torch.rand(3, 1, 28, 28)).shape == (3, 10)
    smallest = model.spec.smallest
    assert tc.create_model("efficient_capsnet", stem=stem, decoder=False, img_size=smallest).stem(
        torch.rand(1, 1, smallest, smallest)
    ).shape[2:] == (2, 2)


@pytest.mark.parametrize(
    ("stem", "complaint"),
    [
        (
            [[5, 2], [3, 1]],
            r"stem: expected \(kernel, stride, channels, padding below half a kernel\), got \[5, 2\]",
        ),
        ([[3, 1, 8, 2]], r"stem: expected .*, got \[3, 1, 8, 2\]"),
        (
            [[5, 2], [3, 1], [3, 1], [3, 2, 12]],
            "stem: expected a multiple of 8 as the last channels, got ",
        ),
        ([], "stem: expected a multiple of 8 as the last channels, got "),
    ],
)
def test_a_stem_that_fits_nothing_is_refused(stem, complaint):
    with pytest.raises(ValueError, match=complaint):
        tc.create_model("efficient_capsnet", stem=stem)
