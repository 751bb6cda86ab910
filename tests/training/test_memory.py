from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from checks import assert_equal
from torchcaps.kernels import lanes, samples
from torchcaps.kernels.conv2d import frequency
from torchcaps.models import create_model
from torchcaps.training import estimate_memory, workspace

SMALL = {"channels": 16, "primary_types": 4}


@pytest.fixture(scope="module")
def model():
    return create_model("capsnet", impl="blocked", **SMALL)


def weight_bytes(model):
    return 4 * parameters_to_vector(model.parameters()).numel()


def test_parts_are_counted_exactly_and_read_as_a_sentence(model):
    estimate = estimate_memory(model, 2)
    assert estimate.parameters == weight_bytes(model)
    assert estimate.optimizer == 2 * weight_bytes(model)
    assert 0 < estimate.gradients <= weight_bytes(model)
    parts = estimate.to_dict()
    assert parts.pop("total") == estimate.total == sum(parts.values())
    assert str(estimate).startswith(f"{estimate.total / 2**20:.1f} MiB (parameters ")


def test_an_estimate_changes_neither_the_model_nor_random_numbers(model):
    before = deepcopy(model.state_dict())
    random_state = torch.random.get_rng_state()
    estimate_memory(model, 2)
    assert_equal(model.state_dict(), before)
    for name, weight in model.named_parameters():
        assert type(weight) is nn.Parameter, name
        assert weight.grad is None, name
    assert torch.equal(torch.random.get_rng_state(), random_state)


def test_memory_grows_linearly_in_the_batch(model):
    # From 250 images on the peak lies in one place, and below 640 no tensor is mapped apart.
    growth = estimate_memory(model, 400).total - estimate_memory(model, 300).total
    further_growth = estimate_memory(model, 500).total - estimate_memory(model, 400).total
    assert growth > 0
    assert further_growth == pytest.approx(growth, rel=0.02)


def test_half_precision_takes_less(model):
    assert estimate_memory(model, 64, "bf16").total < estimate_memory(model, 64).total


@pytest.mark.parametrize("options", [{"in_chans": 3}, {"num_classes": 20}])
def test_colors_and_classes_take_more(model, options):
    larger = create_model("capsnet", impl="blocked", **options, **SMALL)
    assert estimate_memory(larger, 8).total > estimate_memory(model, 8).total


def test_stored_votes_are_activations(model):
    votes = 8 * 144 * 10 * 16 * 4
    stored = estimate_memory(create_model("capsnet", impl="reference", **SMALL), 64).activations
    assert stored > estimate_memory(model, 64).activations + votes


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"batch": 0}, ValueError, "batch: expected at least 1, got 0"),
        ({"batch": 1.5}, TypeError, "batch: expected a whole number of images, got 1.5"),
        ({"batch": True}, TypeError, "batch: expected a whole number of images, got True"),
        ({"batch": 1, "precision": "fp8"}, ValueError, "unknown precision 'fp8'"),
        (
            {"batch": 1, "model": nn.Linear(2, 2)},
            TypeError,
            r"model: expected a model of create_model\(\), got Linear",
        ),
    ],
)
def test_bad_arguments_are_refused(model, arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        estimate_memory(**{"model": model} | arguments)


def test_the_table_has_the_constants_of_the_kernels():
    assert workspace.VOTES_BYTES == samples.BLOCK_BYTES
    assert workspace.LANES == lanes.LANES
    assert (workspace.POINTS_BYTES, workspace.MAX_WINDOWS) == (
        frequency.BLOCK_BYTES,
        frequency.MAX_WINDOWS,
    )


def test_couplings_of_compiled_loops_are_counted():
    """16 windows of 16 parents each and 72 children, of which a group has 32 lanes in float32."""
    sizes = {"pose": (4, 9, 9, 8, 16), "activation": (4, 9, 9, 8), "weight": (72, 16, 4, 4)}
    operands = [torch.empty(size, device="meta") for size in sizes.values()]
    arguments = [*operands, None, None, None, 3, 2, "all", [1.0, 1.0, 1.0], False]
    lanes = 32 * 4
    layout = lanes * (9 * 9 * 8) * (16 + 1)
    coupling = lanes * (16 * 16) * 72
    moments = lanes * (16 * 16) * 16
    tables = (16 * 16) * 72 * (2 * 8 + 3 * 4)
    weights = 72 * 16 * 4 * 4 * 4
    names = ("torchcaps::em_routing_numba", "torchcaps::em_routing_numba_backward")
    forward, backward = (workspace.WORKSPACE[name](*arguments) for name in names)
    assert forward == layout + coupling + 2 * moments + tables
    of_iterations = 3 * (2 * coupling + 4 * moments)
    assert backward == 2 * layout + of_iterations + tables + weights
