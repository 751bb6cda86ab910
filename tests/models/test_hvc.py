"""HVC against the equations, with loops in NumPy, and against its published sizes."""

import torch

import torchcaps as tc
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


def test_gradients_are_finite_where_every_capsule_is_zero():
    model = make_model().train()
    for layer in model.class_capsules:
        layer.norm.bias.data.fill_(-100.0)
    model.logits(torch.zeros(2, 1, 11, 11)).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
