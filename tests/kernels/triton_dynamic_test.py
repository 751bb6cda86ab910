"""The Triton kernels against the reference, in Triton's interpreter or, where there is one, on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from torchcaps import ops
from torchcaps.functional import DenseField, ProductVotes
from torchcaps.functional.votes import RoutingContext
from torchcaps.kernels.dynamic.triton import product_mode
from torchcaps.types import Capsules

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed (pip install triton)"
)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    pytest.importorskip(
        "triton"
    )  # the operator takes CPU tensors only where the interpreter is known to be at work
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
runs_kernels = pytest.mark.skipif(
    DEVICE == "cpu" and not INTERPRETED,
    reason="no GPU, and the interpreter must be chosen before Triton is imported",
)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.mark.skipif(INTERPRETED or DEVICE == "cuda", reason="the tests below run in this process")
@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_in_a_process_with_the_interpreter(which):
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", which, __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def routed(pose, weight, bias=None, *, impl, want=True, **options):
    """Linear votes `weight[i, j] @ pose_i` and their routing."""
    children = Capsules(pose, torch.ones_like(pose[..., 0]))
    votes = ProductVotes(children, DenseField(), weight.transpose(2, 3), bias=bias)
    votes = votes.bind(RoutingContext(needs_coupling=want))
    return ops.dynamic_routing(votes, impl=impl, **options)


def outcome(inputs, upstream, impl, **options):
    """Poses, lengths, coupling, and the gradient of each input."""
    leaves = [x.clone().requires_grad_() if x is not None else None for x in inputs]
    found = routed(*leaves, impl=impl, **options)
    pairs = [(f, u.to(f.dtype)) for f, u in zip(found, upstream, strict=True) if f.requires_grad]
    torch.autograd.backward(*zip(*pairs, strict=True))
    return [*(f.detach() for f in found), *(leaf.grad for leaf in leaves if leaf is not None)]


def relative(found, truth):
    return (
        (found.float() - truth.float()).square().mean().sqrt()
        / truth.float().square().mean().sqrt()
    ).item()


def case(
    batch,
    children,
    parents,
    dim,
    in_dim,
    *,
    bias=False,
    dtype=torch.float32,
    weights=None,
    **options,
):
    """Hold outcomes and gradients to the reference, which computes in float32 from the same numbers."""
    random = torch.Generator().manual_seed(batch + children)
    draw = lambda *shape: torch.randn(*shape, generator=random).to(DEVICE)  # noqa: E731
    pose = draw(batch, children, in_dim).to(dtype)
    weight = (min(0.3, in_dim**-0.5) * draw(children, parents, dim, in_dim)).to(weights or dtype)
    inputs = [pose, weight, draw(parents, dim) if bias else None]
    upstream = [draw(batch, parents, dim), draw(batch, parents), draw(batch, children, parents)]
    truth = outcome(
        [x if x is None else x.float() for x in inputs], upstream, "reference", **options
    )
    found = outcome(inputs, upstream, "triton", **options)
    for result, expected in zip(found, truth, strict=True):
        assert result.shape == expected.shape
        error = relative(result, expected)
        assert error <= max(TOLERANCE[dtype], TOLERANCE[weight.dtype]), (
            f"relative error {error:.1e} at shape {tuple(expected.shape)}"
        )


@runs_kernels
@pytest.mark.parametrize(
    "sizes",
    [
        (3, 5, 4, 8, 8),
        (1, 1, 1, 1, 1),
        (17, 7, 3, 5, 3),
        (2, 5, 10, 16, 8),
        (33, 5, 2, 3, 8),  # two tiles of samples
        (1, 9, 2, 3, 100),  # two splits of children
        (2, 3, 17, 16, 32),
        pytest.param((2, 3, 43, 16, 8), marks=pytest.mark.slow),
        pytest.param((1, 2, 100, 16, 8), marks=pytest.mark.slow),
        (2, 2, 2, 20, 128),
    ],
)
def test_value_and_gradients_equal_the_reference(sizes):
    case(*sizes)


@runs_kernels
@pytest.mark.parametrize(
    "options",
    [
        {"iterations": 1},
        {"iterations": 1, "leaky": True},
        {"iterations": 2},
        {"iterations": 4, "leaky": True},
        {"detach": True},
        {"iterations": 1, "detach": True},
        {"leaky": True, "detach": True},
    ],
)
def test_options_equal_the_reference(options):
    case(5, 6, 3, 4, 2, bias=True, **options)


@runs_kernels
@pytest.mark.parametrize(
    ("dtype", "weights"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.float16, torch.float32),
    ],
)
def test_half_precision(dtype, weights):
    case(4, 9, 3, 8, 4, dtype=dtype, weights=weights, leaky=True)


@runs_kernels
def test_without_the_coupling_it_is_none():
    pose, weight = torch.randn(2, 3, 4, device=DEVICE), torch.randn(3, 5, 4, 4, device=DEVICE)
    assert routed(pose, weight, impl="triton", want=False).coupling is None


@runs_kernels
def test_inputs_of_any_strides():
    pose, weight = (
        torch.randn(4, 6, 5, device=DEVICE).transpose(1, 2),
        torch.randn(3, 5, 4, 6, device=DEVICE).transpose(0, 1),
    )
    found, truth = (routed(pose, weight, impl=impl).pose for impl in ("triton", "reference"))
    assert relative(found, truth) <= TOLERANCE[torch.float32]


@runs_kernels
@pytest.mark.parametrize(
    ("dim", "in_dim", "name"), [(33, 2, "dim is 33"), (2, 129, "in_dim is 129")]
)
def test_poses_that_are_too_large_are_refused_with_the_reason(dim, in_dim, name):
    pose, weight = (
        torch.zeros(1, 1, in_dim, device=DEVICE),
        torch.zeros(1, 2, dim, in_dim, device=DEVICE),
    )
    with pytest.raises(ValueError, match=name):
        routed(pose, weight, impl="triton")


@pytest.mark.parametrize(
    ("pose", "weight", "precision", "mode"),
    [
        (torch.float32, torch.float32, "ieee", "ieee"),
        (torch.float32, torch.float32, "tf32", "tf32"),
        (torch.bfloat16, torch.float32, "ieee", "bf16"),
        (torch.bfloat16, torch.bfloat16, "tf32", "bf16"),
        (torch.float16, torch.float16, "ieee", "tf32"),
    ],
)
def test_matrices_are_multiplied_as_torch_is_told(pose, weight, precision, mode):
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = precision
    try:
        assert product_mode(pose, weight) == mode
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.skipif(INTERPRETED or DEVICE == "cuda", reason="the kernels run here")
def test_without_a_gpu_it_is_refused_by_name():
    with pytest.raises(ValueError, match="not on a GPU|not installed"):
        routed(torch.zeros(1, 1, 2), torch.zeros(1, 1, 1, 2), impl="triton")
