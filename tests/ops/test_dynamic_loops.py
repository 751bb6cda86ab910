"""Compiled loops of routing by agreement against the reference."""

from threading import Event, current_thread, main_thread

import pytest
import torch

from checks import assert_equal
from torchcaps import ops
from torchcaps.errors import ArgumentError
from torchcaps.functional import DenseField
from torchcaps.kernels.lanes import parallel_for
from torchcaps.kernels.support import HAS_NUMBA

from .makers import Layer, check_threads, run_layer

pytestmark = pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")

PAPER = (1, 8, 16)


def test_the_number_of_threads_changes_no_bit():
    layer = Layer(DenseField(), 40, 200, 5, PAPER, dtype=torch.float32)
    check_threads(lambda: run_layer(layer, "dynamic", "numba"))


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
    assert_equal(outputs, expected)


def choose(**sizes):
    layer = Layer(matrices=PAPER, dtype=torch.float32, **sizes)
    with torch.no_grad():
        return ops.choose("dynamic_routing", layer.votes(layer.tensors()))[0]


def test_auto_takes_the_loops_for_large_batches_of_large_layers():
    assert choose(batch=32, types=1152, parents=10) == "numba"
    assert choose(batch=31, types=1152, parents=10) == "blocked"
    assert choose(batch=64, types=32, parents=10) == "blocked"


def test_capsules_of_many_dimensions_are_refused():
    with pytest.raises(
        ArgumentError, match="'numba' cannot run .*a capsule has more than 32 dimensions"
    ):
        run_layer(Layer(matrices=(1, 33, 4)), "dynamic", "numba")
