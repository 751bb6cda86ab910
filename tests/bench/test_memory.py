from __future__ import annotations

import pytest
import torch
from torch import nn

import torchcaps
from torchcaps.bench import Workload, benchmark_memory, estimate_memory, timing, workspace
from torchcaps.kernels import samples
from torchcaps.kernels.conv2d import frequency
from torchcaps.kernels.dynamic import numba
from torchcaps.models import create_model

from .conftest import SMALL


@pytest.fixture(scope="module")
def model():
    return create_model("capsnet", impl="blocked", **SMALL)


def weights(model):
    return 4 * sum(parameter.numel() for parameter in model.parameters())


def test_parameters_and_moments_are_counted_exactly(model):
    estimate = estimate_memory(model, 2)
    assert estimate.parameters == weights(model)
    assert estimate.optimizer == 2 * weights(model)
    assert 0 < estimate.gradients <= weights(model)
    assert estimate.total == sum(
        value for name, value in estimate.to_dict().items() if name != "total"
    )


def test_the_model_stays_as_it_is(model):
    before = [parameter.detach().clone() for parameter in model.parameters()]
    state = torch.random.get_rng_state()
    estimate_memory(model, 2)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(
        type(parameter) is nn.Parameter and parameter.grad is None
        for parameter in model.parameters()
    )
    assert torch.equal(torch.random.get_rng_state(), state)


def test_memory_grows_linearly_in_the_batch(model):
    # From 250 images on the peak lies in one place, and below 640 no tensor is mapped apart.
    totals = [estimate_memory(model, batch).total for batch in (300, 400, 500)]
    first, second = totals[1] - totals[0], totals[2] - totals[1]
    assert first > 0
    assert second == pytest.approx(first, rel=0.02)


def test_half_precision_takes_less(model):
    assert estimate_memory(model, 64, "bf16").total < estimate_memory(model, 64).total


def test_color_classes_and_stored_votes_take_more(model):
    base = estimate_memory(model, 8).total
    assert (
        estimate_memory(create_model("capsnet", impl="blocked", in_chans=3, **SMALL), 8).total
        > base
    )
    assert (
        estimate_memory(create_model("capsnet", impl="blocked", num_classes=20, **SMALL), 8).total
        > base
    )
    votes = 8 * 144 * 10 * 16 * 4
    stored = estimate_memory(create_model("capsnet", impl="reference", **SMALL), 64).activations
    assert stored > estimate_memory(model, 64).activations + votes


def test_it_reads_as_a_sentence_in_mebibytes(model):
    text = str(torchcaps.estimate_memory(model, 2))
    assert text.startswith(f"{estimate_memory(model, 2).total / 2**20:.1f} MiB (parameters ")


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"batch": 0}, ValueError, "batch: expected at least 1, got 0"),
        ({"batch": 1.5}, TypeError, "batch: expected a whole number of images, got 1.5"),
        ({"batch": True}, TypeError, "batch: expected a whole number of images, got True"),
        ({"batch": 1, "precision": "fp16"}, ValueError, "unknown precision 'fp16'"),
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
    assert (workspace.FACTORS_BYTES, workspace.LANES) == (numba.FACTORS_BYTES, numba.LANES)
    assert (workspace.POINTS_BYTES, workspace.MOST_WINDOWS) == (
        frequency.BLOCK_BYTES,
        frequency.MOST_WINDOWS,
    )


@pytest.mark.slow
@pytest.mark.skipif(not timing.can_measure_memory(), reason="no /proc here")
@pytest.mark.parametrize("options", [{}, {"in_chans": 3, "num_classes": 20}])
def test_predictions_are_within_15_percent_of_what_is_measured(options):
    for row in benchmark_memory(Workload("capsnet", options), (32, 128), ("fp32", "bf16")):
        assert row["predicted / measured"] == pytest.approx(1, abs=0.15), row
