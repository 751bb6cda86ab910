"""The CPU fast path against the reference, in value and in every gradient, through the dispatcher."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchcaps import ops
from torchcaps.testing import assert_close, random_capsules, seeded

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def usable(impl):
    """Whether an implementation can run here, on the CPU."""
    try:
        return ops.choose("routed_dynamic", torch.rand(1, 2, 2), torch.rand(2, 2, 2, 2), None, impl=impl)[0] == impl
    except ValueError:
        return False


FAST = [impl for impl in ("cpu", "numba") if usable(impl)]


def inputs(batch, children, parents, dim, in_dim, *, bias=False, dtype=torch.float64, seed=0, scale=1.0):
    generator = seeded(seed)
    pose = random_capsules(batch, children, in_dim, dtype=dtype, generator=generator).pose * scale
    weight = torch.randn(children, parents, dim, in_dim, dtype=dtype, generator=generator)
    offset = torch.randn(parents, dim, dtype=dtype, generator=generator) if bias else None
    return [t if t is None else t.requires_grad_() for t in (pose, weight, offset)]


def values_and_gradients(tensors, impl, through=("pose", "activation", "coupling"), **options):
    routed = ops.routed_dynamic(*tensors, impl=impl, want_coupling=True, **options)
    outcomes = [getattr(routed, name) for name in through]
    generator = seeded(7)
    loss = sum((t * torch.randn(t.shape, generator=generator, dtype=torch.float64)).sum() for t in outcomes)
    leaves = [t for t in tensors if t is not None]
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return list(routed) + [torch.zeros_like(t) if g is None else g for g, t in zip(gradients, leaves, strict=True)]


def compare(tensors, tolerance, impls=FAST, **options):
    names = ["pose", "activation", "coupling", "gradient of pose", "gradient of weight", "gradient of bias"]
    truth = values_and_gradients(tensors, "reference", **options)
    for impl in impls:
        for name, a, b in zip(names, values_and_gradients(tensors, impl, **options), truth, strict=False):
            assert_close(f"{impl}: {name}", a, b, tolerance, floor=1e-7)


def test_the_blocked_path_is_always_there():
    assert "cpu" in FAST


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    batch=st.integers(1, 9), children=st.integers(1, 40), parents=st.integers(1, 12), dim=st.integers(1, 17),
    in_dim=st.integers(1, 9), iterations=st.integers(1, 5), leaky=st.booleans(), detach=st.booleans(),
    bias=st.booleans(), seed=st.integers(0, 1000),
)  # fmt: skip
def test_any_shape(batch, children, parents, dim, in_dim, iterations, leaky, detach, bias, seed):
    tensors = inputs(batch, children, parents, dim, in_dim, bias=bias, seed=seed)
    compare(tensors, TOLERANCE[torch.float64], iterations=iterations, leaky=leaky, detach=detach)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", [(20, 1152, 10, 16, 8), (1, 63, 7, 17, 3), (3, 1, 1, 1, 1)])
def test_precision_and_several_blocks(shape, dtype):
    compare(inputs(*shape, dtype=dtype, bias=True, scale=0.1), TOLERANCE[dtype], iterations=3)


@pytest.mark.parametrize("through", [("pose",), ("activation",), ("coupling",)])
def test_gradient_through_each_output(through):
    compare(inputs(4, 9, 5, 3, 2, bias=True), 1e-10, iterations=3, through=through)


def test_memory_layouts():
    pose, weight, _ = inputs(4, 9, 5, 3, 2)
    plain = ops.routed_dynamic(pose, weight, impl="cpu")
    turned = weight.detach().permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    last = weight.detach().contiguous(memory_format=torch.channels_last)
    for other in (turned, last):
        assert not other.is_contiguous()
        compare([pose, other.requires_grad_(), None], 1e-10, iterations=3)
    strided = pose.detach().repeat_interleave(2, dim=1)[:, ::2].requires_grad_()
    torch.testing.assert_close(ops.routed_dynamic(strided, weight, impl="cpu").pose, plain.pose)
    compare([strided, weight, None], 1e-10, iterations=2)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-8, 1e8, 1e18])
def test_sizes(scale):
    tensors = inputs(3, 9, 5, 4, 3, dtype=torch.float32, scale=scale)
    for impl in FAST:
        for tensor in values_and_gradients(tensors, impl):
            assert tensor.isfinite().all()
    if scale <= 1:  # beyond, the softmax is a hard choice and ties are decided by rounding
        compare(tensors, 1e-5, iterations=3)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_pose(dtype, impl):
    pose, weight, _ = inputs(4, 9, 5, 3, 2, dtype=torch.float32)
    half = pose.detach().to(dtype).requires_grad_()
    routed = ops.routed_dynamic(half, weight, impl=impl)
    expected = ops.routed_dynamic(half.float(), weight, impl="reference")
    assert routed.pose.dtype == torch.float32
    torch.testing.assert_close(routed.pose, expected.pose)
    routed.pose.sum().backward()
    assert half.grad.dtype == dtype
    assert half.grad.isfinite().all()


@pytest.mark.parametrize("impl", FAST)
def test_autocast_changes_nothing(impl):
    pose, weight, _ = inputs(4, 9, 5, 3, 2, dtype=torch.float32)
    plain = ops.routed_dynamic(pose, weight, impl=impl)
    with torch.autocast("cpu", torch.bfloat16):
        cast = ops.routed_dynamic(pose, weight, impl=impl)
    torch.testing.assert_close(cast.pose, plain.pose, rtol=0, atol=0)


@pytest.mark.parametrize("impl", FAST)
def test_batch_of_one_and_repetition(impl):
    pose, weight, _ = inputs(5, 30, 5, 4, 3, dtype=torch.float32)
    whole = ops.routed_dynamic(pose, weight, impl=impl)
    torch.testing.assert_close(ops.routed_dynamic(pose[2:3], weight, impl=impl).pose, whole.pose[2:3])
    again = ops.routed_dynamic(pose, weight, impl=impl)
    assert torch.equal(again.pose, whole.pose)


@pytest.mark.skipif("numba" not in FAST, reason="numba is not installed")
def test_compiled_loops_do_not_depend_on_the_number_of_threads():
    tensors, before = inputs(50, 40, 5, 6, 3, dtype=torch.float32), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(values_and_gradients(tensors, "numba"))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, found[0], strict=True))


@pytest.mark.parametrize("impl", FAST)
def test_coupling_on_request(impl):
    pose, weight, _ = inputs(2, 4, 3, 2, 2)
    assert ops.routed_dynamic(pose, weight, impl=impl).coupling is None
    assert ops.routed_dynamic(pose, weight, impl=impl, want_coupling=True).coupling.shape == (2, 4, 3)


def test_asked_for_by_name_it_works_or_says_why():
    pose, weight = torch.rand(2, 4, 3), torch.rand(4, 3, 2, 3)
    with pytest.raises(ValueError, match=r"impl: 'cpu' cannot run routed_dynamic here .*weight is torch.bfloat16"):
        ops.routed_dynamic(pose.bfloat16(), weight.bfloat16(), impl="cpu")
    assert ops.choose("routed_dynamic", pose.bfloat16(), weight.bfloat16(), None)[0] == "reference"
    with pytest.raises(ValueError, match="unknown impl 'refrence'; did you mean 'reference'"):
        ops.routed_dynamic(pose, weight, impl="refrence")


def test_explain():
    pose, weight = torch.rand(2, 4, 3), torch.rand(4, 3, 2, 3)
    name, reason = ops.choose("routed_dynamic", pose, weight, None)
    assert name != "reference"
    assert ops.explain("routed_dynamic", pose, weight, None) == f"routed_dynamic runs as {name!r} ({reason})"
    assert "asked for by name" in ops.explain("routed_dynamic", pose, weight, None, impl="reference")
    assert "routed_dynamic" in ops.operators()


def test_wrong_shapes():
    with pytest.raises(ValueError, match=r"pose: expected \[batch, children=4, in_dim=3\], got \[batch=2, children=5"):
        ops.routed_dynamic(torch.rand(2, 5, 3), torch.rand(4, 3, 2, 3))
    with pytest.raises(ValueError, match=r"bias: expected \[parents=3, dim=2\]"):
        ops.routed_dynamic(torch.rand(2, 4, 3), torch.rand(4, 3, 2, 3), torch.rand(2, 3))
    with pytest.raises(ValueError, match="iterations: expected at least 1"):
        ops.routed_dynamic(torch.rand(2, 4, 3), torch.rand(4, 3, 2, 3), iterations=0)
