"""Matrix votes and EM routing within windows: the blocked CPU path against the reference, in value and gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchcaps.kernels.cpu import em

from torchcaps import ops
from torchcaps.functional import Windows
from torchcaps.testing import assert_close, seeded

NAMES = ("pose", "activation", "coupling", "d pose", "d activation", "d weight", "d beta_u", "d beta_a", "d shift")


def tensors_of(windows, batch=3, n=2, parents=3, rows=2, inner=4, outer=4, shift=(1, 3), dtype=torch.float64, seed=0):
    generator = seeded(seed)
    children = windows.kernel**2 * n

    def normal(*size):
        return torch.randn(size, generator=generator, dtype=dtype)

    space = (batch, windows.height, windows.width, n)
    activation = torch.rand(space, generator=generator, dtype=dtype)
    shifts = None if shift is None else normal(*(children if shift[0] else 1, parents if shift[1] else 1, rows * outer))
    weight = normal(children, parents, inner, outer) / inner**0.5
    return [normal(*space, rows * inner), activation, weight, normal(parents), normal(parents), shifts]


def outcome(tensors, windows, impl, through=(0, 1, 2), **options):
    """Poses, activations and couplings, and the gradients of all that went in through some of those."""
    leaves = [None if x is None else x.detach().requires_grad_() for x in tensors]
    routed = ops.routed_em(*leaves, windows=windows, want_coupling=True, impl=impl, **options)
    upstream = [torch.randn(t.shape, generator=seeded(7), dtype=torch.float64) for t in routed]
    given = [x for x in leaves if x is not None]
    loss = sum((routed[k] * upstream[k]).sum() for k in through) + 0.0 * sum(x.double().sum() for x in given)
    return [*routed, *torch.autograd.grad(loss, given)]


def compare(tensors, windows, tolerance, **options):
    options = {"iterations": 3, "inverse_temperature": 0.3} | options
    found, truth = (outcome(tensors, windows, impl, **options) for impl in ("cpu", "reference"))
    for name, a, b in zip(NAMES, found, truth, strict=False):
        assert_close(name, a, b, tolerance, floor=1e-9)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    size=st.tuples(st.integers(3, 8), st.integers(3, 8)), kernel=st.integers(1, 3), stride=st.integers(1, 3),
    batch=st.integers(1, 3), n=st.integers(1, 4), parents=st.integers(1, 5), rows=st.integers(1, 4),
    inner=st.integers(1, 4), outer=st.integers(1, 4), iterations=st.integers(1, 4), seed=st.integers(0, 1000),
    shift=st.sampled_from([None, (0, 0), (0, 1), (1, 0), (1, 1)]),
    convention=st.sampled_from(["all", "type", "space", "patch"]),
)  # fmt: skip
def test_any_shape(size, kernel, stride, batch, n, parents, rows, inner, outer, iterations, seed, shift, convention):
    windows = Windows(*size, kernel, stride)
    tensors = tensors_of(windows, batch, n, parents, rows, inner, outer, shift, seed=seed)
    compare(tensors, windows, 1e-9, iterations=iterations, convention=convention)


@pytest.mark.parametrize("through", [0, 1, 2])
def test_gradient_through_each_output(through):
    windows = Windows(7, 7, 3, 2)
    compare(tensors_of(windows), windows, 1e-9, through=(through,))


def test_several_blocks_in_float32(monkeypatch):
    monkeypatch.setattr(em, "BLOCK_BYTES", 400_000)
    windows = Windows(9, 9, 3, 2)
    compare(tensors_of(windows, 5, 4, 6, 4, dtype=torch.float32), windows, 2e-5)


def test_one_value_per_iteration():
    windows = Windows(4, 4, 3)
    compare(tensors_of(windows), windows, 1e-9, iterations=2, inverse_temperature=(0.5, 0.1))


def test_inputs_of_any_strides():
    windows = Windows(5, 5, 3)
    pose, activation, weight, *rest = tensors_of(windows)
    turned = [pose.transpose(1, 2), activation.transpose(1, 2), weight.transpose(2, 3), *rest]
    assert not any(x.is_contiguous() for x in turned[:3])
    compare(turned, windows, 1e-9)


def test_votes_far_from_zero_that_hardly_differ():
    """Where sums of squares lose all digits: the mean of the votes comes off first."""
    windows = Windows(3, 3, 3)
    pose, activation, weight, *betas, _ = tensors_of(windows, n=6, shift=None, dtype=torch.float32)
    shift = torch.full((1, 1, 8), 1000.0)
    compare([0.1 * pose, activation, weight, *betas, shift], windows, 1e-2)


@pytest.mark.parametrize("level", [0.0, 1e-30, 1.0])
def test_zeros(level):
    windows = Windows(5, 5, 3)
    pose, activation, *rest = tensors_of(windows, dtype=torch.float32)
    for tensors in ([0 * pose, level * activation, *rest], [level * pose, 0 * activation, *rest]):
        for name, tensor in zip(NAMES, outcome(tensors, windows, "cpu"), strict=True):
            assert tensor.isfinite().all(), name


def test_half_precision_and_autocast_are_computed_in_float32():
    windows = Windows(5, 5, 3)
    tensors = tensors_of(windows, dtype=torch.float32)
    plain = ops.routed_em(*tensors, windows=windows, impl="cpu")
    with torch.autocast("cpu", torch.bfloat16):
        cast = ops.routed_em(*tensors, windows=windows, impl="cpu")
    assert torch.equal(cast.pose, plain.pose)
    half = [x.bfloat16() for x in tensors]
    found, truth = (ops.routed_em(*half, windows=windows, impl=impl) for impl in ("cpu", "reference"))
    assert found.pose.dtype == torch.float32
    torch.testing.assert_close(found.pose, truth.pose, rtol=0.05, atol=0.01)


def test_coupling_on_request_and_a_batch_of_none():
    windows = Windows(5, 5, 3)
    tensors = tensors_of(windows, batch=2)
    assert ops.routed_em(*tensors, windows=windows, impl="cpu").coupling is None
    assert ops.routed_em(*tensors, windows=windows, want_coupling=True).coupling.shape == (2, 3, 3, 18, 3)
    assert outcome(tensors_of(windows, batch=0), windows, "cpu")[3].shape == (0, 5, 5, 2, 8)


def test_operator():
    windows = Windows(3, 3, 2)
    tensors = [x.requires_grad_() for x in tensors_of(windows, batch=1)]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(em.routed_em, (*tensors, 2, 1, "all", [0.1, 0.2], True), test_utils=checks)


def test_asked_for_by_name_it_works_or_says_why():
    windows = Windows(5, 5, 3)
    tensors = tensors_of(windows)
    assert ops.choose("routed_em", *tensors)[0] == "cpu"
    with pytest.raises(ValueError, match="impl: 'triton' cannot run routed_em here .it has reference, numba, cpu"):
        ops.routed_em(*tensors, windows=windows, impl="triton")
    assert ops.choose("routed_em", *(x.to("meta") for x in tensors))[0] == "reference"


def test_wrong_arguments():
    windows = Windows(5, 5, 3)
    pose, activation, weight, beta_u, beta_a, shift = tensors_of(windows)

    def routed(**changes):
        given = {"pose": pose, "activation": activation, "weight": weight, "beta_u": beta_u, "beta_a": beta_a}
        return ops.routed_em(**(given | {"shift": shift, "windows": windows} | changes))

    with pytest.raises(ValueError, match=r"pose: expected \[batch, height=6, width=5, n=2, in_dim\], got \[batch=3, h"):
        routed(windows=Windows(6, 5, 3))
    with pytest.raises(ValueError, match="activation: expected .*n=2"):
        routed(activation=activation[..., :1])
    with pytest.raises(ValueError, match=r"beta_a: expected \[parents=3\]"):
        routed(beta_a=beta_a[:2])
    with pytest.raises(ValueError, match="pose: expected in_dim to be a multiple of 4, as weight has it, got 7"):
        routed(pose=pose[..., :7])
    with pytest.raises(ValueError, match="unknown convention 'al'"):
        routed(convention="al")
    with pytest.raises(ValueError, match="iterations: expected at least 1, got 0"):
        routed(iterations=0)
