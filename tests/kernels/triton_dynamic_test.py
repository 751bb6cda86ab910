"""The Triton kernels against the reference, in Triton's interpreter or on a GPU if there is one."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from torchcaps import ops
from torchcaps.functional import DenseField, ProductVotes
from torchcaps.functional.votes import RoutingContext
from torchcaps.kernels.dynamic import triton as path
from torchcaps.testing import seeded
from torchcaps.testing.compare import assert_close
from torchcaps.types import Capsules

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed (pip install triton)"
)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    # The operator takes CPU tensors only where the interpreter is known to be at work.
    pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
runs_kernels = pytest.mark.skipif(
    DEVICE == "cpu" and not INTERPRETED,
    reason="no GPU, and the interpreter must be chosen before Triton is imported",
)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.mark.skipif(INTERPRETED or DEVICE == "cuda", reason="the tests below run in this process")
@pytest.mark.parametrize("marker", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_in_a_process_with_the_interpreter(marker):
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", marker, __file__]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


def route(pose, weight, bias=None, *, impl, needs_coupling=True, **options):
    """Linear votes `weight[i, j] @ pose_i` and their routing."""
    children = Capsules(pose, torch.ones_like(pose[..., 0]))
    votes = ProductVotes(children, DenseField(), weight.transpose(2, 3), bias=bias)
    votes = votes.bind(RoutingContext(needs_coupling=needs_coupling))
    return ops.dynamic_routing(votes, impl=impl, **options)


def random_inputs(batch, children, parents, dim, in_dim, *, has_bias, dtype, weight_dtype):
    """Poses, weights and a bias by name, and an upstream gradient of each output by name."""
    generator = seeded(batch + children)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(DEVICE)

    weight = min(0.3, in_dim**-0.5) * normal(children, parents, dim, in_dim)
    inputs = {
        "pose": normal(batch, children, in_dim).to(dtype),
        "weight": weight.to(weight_dtype),
    }
    if has_bias:
        inputs["bias"] = normal(parents, dim)
    upstream = {
        "pose": normal(batch, parents, dim),
        "activation": normal(batch, parents),
        "coupling": normal(batch, children, parents),
    }
    return inputs, upstream


def run_layer(inputs, upstream, impl, **options):
    """Poses, lengths, couplings, and the gradient of each input, by name."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in inputs.items()}
    outputs = route(**leaves, impl=impl, **options)._asdict()
    loss = 0
    for name, output in outputs.items():
        loss = loss + (output.float() * upstream[name]).sum()
    loss.backward()
    for name, leaf in leaves.items():
        outputs[f"gradient of {name}"] = leaf.grad
    return outputs


def compare(*sizes, has_bias=False, dtype=torch.float32, weight_dtype=torch.float32, **options):
    """Hold outputs and gradients to the reference, which computes in float32."""
    inputs, upstream = random_inputs(
        *sizes, has_bias=has_bias, dtype=dtype, weight_dtype=weight_dtype
    )
    tolerance = max(TOLERANCE[dtype], TOLERANCE[weight_dtype])
    single = {name: tensor.float() for name, tensor in inputs.items()}
    expected = run_layer(single, upstream, "reference", **options)
    outputs = run_layer(inputs, upstream, "triton", **options)
    for name, tensor in expected.items():
        assert_close(name, outputs[name], tensor, tolerance)


@runs_kernels
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1, 1, 1),
        (17, 7, 3, 5, 3),
        (2, 2, 2, 20, 128),
        pytest.param((1, 9, 2, 3, 100), marks=pytest.mark.slow),  # two splits of children
        pytest.param((2, 3, 17, 16, 32), marks=pytest.mark.slow),
        pytest.param((1, 2, 100, 16, 8), marks=pytest.mark.slow),
    ],
)
def test_value_and_gradients_equal_the_reference(sizes):
    compare(*sizes)


@runs_kernels
def test_two_tiles_of_samples_equal_the_reference():
    assert path.choose_tile(3, 8).BLOCK_B == 32
    compare(33, 5, 2, 3, 8, iterations=2)


@runs_kernels
def test_two_splits_of_children_equal_the_reference(monkeypatch):
    monkeypatch.setattr(path, "BLOCKS_PER_SPLIT", 2)
    assert path.choose_tile(3, 100).BLOCK_I == 1
    compare(1, 3, 2, 3, 100, iterations=2)


@runs_kernels
@pytest.mark.parametrize(
    "options",
    [
        {"iterations": 1, "leaky": True},
        {"iterations": 4, "leaky": True},
        {"iterations": 2, "detach": True},
    ],
)
def test_options_equal_the_reference(options):
    compare(5, 6, 3, 4, 2, has_bias=True, **options)


@runs_kernels
@pytest.mark.parametrize(
    ("dtype", "weight_dtype"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.bfloat16),
        (torch.float16, torch.float32),
    ],
)
def test_half_precision(dtype, weight_dtype):
    compare(4, 9, 3, 8, 4, dtype=dtype, weight_dtype=weight_dtype, leaky=True, iterations=2)


@runs_kernels
@pytest.mark.parametrize("factor", [0.0, 1e6])
def test_sums_of_any_length_are_squashed(factor):
    inputs, upstream = random_inputs(
        3, 4, 5, 6, 7, has_bias=False, dtype=torch.float32, weight_dtype=torch.float32
    )
    inputs["pose"] = factor * inputs["pose"]
    expected = run_layer(inputs, upstream, "reference", iterations=1)
    for name, tensor in run_layer(inputs, upstream, "triton", iterations=1).items():
        assert_close(name, tensor, expected[name], 1e-5)


@runs_kernels
def test_without_the_coupling_it_is_none():
    pose = torch.randn(2, 3, 4, device=DEVICE)
    weight = torch.randn(3, 5, 4, 4, device=DEVICE)
    assert route(pose, weight, impl="triton", needs_coupling=False, iterations=1).coupling is None


@runs_kernels
def test_inputs_of_any_strides():
    pose = torch.randn(4, 6, 5, device=DEVICE).transpose(1, 2)
    weight = torch.randn(3, 5, 4, 6, device=DEVICE).transpose(0, 1)
    expected = route(pose, weight, impl="reference").pose
    assert_close("pose", route(pose, weight, impl="triton").pose, expected, 1e-5)


@runs_kernels
@pytest.mark.parametrize(
    ("dim", "in_dim", "reason"), [(33, 2, "dim is 33"), (2, 129, "in_dim is 129")]
)
def test_poses_that_are_too_large_are_refused_with_the_reason(dim, in_dim, reason):
    pose = torch.zeros(1, 1, in_dim, device=DEVICE)
    weight = torch.zeros(1, 2, dim, in_dim, device=DEVICE)
    with pytest.raises(ValueError, match=reason):
        route(pose, weight, impl="triton")


@pytest.fixture
def matmul():
    """Torch's settings of products on a GPU, restored at the end of a test."""
    settings = torch.backends.cuda.matmul
    precision = settings.fp32_precision
    yield settings
    settings.fp32_precision = precision


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
def test_matrices_are_multiplied_as_torch_is_told(pose, weight, precision, mode, matmul):
    matmul.fp32_precision = precision
    assert path.product_mode(pose, weight) == mode


@pytest.mark.skipif(INTERPRETED or DEVICE == "cuda", reason="the kernels run here")
def test_without_a_gpu_it_is_refused_by_name():
    with pytest.raises(ValueError, match="not on a GPU|not installed"):
        route(torch.zeros(1, 1, 2), torch.zeros(1, 1, 1, 2), impl="triton")
