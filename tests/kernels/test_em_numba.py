"""Compiled loops of EM routing against the reference, in value and every gradient.

Code is made for each size of matrices and each type of number, which takes seconds: few of them are drawn here.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchcaps import ops
from torchcaps.functional import Windows
from torchcaps.testing import assert_close, seeded

pytest.importorskip("numba")

from torchcaps.kernels.cpu import em_numba

NAMES = ("pose", "activation", "coupling", "d pose", "d activation", "d weight", "d beta_u", "d beta_a", "d shift")
CONVENTIONS = st.sampled_from(["all", "type", "space", "patch"])
SHIFTS = st.sampled_from([(0, 0), (0, 1), (1, 0), (1, 1)])  # whether of its own for each child, for each parent


def tensors_of(windows, batch=3, n=2, parents=3, matrices=(2, 2, 2), shift=(1, 1), dtype=torch.float64, seed=0):
    generator = seeded(seed)
    (rows, inner, outer), children = matrices, windows.kernel**2 * n

    def normal(*size):
        return torch.randn(size, generator=generator, dtype=dtype)

    space = (batch, windows.height, windows.width, n)
    shifts = None if shift is None else normal(*(children if shift[0] else 1, parents if shift[1] else 1, rows * outer))
    activation = torch.rand(space, generator=generator, dtype=dtype)
    weight = normal(children, parents, inner, outer) / inner**0.5
    return [normal(*space, rows * inner), activation, weight, normal(parents), normal(parents), shifts]


def outcome(tensors, windows, impl="numba", through=(0, 1, 2), **options):
    """Poses, activations and couplings, and the gradients of all that went in through some of those."""
    options = {"iterations": 3, "inverse_temperature": 0.3} | options
    leaves = [None if x is None else x.detach().requires_grad_() for x in tensors]
    routed = ops.routed_em(*leaves, windows=windows, want_coupling=True, impl=impl, **options)
    upstream = [torch.randn(t.shape, generator=seeded(7), dtype=torch.float64) for t in routed]
    given = [x for x in leaves if x is not None]
    loss = sum((routed[k] * upstream[k]).sum() for k in through) + 0.0 * sum(x.double().sum() for x in given)
    return [*routed, *torch.autograd.grad(loss, given)]


def compare(tensors, windows, tolerance=1e-9, **options):
    found, truth = (outcome(tensors, windows, impl, **options) for impl in ("numba", "reference"))
    for name, a, b in zip(NAMES, found, truth, strict=False):
        assert_close(name, a, b, tolerance, floor=1e-9)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    size=st.tuples(st.integers(3, 8), st.integers(3, 8)), kernel=st.integers(1, 3), stride=st.integers(1, 3),
    batch=st.integers(1, 18), n=st.integers(1, 3), parents=st.integers(1, 4), iterations=st.integers(1, 3),
    seed=st.integers(0, 1000), shift=SHIFTS, convention=CONVENTIONS,
)  # fmt: skip
def test_any_layer(size, kernel, stride, batch, n, parents, iterations, seed, shift, convention):
    windows = Windows(*size, kernel, stride)
    tensors = tensors_of(windows, batch, n, parents, shift=shift, seed=seed)
    compare(tensors, windows, iterations=iterations, convention=convention)


@pytest.mark.slow
@pytest.mark.parametrize("matrices", [(1, 1, 1), (1, 8, 16), (4, 4, 4), (3, 2, 5), (5, 1, 1)])
@pytest.mark.parametrize("shift", [None, (1, 1)])
def test_any_matrices(matrices, shift):
    windows = Windows(5, 7, 3, 2)
    compare(tensors_of(windows, matrices=matrices, shift=shift), windows)


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_the_papers_matrices_in_float32(iterations):
    windows = Windows(8, 8, 3, 2)  # no window reaches the last row and column
    tensors = tensors_of(windows, 3, 4, 5, (4, 4, 4), None, torch.float64)
    truth = outcome(tensors, windows, "reference", iterations=iterations)
    found = outcome([None if x is None else x.float() for x in tensors], windows, iterations=iterations)
    for name, a, b in zip(NAMES, found, truth, strict=False):
        assert a.dtype == torch.float32
        assert_close(name, a.double(), b, 1e-5, floor=1e-6)


def test_a_window_as_large_as_the_map():
    windows = Windows(4, 4, 4)
    compare(tensors_of(windows, 2, 3, 5), windows)


@pytest.mark.parametrize("through", [0, 1, 2])
def test_gradient_through_each_output(through):
    windows = Windows(7, 7, 3, 2)
    compare(tensors_of(windows), windows, through=(through,))


def test_numerical_gradient():
    windows = Windows(3, 3, 2)
    tensors = [x.requires_grad_() for x in tensors_of(windows, 1, 1, 2)]

    def routed(*tensors):
        return ops.routed_em(*tensors, windows=windows, impl="numba", inverse_temperature=0.3, want_coupling=True)

    torch.autograd.gradcheck(routed, tensors, fast_mode=True)


def test_one_value_per_iteration():
    windows = Windows(4, 4, 3)
    compare(tensors_of(windows), windows, iterations=2, inverse_temperature=(0.5, 0.1))


def test_inputs_of_any_strides():
    windows = Windows(5, 5, 3)
    pose, activation, weight, *rest = tensors_of(windows)
    turned = [pose.transpose(1, 2), activation.transpose(1, 2), weight.transpose(2, 3), *rest]
    assert not any(x.is_contiguous() for x in turned[:3])
    compare(turned, windows)


def test_votes_far_from_zero_that_hardly_differ():
    """Where sums of squares around zero lose their digits: those are made once more, around the mean."""
    windows = Windows(3, 3, 3)
    pose, activation, weight, *betas, shift = tensors_of(windows, n=6)
    tensors = [1e-3 * pose, activation, weight, *betas, 1e-3 * shift + 1e4]
    assert outcome(tensors, windows)[1].std() > 0
    compare(tensors, windows, 1e-6)


@pytest.mark.parametrize("level", [0.0, 1e-300, 1e-30, 1.0])
def test_zeros(level):
    windows = Windows(5, 5, 3)
    pose, activation, *rest = tensors_of(windows)
    for tensors in ([0 * pose, level * activation, *rest], [level * pose, 0 * activation, *rest]):
        for name, tensor in zip(NAMES, outcome(tensors, windows), strict=True):
            assert tensor.isfinite().all(), name


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6])
def test_poses_of_any_size_in_float32(scale):
    windows = Windows(8, 8, 3, 2)
    pose, *rest = tensors_of(windows, 3, 4, 5, (4, 4, 4), None, torch.float32)
    for name, tensor in zip(NAMES, outcome([scale * pose, *rest], windows, inverse_temperature=0.01), strict=False):
        assert tensor.isfinite().all(), name


def test_samples_do_not_meet():
    """Each has a lane of its own: the others neither change its outcome nor make it wait for another group."""
    windows = Windows(5, 5, 3)
    pose, activation, *rest = tensors_of(windows, batch=20)
    together = ops.routed_em(pose, activation, *rest, windows=windows, impl="numba")
    for place in (0, 15, 16, 19):
        one = slice(place, place + 1)
        alone = ops.routed_em(pose[one], activation[one], *rest, windows=windows, impl="numba")
        assert torch.equal(alone.pose, together.pose[one])


def test_the_number_of_threads_changes_nothing():
    windows, before = Windows(5, 5, 3), torch.get_num_threads()
    tensors, found = tensors_of(windows, batch=50), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(outcome(tensors, windows))
    finally:
        torch.set_num_threads(before)
    for name, a, b in zip(NAMES, *found, strict=True):
        assert torch.equal(a, b), name


def test_coupling_on_request_and_a_batch_of_none():
    windows = Windows(5, 5, 3)
    assert ops.routed_em(*tensors_of(windows), windows=windows, impl="numba").coupling is None
    found = outcome(tensors_of(windows, batch=0), windows)
    assert found[2].shape == (0, 3, 3, 18, 3)
    assert found[3].shape == (0, 5, 5, 2, 4)
    assert not found[5].any()


def test_operator():
    windows = Windows(3, 3, 2)
    tensors = [x.requires_grad_() for x in tensors_of(windows, batch=1)]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(em_numba.routed_em, (*tensors, 2, 1, "all", [0.1, 0.2], True), test_utils=checks)


def test_no_second_derivative():
    windows = Windows(3, 3, 2)
    tensors = [x.requires_grad_() for x in tensors_of(windows, batch=1)]
    pose = ops.routed_em(*tensors, windows=windows, impl="numba").pose
    (grad,) = torch.autograd.grad(pose.sum(), tensors[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(grad.sum(), tensors[0])


def test_what_it_can_take_and_when_it_is_worth_it():
    small, large = (tensors_of(Windows(3, 3, 3), n=n, parents=16, matrices=(4, 4, 4)) for n in (0, 8))
    assert ops.choose("routed_em", *small)[0] == "cpu"
    assert ops.choose("routed_em", *large)[0] == "numba"
    vectors = tensors_of(Windows(1, 1, 1), n=2, matrices=(1, 32, 17))
    with pytest.raises(ValueError, match="'numba' cannot run .*a vote takes 544 products; at most 512"):
        ops.choose("routed_em", *vectors, impl="numba")
    with pytest.raises(ValueError, match="weight is on meta"):
        ops.choose("routed_em", large[0], large[1], large[2].to("meta"), *large[3:], impl="numba")
