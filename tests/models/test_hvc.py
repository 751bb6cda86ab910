"""HVC against the equations, with loops in NumPy, and against its published sizes."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import torchcaps as tc
from torchcaps.models.hvc import HomogeneousCaps
from torchcaps.models.notebook import parameter_count

SMALL = {
    "img_size": 11,
    "convolutions": 3,
    "branches": (1, 3),
    "num_classes": 4,
}


def make_model(**options):
    return tc.create_model("hvc", **SMALL | options)


def sample_images():
    return torch.rand(6, 1, 11, 11)


def test_published_sizes():
    model = tc.create_model("hvc")
    assert parameter_count(model.convolutions) == 756_000 + 864
    assert parameter_count(model.class_capsules) == 756_480 + 336
    shapes = [tuple(layer.weight.shape) for layer in model.class_capsules]
    assert shapes == [
        (10, 484, 64),
        (10, 256, 112),
        (10, 100, 160),
    ]
    capsules = model.capsules(torch.rand(2, 1, 28, 28))
    assert capsules.pose.shape == (2, 10, 336)


def test_the_network_for_smallnorb():
    model = tc.create_model("hvc", num_classes=5, img_size=32, convolutions=11, branches=(5, 8, 11))
    assert [layer.weight.shape[2] for layer in model.class_capsules] == [96, 144, 192]


def test_a_layer_is_the_equation():
    x = torch.randn(3, 4, 5)
    layer = HomogeneousCaps(5, 4, 2).train()
    layer.norm.bias.data.normal_()
    weight = layer.weight.detach().double().numpy()
    shift = layer.norm.bias.detach().double().numpy()
    outputs = layer(x).detach()
    for d in range(4):
        s = np.zeros((3, 2))
        for b in range(3):
            for k in range(2):
                s[b, k] = x[b, d].double().numpy() @ weight[k, :, d]
        # Statistics over batch and parents; a shift and no scale.
        normalized = (s - s.mean()) / math.sqrt(s.var() + 1e-3)
        expected = np.maximum(normalized + shift[d], 0)
        np.testing.assert_allclose(outputs[:, d], expected, rtol=1e-4, atol=1e-5)


def normalize(x, axes):
    """Batch norm over these axes."""
    variance = x.var(axes, correction=0, keepdim=True)
    return (x - x.mean(axes, keepdim=True)) / (variance + 1e-3).sqrt()


def test_the_network_is_its_parts():
    model = make_model().train()
    images = sample_images()
    first_layer, second_layer = model.class_capsules
    layers = {1: first_layer, 3: second_layer}
    x = images * 2 - 1
    logits = 0
    for number, (convolution, *_) in enumerate(model.convolutions, start=1):
        x = torch.relu(normalize(F.conv2d(x, convolution.weight), (0, 2, 3)))
        if number in layers:
            y = torch.einsum("bdn,knd->bkd", x.flatten(2), layers[number].weight)
            lengths = torch.relu(normalize(y, (0, 1))).norm(dim=2)
            logits = logits + normalize(lengths, (0, 1))
    torch.testing.assert_close(model.logits(images), logits, rtol=1e-4, atol=1e-4)


def test_weights_of_branches_at_the_start():
    assert make_model(merge="fixed").weights is None
    assert torch.equal(make_model(merge="ones").weights.detach(), torch.ones(2))
    assert 0 < make_model(merge="random").weights.abs().max() < 0.3


def test_the_norm_takes_the_size_of_weights_of_branches_away():
    model = make_model().train()
    images = sample_images()
    logits = model.logits(images)
    model.weights.data = torch.tensor([30.0, 1.0])
    torch.testing.assert_close(model.logits(images), logits, atol=0.02, rtol=0.02)


@pytest.mark.parametrize(
    "branches",
    [
        (),
        (0, 1),
        (2, 4),
        (3, 1),
        (2, 2),
    ],
)
def test_wrong_branches(branches):
    with pytest.raises(ValueError, match="branches: expected rising numbers from 1 to 3"):
        make_model(branches=branches)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"merge": "sum"}, "unknown merge 'sum'"),
        ({"img_size": (6, 11)}, "img_size: expected images of at least 7x7 pixels, got 6x11"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        make_model(**options)


def test_gradients_are_finite_where_every_capsule_is_zero():
    model = make_model().train()
    for layer in model.class_capsules:
        layer.norm.bias.data.fill_(-100.0)
    model.logits(torch.zeros(2, 1, 11, 11)).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
