"""HVC against the equations, with loops in NumPy, and against its published sizes."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import torchcaps as tc
from torchcaps.models.hvc import HomogeneousCaps

SMALL = {"img_size": 11, "convolutions": 3, "branches": (1, 3), "num_classes": 4}


def test_published_sizes():
    model = tc.create_model("hvc")
    parts = {
        name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()
    }
    assert parts == {"convolutions": 756_000 + 864, "class_capsules": 756_480 + 336, "norm": 3}
    assert [tuple(layer.weight.shape) for layer in model.class_capsules] == [
        (10, 484, 64),
        (10, 256, 112),
        (10, 100, 160),
    ]
    assert sum(p.numel() for p in model.parameters()) == 1_513_686
    assert model.capsules(torch.rand(2, 1, 28, 28)).pose.shape == (2, 10, 336)


def test_the_network_for_smallnorb():
    model = tc.create_model("hvc", num_classes=5, img_size=32, convolutions=11, branches=(5, 8, 11))
    assert [layer.weight.shape[2] for layer in model.class_capsules] == [96, 144, 192]


def test_a_layer_is_the_equation():
    x, layer = torch.randn(3, 4, 5), HomogeneousCaps(5, 4, 2).train()
    layer.norm.bias.data.normal_()
    weight, shift = (
        layer.weight.detach().double().numpy(),
        layer.norm.bias.detach().double().numpy(),
    )
    s = np.zeros((3, 2, 4))
    for b in range(3):
        for k in range(2):
            for d in range(4):
                s[b, k, d] = sum(float(x[b, d, n]) * weight[k, n, d] for n in range(5))
    for d in range(4):  # of a dimension, over batch and parents; a shift and no scale
        s[:, :, d] = (s[:, :, d] - s[:, :, d].mean()) / math.sqrt(s[:, :, d].var() + 1e-3) + shift[
            d
        ]
    np.testing.assert_allclose(
        layer(x).detach().transpose(1, 2), np.maximum(s, 0), rtol=1e-4, atol=1e-5
    )


def test_the_network_is_its_parts():
    model = tc.create_model("hvc", **SMALL).train()
    images = torch.rand(6, 1, 11, 11)
    lengths, x = [], images * 2 - 1
    for number, (convolution, *_) in enumerate(model.convolutions, start=1):
        x = F.conv2d(x, convolution.weight)
        x = torch.relu(
            (x - x.mean((0, 2, 3), True))
            / (x.var((0, 2, 3), correction=0, keepdim=True) + 1e-3).sqrt()
        )
        if number in (1, 3):
            y = torch.einsum(
                "bdn,knd->bkd", x.flatten(2), model.class_capsules[len(lengths)].weight
            )
            y = torch.relu((y - y.mean((0, 1))) / (y.var((0, 1), correction=0) + 1e-3).sqrt())
            lengths.append(y.norm(dim=2))
    merged = [(n - n.mean()) / (n.var(correction=0) + 1e-3).sqrt() for n in lengths]
    torch.testing.assert_close(model.logits(images), sum(merged), rtol=1e-4, atol=1e-4)


def test_merging():
    start = {
        merge: tc.create_model("hvc", merge=merge, **SMALL).weights
        for merge in ("fixed", "ones", "random")
    }
    assert start["fixed"] is None
    assert torch.equal(start["ones"].detach(), torch.ones(2))
    assert 0 < start["random"].abs().max() < 0.3
    images = torch.rand(6, 1, 11, 11)
    model = tc.create_model("hvc", **SMALL).train()
    before = model.logits(images)
    model.weights.data = torch.tensor([30.0, 1.0])  # the norm after them takes their size away
    torch.testing.assert_close(model.logits(images), before, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("branches", [(), (0, 1), (2, 4), (3, 1), (2, 2)])
def test_branches_that_are_none(branches):
    with pytest.raises(ValueError, match="branches: expected rising numbers from 1 to 3"):
        tc.create_model("hvc", img_size=11, convolutions=3, branches=branches)


def test_other_options_that_are_wrong():
    with pytest.raises(ValueError, match="unknown merge 'sum'"):
        tc.create_model("hvc", merge="sum")
    with pytest.raises(
        ValueError,
        match="img_size: expected images of at least 19x19 pixels, got 18x28",
    ):
        tc.create_model("hvc", img_size=(18, 28))


def test_gradients_are_finite_where_nothing_is_seen():
    model = tc.create_model("hvc", **SMALL).train()
    for layer in model.class_capsules:
        layer.norm.bias.data.fill_(-100.0)  # every capsule is zero
    model.logits(torch.zeros(2, 1, 11, 11)).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
