"""Squash: equation 1 of arXiv 1710.09829, its Jacobian, and the places where copies of it give NaN."""

import numpy as np
import pytest
import torch

from torchcaps.functional import safe_norm, squash, squash_with_length, steep_squash_with_length


def plain(s):
    n2 = (s**2).sum(-1, keepdims=True)
    return n2 / (1 + n2) * s / np.sqrt(n2)


def test_values():
    s = torch.tensor([[3.0, 4.0], [0.6, 0.8], [0.0, -0.1]])
    expected = torch.tensor([[25 / 26 * 0.6, 25 / 26 * 0.8], [0.3, 0.4], [0.0, -0.01 / 1.01]])
    torch.testing.assert_close(squash(s), expected, atol=1e-6, rtol=1e-5)


def test_equals_the_plain_formula():
    s = torch.randn(50, 7, dtype=torch.float64)
    np.testing.assert_allclose(squash(s).numpy(), plain(s.numpy()), rtol=1e-6)


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
def test_dim(dim):
    s = torch.randn(3, 4, 5)
    expected = squash(s.movedim(dim, -1)).movedim(-1, dim)
    torch.testing.assert_close(squash(s, dim=dim), expected)


def test_length_is_exact():
    s = torch.randn(100, 16, dtype=torch.float64)
    v, length = squash_with_length(s)
    n2 = s.square().sum(-1)
    torch.testing.assert_close(length, n2 / (1 + n2), rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(v.norm(dim=-1), length, rtol=1e-6, atol=1e-8)


def test_zero_stays_zero_with_a_finite_gradient():
    s = torch.zeros(2, 8, requires_grad=True)
    v, length = squash_with_length(s)
    assert (v == 0).all()
    assert length.max() < 1e-7
    (gradient,) = torch.autograd.grad(v.sum() + length.sum(), s)
    assert gradient.isfinite().all()
    assert gradient.abs().max() <= 1.01e-4


def test_jacobian():
    """J = f I + f'/n s s^T with f = n / (1 + n^2)."""
    s = torch.randn(5, dtype=torch.float64)
    n = s.norm()
    f, slope = n / (1 + n**2), (1 - n**2) / (1 + n**2) ** 2
    expected = f * torch.eye(5, dtype=torch.float64) + slope / n * torch.outer(s, s)
    jacobian = torch.autograd.functional.jacobian(squash, s)
    torch.testing.assert_close(jacobian, expected, rtol=1e-6, atol=1e-8)


def test_steepest_length():
    """The length grows fastest at |s| = 1 / sqrt(3), by 0.650."""
    n = torch.linspace(0.01, 3, 3000, dtype=torch.float64).unsqueeze(1).requires_grad_()
    (slope,) = torch.autograd.grad(squash_with_length(n)[1].sum(), n)
    assert slope.max().item() == pytest.approx(0.6495, abs=1e-3)
    assert n[slope.argmax()].item() == pytest.approx(3**-0.5, abs=2e-3)


@pytest.mark.parametrize("size", [1e-38, 1e-20, 1e-8, 1.0, 1e8, 1e19, 1e30, 3e38])
def test_any_finite_size(size):
    s = torch.tensor([[size, -size / 2, 0.0]], requires_grad=True)
    v, length = squash_with_length(s)
    (gradient,) = torch.autograd.grad(v.sum() + length.sum(), s)
    assert v.isfinite().all()
    assert gradient.isfinite().all()
    assert 0 <= length.item() <= 1
    if size >= 1e8:
        assert length.item() == pytest.approx(1)
        assert v[0, 0].item() == pytest.approx(1 / 1.25**0.5, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    s = torch.full((1, 8), 1e-4).to(dtype)
    v = squash(s)
    assert v.dtype == torch.float32
    torch.testing.assert_close(v, squash(s.float()))


def test_gradcheck():
    s = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(squash_with_length, (s,))


def test_safe_norm():
    assert safe_norm(torch.tensor([3.0, 4.0])).item() == pytest.approx(5)
    assert safe_norm(torch.zeros(3)).item() == pytest.approx(1e-4)
    assert safe_norm(torch.ones(2, 3, 4), dim=1, keepdim=True).shape == (2, 1, 4)


def test_steep_values():
    """(1 - exp(-|s|)) s / |s|."""
    s = torch.tensor([[3.0, 4.0], [0.6, 0.8], [0.0, -0.1]])
    pose, length = steep_squash_with_length(s)
    expected = torch.tensor([1 - np.exp(-5), 1 - np.exp(-1), 1 - np.exp(-0.1)], dtype=torch.float32)
    torch.testing.assert_close(length, expected)
    torch.testing.assert_close(pose, expected.unsqueeze(1) * s / s.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("size", [1e-3, 1e-2, 0.1, 1.0, 10.0])
def test_the_steep_one_is_exact_in_float32_with_its_jacobian(size):
    """J = g I + g'(n)/n s s^T with g = (1 - exp(-n)) / n; below n = 0.001 by its series 1 - n/2 + n^2/6."""
    s = size * torch.nn.functional.normalize(torch.randn(5, dtype=torch.float64), dim=0)
    n = s.norm()
    g, slope = (1 - n.neg().exp()) / n, n.neg().exp() / n - (1 - n.neg().exp()) / n**2
    if size <= 1e-3:
        g, slope = 1 - n / 2 + n**2 / 6, -0.5 + n / 3
    jacobian = torch.autograd.functional.jacobian(
        lambda x: steep_squash_with_length(x)[0], s.float()
    )
    expected = g * torch.eye(5, dtype=torch.float64) + slope / n * torch.outer(s, s)
    torch.testing.assert_close(jacobian.double(), expected, rtol=1e-4, atol=1e-5)
    pose, length = steep_squash_with_length(s.float())
    torch.testing.assert_close(pose.double(), g * s, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(
        length.double(), g * n, rtol=6e-3 if size <= 1e-3 else 1e-4, atol=0.0
    )


def test_the_steep_one_passes_gradients_through_zero():
    s = torch.zeros(2, 8, requires_grad=True)
    pose, length = steep_squash_with_length(s)
    assert (pose == 0).all()
    assert length.max() < 1.01e-4
    (gradient,) = torch.autograd.grad(pose.sum() + length.sum(), s)
    torch.testing.assert_close(gradient, torch.ones(2, 8), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [1e-38, 1e-20, 1e-8, 1.0, 88.0, 1e3, 1e19, 3e38])
def test_the_steep_one_takes_any_finite_size(size):
    s = torch.tensor([[size, -size / 2, 0.0]], requires_grad=True)
    pose, length = steep_squash_with_length(s)
    (gradient,) = torch.autograd.grad(pose.sum() + length.sum(), s)
    assert pose.isfinite().all()
    assert gradient.isfinite().all()
    assert 0 <= length.item() <= 1
    if size >= 88:
        assert length.item() == pytest.approx(1)
        assert pose[0, 0].item() == pytest.approx(1 / 1.25**0.5, rel=1e-5)
    assert steep_squash_with_length(s.detach().bfloat16())[0].dtype == torch.float32


def test_the_steep_one_passes_gradcheck():
    s = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(steep_squash_with_length, (s,))
