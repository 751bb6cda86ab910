"""Squash: equation 1 of arXiv 1710.09829, its Jacobian, and the places where copies give NaN."""

import pytest
import torch

from torchcaps.functional import safe_norm, squash, squash_with_length, steep_squash_with_length
from torchcaps.functional.squash import Squash
from torchcaps.testing.compare import assert_close
from torchcaps.testing.random import seeded

ALL_SQUASHES = pytest.mark.parametrize("function", [squash_with_length, steep_squash_with_length])
SIZES = [1e-38, 1e-20, 1e-8, 1.0, 88.0, 1e8, 1e19, 3e38]


def randn64(*shape):
    return torch.randn(shape, dtype=torch.float64)


def test_squash_equals_the_plain_formula_and_its_length_is_exact():
    s = randn64(100, 16)
    n2 = s.square().sum(-1, keepdim=True)
    v, length = squash_with_length(s)
    torch.testing.assert_close(v, n2 / (1 + n2) * s / n2.sqrt(), rtol=1e-6, atol=0)
    torch.testing.assert_close(length, (n2 / (1 + n2)).squeeze(-1), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_any_axis_may_have_the_dimensions(dim):
    s = torch.randn(3, 4, 5)
    expected = squash(s.movedim(dim, -1)).movedim(-1, dim)
    torch.testing.assert_close(squash(s, dim=dim), expected)


@ALL_SQUASHES
def test_zero_stays_zero_with_a_finite_gradient(function):
    s = torch.zeros(2, 8, requires_grad=True)
    v, length = function(s)
    assert (v == 0).all()
    (gradient,) = torch.autograd.grad(v.sum() + length.sum(), s)
    if function is squash_with_length:
        assert length.max() < 1e-7
        assert gradient.abs().max() <= 1.01e-4
    else:
        assert length.max() < 1.01e-4
        torch.testing.assert_close(
            gradient,
            torch.ones(2, 8),
            rtol=1e-3,
            atol=1e-3,
        )


def test_the_jacobian_of_squash():
    """J = f I + f'/n s s^T with f = n / (1 + n^2)."""
    s = randn64(5)
    n = s.norm()
    f = n / (1 + n**2)
    slope = (1 - n**2) / (1 + n**2) ** 2
    eye = torch.eye(5, dtype=torch.float64)
    expected = f * eye + slope / n * torch.outer(s, s)
    jacobian = torch.autograd.functional.jacobian(squash, s)
    torch.testing.assert_close(jacobian, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("size", [1e-3, 0.1, 10.0])
def test_steep_squash_is_exact_in_float32_with_its_jacobian(size):
    """J = g I + g'(n)/n s s^T, g = (1 - exp(-n)) / n; for short vectors 1 - n/2 + n^2/6."""
    s = size * torch.nn.functional.normalize(randn64(5), dim=0)
    n = s.norm()
    decay = n.neg().exp()
    g = (1 - decay) / n
    slope = decay / n - (1 - decay) / n**2
    if size <= 1e-3:
        g = 1 - n / 2 + n**2 / 6
        slope = -0.5 + n / 3
    eye = torch.eye(5, dtype=torch.float64)
    expected = g * eye + slope / n * torch.outer(s, s)
    jacobian = torch.autograd.functional.jacobian(
        lambda x: steep_squash_with_length(x)[0],
        s.float(),
    )
    torch.testing.assert_close(
        jacobian.double(),
        expected,
        rtol=1e-4,
        atol=1e-5,
    )
    pose, length = steep_squash_with_length(s.float())
    torch.testing.assert_close(pose.double(), g * s, rtol=1e-5, atol=1e-8)
    tolerance = 6e-3 if size <= 1e-3 else 1e-4
    torch.testing.assert_close(
        length.double(),
        g * n,
        rtol=tolerance,
        atol=0.0,
    )


@pytest.mark.parametrize(
    "function", [squash_with_length, steep_squash_with_length, lambda s: Squash.apply(s, -1)]
)
@pytest.mark.parametrize("size", SIZES)
def test_vectors_of_any_finite_size(function, size):
    s = torch.tensor([[size, -size / 2, 0.0]], requires_grad=True)
    v, length, *_ = function(s)
    (gradient,) = torch.autograd.grad(v.sum() + length.sum(), s)
    assert v.isfinite().all()
    assert gradient.isfinite().all()
    assert 0 <= length.item() <= 1
    if size >= 1e8:
        assert length.item() == pytest.approx(1)
        assert v[0, 0].item() == pytest.approx(1 / 1.25**0.5, rel=1e-5)


@ALL_SQUASHES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(function, dtype):
    s = torch.full((1, 8), 1e-4).to(dtype)
    v, length = function(s)
    assert v.dtype == length.dtype == torch.float32
    torch.testing.assert_close((v, length), function(s.float()))


def test_safe_norm():
    assert safe_norm(torch.tensor([3.0, 4.0])).item() == pytest.approx(5)
    assert safe_norm(torch.zeros(3)).item() == pytest.approx(1e-4)
    assert safe_norm(torch.ones(2, 3, 4), dim=1, keepdim=True).shape == (2, 1, 4)


def test_double_precision_has_no_visible_floor():
    s = torch.tensor([3e-9, 4e-9], dtype=torch.float64, requires_grad=True)
    assert safe_norm(s).item() == pytest.approx(5e-9, rel=1e-12)
    assert safe_norm(s.float()).item() == pytest.approx(1e-4, rel=1e-3)
    assert squash_with_length(s)[1].item() == pytest.approx(2.5e-17, rel=1e-12)

    zero = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    pose, length = squash_with_length(zero)
    (pose.sum() + length).backward()
    assert zero.grad.isfinite().all()


@pytest.mark.parametrize("dim", [-1, 1])
@pytest.mark.parametrize("size", [0.0, 1e-20, 1e-6, 1e-2, 1.0, 1e4, 1e18, 1e30])
def test_the_form_for_a_gpu_has_the_same_values_and_gradients(dim, size):
    s = (size * torch.randn(4, 5, 6, generator=seeded(0), dtype=torch.float64)).requires_grad_()
    upstream = torch.randn(4, 5, 6, generator=seeded(1), dtype=torch.float64)
    results = []
    for v, length, *_ in (squash_with_length(s, dim), Squash.apply(s, dim)):
        loss = (v * upstream).sum() + (length * upstream.select(dim, 0)).sum()
        (gradient,) = torch.autograd.grad(loss, s, create_graph=True)
        (second,) = torch.autograd.grad((gradient * upstream).sum(), s)
        results.append((v, length, gradient, second))
    for expected, actual in zip(*results, strict=True):
        assert_close("of squash", actual, expected, 1e-14, floor=1e-300)


def test_the_form_for_a_gpu_takes_any_part_of_a_loss():
    s = torch.randn(3, 4, generator=seeded(0), dtype=torch.float64, requires_grad=True)
    for part in range(3):
        assert torch.autograd.gradcheck(lambda s, part=part: Squash.apply(s, -1)[part], s)
        assert torch.autograd.gradgradcheck(lambda s, part=part: Squash.apply(s, -1)[part], s)
