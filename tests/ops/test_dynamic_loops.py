"""Compiled loops of routing by agreement against the reference."""

from threading import Event, current_thread, main_thread

import pytest
import torch
from hypothesis import given, settings, strategies as st

from torchcaps import ops
from torchcaps.functional import ConvField, DenseField
from torchcaps.kernels.lanes import LANES, parallel_for
from torchcaps.kernels.support import HAS_NUMBA

from .makers import Layer, compare, run_layer

pytestmark = pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")

# Loops are compiled for each size of a capsule, type of number and number of terms of a gradient,
# which takes seconds. Tests share these: small ones in float64, those of the paper in float32.
SMALL = (1, 2, 3)
PAPER = (1, 8, 16)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    field=st.sampled_from([DenseField(), DenseField(2, 3), ConvField(4, 5, 3, convention="type")]),
    batch=st.sampled_from([0, 1, 3, LANES, LANES + 1, 2 * LANES + 5]),
    types=st.sampled_from([1, 3, 64, 65, 130]),
    parents=st.integers(1, 6),
    bias=st.booleans(),
    seed=st.integers(0, 999),
    leaky=st.booleans(),
    detach=st.booleans(),
)
def test_layers_drawn_at_random(field, batch, types, parents, bias, seed, leaky, detach):
    if not isinstance(field, DenseField):
        types = min(types, 3)
    layer = Layer(field, batch, types, parents, SMALL, bias=bias, seed=seed)
    assert compare(layer, impls=["numba"], leaky=leaky, detach=detach) == ["numba"]


@pytest.mark.parametrize("iterations", [1, 2])
def test_few_iterations(iterations):
    layer = Layer(batch=5, matrices=SMALL)
    assert compare(layer, impls=["numba"], iterations=iterations) == ["numba"]


def test_the_number_of_threads_changes_no_bit():
    layer = Layer(DenseField(), 40, 200, 5, SMALL)
    num_threads = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(run_layer(layer, "dynamic", "numba"))
    finally:
        torch.set_num_threads(num_threads)
    for name, expected in results[0].items():
        assert torch.equal(results[1][name], expected), name


def test_an_error_of_a_thread_is_raised():
    has_failed = Event()

    def loop(first, last):
        if current_thread() is not main_thread():
            has_failed.set()
            raise ArithmeticError(f"part from {first} to {last}")
        assert has_failed.wait(60)

    torch.set_num_threads(2)
    with pytest.raises(ArithmeticError, match="part from"):
        parallel_for(loop, 8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_autocast_changes_no_bit(dtype):
    layer = Layer(matrices=PAPER, dtype=torch.float32)
    tensors = layer.tensors()
    tensors["pose"] = tensors["pose"].detach().to(dtype).requires_grad_()
    expected = run_layer(layer, "dynamic", "numba", tensors)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = run_layer(layer, "dynamic", "numba", tensors)
    for name, tensor in expected.items():
        assert torch.equal(outputs[name], tensor), name


def choose(**sizes):
    layer = Layer(matrices=PAPER, dtype=torch.float32, **sizes)
    with torch.no_grad():
        return ops.choose("dynamic_routing", layer.votes(layer.tensors()))[0]


def test_auto_takes_the_loops_for_large_batches_of_large_layers():
    assert choose(batch=32, types=1152, parents=10) == "numba"
    assert choose(batch=31, types=1152, parents=10) == "blocked"
    assert choose(batch=64, types=32, parents=10) == "blocked"


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Layer(matrices=(1, 33, 4)), "a capsule has more than 32 dimensions"),
        (Layer(matrices=(2, 2, 2)), "poses are matrices of 2 rows"),
        (Layer(matrices=SMALL, shift=(1, 1)), "the votes are shifted"),
    ],
)
def test_votes_that_the_loops_refuse(layer, reason):
    with pytest.raises(ValueError, match=f"'numba' cannot run .*{reason}"):
        run_layer(layer, "dynamic", "numba")
