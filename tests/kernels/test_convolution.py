"""Convolution in the frequency domain, forced and chosen, against torch's own."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn import functional as F
from torch.testing import assert_close

from torchcaps import ops
from torchcaps.kernels.conv2d import _fourier as fourier, frequency
from torchcaps.kernels.conv2d.frequency import convolve, convolve_backward
from torchcaps.testing.compare import relative_rms
from torchcaps.testing.random import seeded

# Shapes of a map and a weight for which, at stride 2, the frequency domain costs less.
MAP = (64, 48, 20, 20)
WEIGHT = (128, 48, 9, 9)


def random_tensor(shape, seed, dtype=torch.float64):
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64).to(dtype)


def convolve_in_float64(x, weight, stride, bias=None):
    """Torch's output, an upstream gradient, and the gradients of x and weight."""
    x = x.detach().double().requires_grad_()
    weight = weight.detach().double().requires_grad_()
    y = F.conv2d(x, weight, bias, stride)
    upstream = random_tensor(y.shape, 3)
    return y.detach(), upstream, torch.autograd.grad(y, (x, weight), upstream)


def convolve_by_plan(x, weight, plan, upstream):
    """Output, and the gradients of x and weight."""
    gradients = convolve_backward(upstream, x, weight, plan, (True, True))
    return convolve(x, weight, plan), gradients


@st.composite
def problems(draw):
    """A plan with a map and a weight for it; some pixels may be reached by no kernel."""

    def pair(rows, columns):
        return draw(st.tuples(rows, columns))

    kernel = pair(st.integers(1, 9), st.integers(1, 9))
    stride = pair(st.integers(1, 3), st.integers(1, 3))
    out = pair(st.integers(1, 9), st.integers(1, 9))
    extra = pair(st.integers(0, stride[0] - 1), st.integers(0, stride[1] - 1))
    tile = pair(st.integers(1, out[0]), st.integers(1, out[1]))
    height = (out[0] - 1) * stride[0] + kernel[0] + extra[0]
    width = (out[1] - 1) * stride[1] + kernel[1] + extra[1]
    batch = draw(st.integers(1, 5))
    channels, outputs = pair(st.integers(1, 4), st.integers(1, 4))
    x = random_tensor((batch, channels, height, width), 1)
    weight = random_tensor((outputs, channels, *kernel), 2)
    return fourier.Plan(kernel, stride, out, tile), x, weight


@settings(max_examples=60, deadline=None)
@given(problems())
def test_every_plan_gives_what_torch_gives(problem):
    plan, x, weight = problem
    y, upstream, gradients = convolve_in_float64(x, weight, plan.stride)
    assert_close(
        convolve_by_plan(x, weight, plan, upstream), (y, gradients), atol=1e-11, rtol=1e-11
    )


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-6), (torch.bfloat16, 1e-2)]
)
def test_precision_of_the_papers_layer(dtype, tolerance):
    """Inputs as after a ReLU: their mean is far from zero, which raises rounding errors."""
    x = random_tensor((24, 32, 20, 20), 1).relu().to(dtype)
    weight = (random_tensor((32, 32, 9, 9), 2) * 0.02).to(dtype)
    expected_y, upstream, expected_gradients = convolve_in_float64(x, weight, 2)
    plan = fourier.Plan((9, 9), (2, 2), (6, 6), (6, 6))
    y, gradients = convolve_by_plan(x, weight, plan, upstream.to(dtype))
    for actual, expected in ((y, expected_y), *zip(gradients, expected_gradients, strict=True)):
        assert actual.dtype == dtype
        assert relative_rms(actual, expected) < tolerance


def test_many_samples_and_channels_are_cut_into_parts(monkeypatch):
    monkeypatch.setattr(frequency, "BLOCK_BYTES", 1)
    monkeypatch.setattr(frequency, "MAX_WINDOWS", 9)
    x = random_tensor((7, 40, 13, 13), 1)
    weight = random_tensor((3, 40, 5, 5), 2)
    y, upstream, gradients = convolve_in_float64(x, weight, 1)
    plan = fourier.Plan((5, 5), (1, 1), (9, 9), (5, 5))
    assert len(frequency._split_samples(7, plan)) == 4
    assert_close(
        convolve_by_plan(x, weight, plan, upstream), (y, gradients), atol=1e-10, rtol=1e-10
    )


def test_only_needed_gradients_are_computed():
    x = random_tensor((2, 3, 9, 9), 1)
    weight = random_tensor((2, 3, 5, 5), 2)
    plan = fourier.Plan((5, 5), (1, 1), (5, 5), (5, 5))
    _, upstream, expected = convolve_in_float64(x, weight, 1)
    grad_x, absent_weight = convolve_backward(upstream, x, weight, plan, (True, False))
    absent_x, grad_weight = convolve_backward(upstream, x, weight, plan, (False, True))
    assert absent_x is absent_weight is None
    assert_close((grad_x, grad_weight), expected)


PAPER_WEIGHT = (256, 256, 9, 9)


def test_the_papers_layer_has_a_plan_of_one_tile():
    plan = fourier.make_plan(128, PAPER_WEIGHT, (20, 20), (2, 2))
    assert plan == fourier.Plan((9, 9), (2, 2), (6, 6), (6, 6))


@pytest.mark.parametrize(
    ("batch", "weight", "size", "stride"),
    [
        (1, PAPER_WEIGHT, (20, 20), (2, 2)),  # the taps' transform serves one image alone
        (128, (256, 1, 9, 9), (28, 28), (1, 1)),
        (128, (256, 256, 1, 1), (20, 20), (1, 1)),
    ],
    ids=["one image", "one channel", "one pixel"],
)
def test_no_plan_where_the_direct_convolution_costs_less(batch, weight, size, stride):
    assert fourier.make_plan(batch, weight, size, stride) is None


def test_windows_of_a_large_map_are_limited():
    plan = fourier.make_plan(16, (128, 128, 9, 9), (200, 200), (1, 1))
    assert max(plan.window_size) <= fourier.LARGEST_WINDOW


def test_length_of_the_spectrum_of_a_window():
    assert fourier.spectrum_length((10, 10)) == 148


@pytest.mark.parametrize(
    ("memory_format", "has_bias"), [(torch.contiguous_format, False), (torch.channels_last, True)]
)
def test_operator_where_the_frequency_domain_pays(memory_format, has_bias):
    x = random_tensor(MAP, 1, torch.float32).contiguous(memory_format=memory_format)
    x.requires_grad_()
    weight = (random_tensor(WEIGHT, 2, torch.float32) * 0.02).requires_grad_()
    bias = random_tensor((128,), 4, torch.float32).requires_grad_() if has_bias else None
    assert fourier.make_plan(64, WEIGHT, (20, 20), (2, 2)) is not None

    y = ops.conv2d(x, weight, bias, 2, impl="blocked")
    expected_bias = bias.detach().double() if has_bias else None
    expected_y, upstream, gradients = convolve_in_float64(x, weight, 2, expected_bias)
    y.backward(upstream.float())
    assert relative_rms(y, expected_y) < 3e-6
    assert relative_rms(x.grad, gradients[0]) < 3e-6
    assert relative_rms(weight.grad, gradients[1]) < 3e-6
    if has_bias:
        assert_close(bias.grad, upstream.float().sum(dim=(0, 2, 3)))


def test_autocast_rounds_products_only():
    x = random_tensor((24, 32, 20, 20), 1, torch.float32)
    weight = (random_tensor((32, 32, 9, 9), 2, torch.float32) * 0.02).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = ops.conv2d(x, weight, stride=2, impl="blocked")
        expected = ops.conv2d(x, weight, stride=2, impl="reference")
    assert y.dtype == expected.dtype == torch.bfloat16
    assert relative_rms(y, expected) < 1e-2
    y.float().sum().backward()
    assert weight.grad.dtype == torch.float32


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_an_input_of_zeros_and_of_huge_values(scale):
    weight = random_tensor(WEIGHT, 2, torch.float32)
    x = (random_tensor(MAP, 1, torch.float32) * scale).requires_grad_()
    y = ops.conv2d(x, weight, stride=2, impl="blocked")
    assert y.isfinite().all()
    (gradient,) = torch.autograd.grad(y.mean(), x)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("shape", "weight_shape"),
    [((2, 8, 20, 20), (8, 8, 9, 9)), (MAP, WEIGHT)],
    ids=["direct", "frequency"],
)
def test_as_an_operator(shape, weight_shape):
    operands = [
        torch.rand(size).requires_grad_() for size in (shape, weight_shape, weight_shape[0])
    ]
    utils = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(
        torch.ops.torchcaps.conv2d_frequency.default, (*operands, [2, 2]), test_utils=utils
    )


@pytest.mark.parametrize(
    ("x", "weight", "stride", "message"),
    [
        ((1, 8, 9), (8, 8, 9, 9), 1, r"x: expected \[batch, channels=8, height, width\]"),
        ((1, 7, 9, 9), (8, 8, 9, 9), 1, r"x: expected \[batch, channels=8, height, width\]"),
        ((1, 8, 8, 9), (8, 8, 9, 9), 1, "height of x: expected at least 9, got 8"),
        ((1, 8, 9, 9), (8, 8, 9, 9), 0, "stride: expected at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_named(x, weight, stride, message):
    with pytest.raises(ValueError, match=message):
        ops.conv2d(torch.zeros(x), torch.zeros(weight), stride=stride)


def test_small_kernels_are_left_to_torch():
    x = torch.zeros(8, 64, 9, 9)
    name, reason = ops.choose("conv2d", x, torch.zeros(64, 64, 3, 3))
    assert name == "reference"
    assert "cost less directly" in reason
    assert ops.choose("conv2d", x, torch.zeros(64, 64, 9, 9))[0] == "blocked"
