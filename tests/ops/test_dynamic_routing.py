"""Routing of given votes: the CPU path against the reference, in value and in every gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchcaps import ops
from torchcaps.testing import assert_close, random_votes, seeded

NAMES = ("pose", "activation", "coupling", "gradient of votes", "gradient of bias")


def outcome(votes, bias, impl, iterations=3, through=(0, 1, 2), **options):
    """Poses, lengths and couplings, and the gradients of votes and bias through some of those."""
    leaves = [x.detach().requires_grad_() for x in (votes, bias) if x is not None]
    routed = ops.dynamic_routing(
        leaves[0], iterations, bias=leaves[1] if len(leaves) > 1 else None, want_coupling=True, impl=impl, **options
    )
    upstream = [torch.randn(t.shape, generator=seeded(7), dtype=torch.float64) for t in routed]
    loss = sum((routed[k] * upstream[k]).sum() for k in through) + 0.0 * leaves[0].double().sum()
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [*routed, *(torch.zeros_like(x) if g is None else g for g, x in zip(gradients, leaves, strict=True))]


def compare(votes, bias, tolerance, **options):
    found, truth = (outcome(votes, bias, impl, **options) for impl in ("cpu", "reference"))
    for name, a, b in zip(NAMES, found, truth, strict=False):
        assert_close(name, a, b, tolerance, floor=1e-7)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    batch=st.integers(1, 5), children=st.integers(1, 30), parents=st.integers(1, 9), dim=st.integers(1, 17),
    space=st.sampled_from([(), (1, 1), (2, 3)]), iterations=st.integers(1, 5), leaky=st.booleans(),
    detach=st.booleans(), biased=st.booleans(), seed=st.integers(0, 1000),
)  # fmt: skip
def test_any_shape(batch, children, parents, dim, space, iterations, leaky, detach, biased, seed):
    votes = random_votes(
        batch, children, parents, dim, space=space, generator=seeded(seed), dtype=torch.float64, scale=0.3
    )
    bias = torch.randn(parents, dim, generator=seeded(seed), dtype=torch.float64) if biased else None
    compare(votes, bias, 1e-10, iterations=iterations, leaky=leaky, detach=detach)


@pytest.mark.parametrize("through", [0, 1, 2])
def test_gradient_through_each_output(through):
    votes = random_votes(3, 9, 5, 4, dtype=torch.float64)
    compare(votes, torch.full((5, 4), 0.1, dtype=torch.float64), 1e-10, through=(through,))


def test_several_blocks_in_float32():
    compare(random_votes(9, 1152, 10, 16, scale=0.1), torch.full((10, 16), 0.1), 1e-5)


def test_inputs_of_any_strides():
    votes = random_votes(4, 6, 9, 5, dtype=torch.float64)
    for turned in (votes.transpose(1, 2), votes.permute(3, 1, 2, 0), votes[:, ::2], votes[..., ::2]):
        assert not turned.is_contiguous()
        compare(turned, None, 1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    votes, bias = random_votes(3, 9, 5, 4).to(dtype), torch.full((5, 4), 0.1, dtype=dtype)
    routed = ops.dynamic_routing(votes, bias=bias, impl="cpu")
    assert routed.pose.dtype == routed.activation.dtype == torch.float32
    expected = ops.dynamic_routing(votes.float(), bias=bias.float(), impl="reference")
    torch.testing.assert_close(routed.pose, expected.pose)


def test_autocast_changes_nothing():
    votes = random_votes(3, 9, 5, 4).requires_grad_()
    plain = ops.dynamic_routing(votes, impl="cpu").pose
    (expected,) = torch.autograd.grad(plain.square().sum(), votes)
    with torch.autocast("cpu", torch.bfloat16):
        cast = ops.dynamic_routing(votes, impl="cpu").pose
        (gradient,) = torch.autograd.grad(cast.square().sum(), votes)
    assert torch.equal(cast, plain)
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-8, 1e8, 1e18])
def test_sizes(scale):
    votes = random_votes(3, 9, 5, 4, scale=scale)
    for name, tensor in zip(NAMES, outcome(votes, None, "cpu"), strict=False):
        assert tensor.isfinite().all(), name


def test_coupling_on_request():
    votes = random_votes(2, 4, 3, 2, space=(2, 2))
    assert ops.dynamic_routing(votes, impl="cpu").coupling is None
    assert ops.dynamic_routing(votes, impl="cpu", want_coupling=True).coupling.shape == (2, 2, 2, 4, 3)


def test_a_batch_of_none():
    votes = random_votes(0, 4, 3, 2).requires_grad_()
    routed = ops.dynamic_routing(votes, impl="cpu")
    assert routed.pose.shape == (0, 3, 2)
    assert torch.autograd.grad(routed.pose.sum(), votes)[0].shape == votes.shape


def test_asked_for_by_name_it_works_or_says_why():
    votes = random_votes(2, 4, 3, 2)
    assert ops.choose("dynamic_routing", votes, None)[0] == "cpu"
    with pytest.raises(ValueError, match="impl: 'numba' cannot run dynamic_routing here .it has reference, cpu"):
        ops.dynamic_routing(votes, impl="numba")
    with pytest.raises(ValueError, match=r"votes is on meta, not on the CPU"):
        ops.dynamic_routing(votes.to("meta"), impl="cpu")
    assert ops.choose("dynamic_routing", votes.to("meta"), None)[0] == "reference"


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"votes: expected \[\*batch, children, parents, dim\]"):
        ops.dynamic_routing(torch.rand(4, 3, 2))
    with pytest.raises(ValueError, match=r"bias: expected \[parents=3, dim=2\], got \[2\]"):
        ops.dynamic_routing(torch.rand(1, 4, 3, 2), bias=torch.rand(2))
    with pytest.raises(ValueError, match="iterations: expected at least 1, got 0"):
        ops.dynamic_routing(torch.rand(1, 4, 3, 2), 0)
