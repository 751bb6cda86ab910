"""HVC against the equations, with loops in NumPy, and against its published sizes."""

import torch

import torchcaps as tc

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
