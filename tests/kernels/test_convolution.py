"""Convolution in the frequency domain, forced and chosen, against torch's own."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn import functional as F

from torchcaps import ops
from torchcaps.kernels.conv2d import _fourier as fourier
from torchcaps.kernels.conv2d.frequency import convolve, convolve_backward
from torchcaps.testing.compare import relative_rms
from torchcaps.testing.random import seeded


def draw(shape, seed, dtype=torch.float64):
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64).to(dtype)


def truth(x, weight, stride, bias=None):
    """Outcome and gradients of torch's own, in float64, for an upstream gradient that goes with them."""
    x, weight = (t.detach().double().requires_grad_() for t in (x, weight))
    y = F.conv2d(x, weight, bias, stride)
    upstream = draw(y.shape, 3)
    return [y.detach(), *torch.autograd.grad(y, (x, weight), upstream)], upstream


@st.composite
def problems(draw_one):
    kernel = draw_one(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    stride = draw_one(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    out = draw_one(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    over = draw_one(
        st.tuples(*(st.integers(0, s - 1) for s in stride))
    )  # pixels that no kernel reaches
    size = tuple((o - 1) * s + k + r for o, s, k, r in zip(out, stride, kernel, over, strict=True))
    tile = draw_one(st.tuples(*(st.integers(1, o) for o in out)))
    counts = draw_one(st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4)))
    return kernel, stride, out, size, tile, counts


@settings(max_examples=60, deadline=None)
@given(problems())
def test_every_plan_gives_what_torch_gives(problem):
    kernel, stride, out, size, tile, (batch, channels, outputs) = problem
    x, weight = draw((batch, channels, *size), 1), draw((outputs, channels, *kernel), 2)
    expected, upstream = truth(x, weight, stride)
    plan = fourier.Plan(kernel, stride, out, tile)
    found = [
        convolve(x, weight, plan),
        *convolve_backward(upstream, x, weight, plan, (True, True)),
    ]
    for actual, right in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, right, atol=1e-11, rtol=1e-11)


PAPER = {"shape": (24, 32, 20, 20), "weight": (32, 32, 9, 9), "stride": (2, 2)}


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-6), (torch.bfloat16, 1e-2)]
)
def test_precision_of_the_papers_layer(dtype, tolerance):
    """Inputs as after a ReLU: their mean is far from zero, which is what rounding in the frequency domain fears."""
    x, weight = (
        draw(PAPER["shape"], 1).relu().to(dtype),
        (draw(PAPER["weight"], 2) * 0.02).to(dtype),
    )
    expected, upstream = truth(x, weight, 2)
    plan = fourier.Plan((9, 9), (2, 2), (6, 6), (6, 6))
    found = [
        convolve(x, weight, plan),
        *convolve_backward(upstream.to(dtype), x, weight, plan, (True, True)),
    ]
    assert all(t.dtype == dtype for t in found)
    for actual, right in zip(found, expected, strict=True):
        assert relative_rms(actual.double(), right) < tolerance


def test_many_samples_and_channels_are_cut_into_parts(monkeypatch):
    from torchcaps.kernels.conv2d import frequency as convolution

    monkeypatch.setattr(convolution, "BLOCK_BYTES", 1)
    monkeypatch.setattr(convolution, "MAX_WINDOWS", 9)
    x, weight = draw((7, 40, 13, 13), 1), draw((3, 40, 5, 5), 2)
    expected, upstream = truth(x, weight, 1)
    plan = fourier.Plan((5, 5), (1, 1), (9, 9), (5, 5))
    assert len(convolution._split_samples(7, plan)) == 4
    found = [
        convolve(x, weight, plan),
        *convolve_backward(upstream, x, weight, plan, (True, True)),
    ]
    for actual, right in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, right, atol=1e-10, rtol=1e-10)


def test_only_what_is_wanted_is_made():
    x, weight = draw((2, 3, 9, 9), 1), draw((2, 3, 5, 5), 2)
    plan = fourier.Plan((5, 5), (1, 1), (5, 5), (5, 5))
    upstream = draw((2, 2, 5, 5), 3)
    grad_x, nothing = convolve_backward(upstream, x, weight, plan, (True, False))
    assert nothing is None
    nothing, grad_weight = convolve_backward(upstream, x, weight, plan, (False, True))
    assert nothing is None
    expected, _ = truth(x, weight, 1)
    torch.testing.assert_close(grad_x, expected[1])
    torch.testing.assert_close(grad_weight, expected[2])


def test_the_plan_follows_the_cost():
    paper = (256, 256, 9, 9)
    assert fourier.make_plan(128, paper, (20, 20), (2, 2)) == fourier.Plan(
        (9, 9), (2, 2), (6, 6), (6, 6)
    )
    assert (
        fourier.make_plan(1, paper, (20, 20), (2, 2)) is None
    )  # the taps' transform serves one image alone
    assert fourier.make_plan(128, (256, 1, 9, 9), (28, 28), (1, 1)) is None
    assert fourier.make_plan(128, (256, 256, 1, 1), (20, 20), (1, 1)) is None
    large = fourier.make_plan(16, (128, 128, 9, 9), (200, 200), (1, 1))
    assert large is not None
    assert max(large.window_size) <= fourier.LARGEST_WINDOW
    assert fourier.spectrum_length((10, 10)) == 148


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("bias", [False, True])
def test_operator_where_it_pays(memory_format, bias):
    x = (
        draw((64, 128, 20, 20), 1, torch.float32)
        .contiguous(memory_format=memory_format)
        .requires_grad_()
    )
    weight = (draw((128, 128, 9, 9), 2, torch.float32) * 0.02).requires_grad_()
    added = draw((128,), 4, torch.float32).requires_grad_() if bias else None
    assert fourier.make_plan(64, tuple(weight.shape), (20, 20), (2, 2)) is not None
    expected, upstream = truth(x, weight, 2, added.detach().double() if bias else None)
    y = ops.conv2d(x, weight, added, 2, impl="blocked")
    y.backward(upstream.float())
    for actual, right in zip((y, x.grad, weight.grad), expected, strict=True):
        assert relative_rms(actual.double(), right) < 3e-6
    if bias:
        torch.testing.assert_close(added.grad, upstream.float().sum(dim=(0, 2, 3)))


def test_autocast_rounds_products_only():
    x, weight = (
        draw((24, 32, 20, 20), 1, torch.float32),
        draw((32, 32, 9, 9), 2, torch.float32) * 0.02,
    )
    weight.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = ops.conv2d(x, weight, stride=2, impl="blocked")
        direct = ops.conv2d(x, weight, stride=2, impl="reference")
    assert y.dtype == direct.dtype == torch.bfloat16
    assert relative_rms(y.double(), direct.double()) < 1e-2
    y.float().sum().backward()
    assert weight.grad.dtype == torch.float32


def test_an_input_of_zeros_and_of_huge_values():
    weight = draw((128, 128, 9, 9), 2, torch.float32)
    for scale in (0.0, 1e-30, 1e30):
        x = (draw((64, 128, 20, 20), 1, torch.float32) * scale).requires_grad_()
        y = ops.conv2d(x, weight, stride=2, impl="blocked")
        assert y.isfinite().all()
        (grad,) = torch.autograd.grad(y.mean(), x)
        assert grad.isfinite().all()


def test_as_an_operator():
    for count, channels in ((2, 8), (64, 128)):
        x, weight = torch.rand(count, channels, 20, 20), torch.rand(channels, channels, 9, 9)
        args = (
            x.requires_grad_(),
            weight.requires_grad_(),
            torch.rand(channels).requires_grad_(),
            [2, 2],
        )
        utils = ("test_schema", "test_faketensor", "test_autograd_registration")
        torch.library.opcheck(torch.ops.torchcaps.conv2d_frequency.default, args, test_utils=utils)


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
    name, reason = ops.choose("conv2d", torch.zeros(8, 64, 9, 9), torch.zeros(64, 64, 3, 3))
    assert name == "reference"
    assert "cost less directly" in reason
    assert ops.choose("conv2d", torch.zeros(8, 64, 9, 9), torch.zeros(64, 64, 9, 9))[0] == "blocked"
