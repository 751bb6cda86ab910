from __future__ import annotations

import torch

from torchcaps.functional import standardise


def test_standardised_over_both_eyes():
    images = torch.rand(5, 2, 8, 8, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 0.2]).view(
        1, 2, 1, 1
    )
    found = standardise(images)
    torch.testing.assert_close(found.mean((1, 2, 3)), torch.zeros(5), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.var((1, 2, 3), correction=0), torch.ones(5))
    assert found[:, 0].mean() > 0 > found[:, 1].mean()  # one scale for both
    assert standardise(torch.full((1, 1, 4, 4), 0.3)).abs().max() < 1e-4


def test_the_gradient_is_finite_for_an_image_of_one_grey():
    images = torch.full((2, 1, 4, 4), 0.3, requires_grad=True)
    standardise(images).square().sum().backward()
    assert images.grad.isfinite().all()


def test_half_precision_is_computed_in_full():
    images = torch.rand(2, 1, 8, 8).bfloat16()
    torch.testing.assert_close(standardise(images), standardise(images.float()))
