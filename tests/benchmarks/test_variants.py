from __future__ import annotations

import pytest
import torch
from torch import nn

from checks import assert_equal, column
from torchcaps.bench import (
    Workload,
    baselines,
    benchmark_latency,
    benchmark_layers,
    benchmark_steps,
    step,
    verify,
)
from torchcaps.bench.baselines import VARIANTS, Variant, WrongResultError
from torchcaps.bench.layer import Rates, layer_variants, least_seconds, least_work, machine_rates
from torchcaps.bench.step import step_variants, verify_steps
from torchcaps.bench.workload import routed_layer
from torchcaps.errors import UnknownNameError
from torchcaps.models import create_model
from torchcaps.nn import CapsuleLinear

from .conftest import SMALL
from .test_timing import ticking

EAGER = {"auto", "blocked", "reference", "einsum", "textbook"}


@pytest.mark.parametrize("bias", [False, True])
def test_every_exact_variant_equals_the_reference(bias):
    layer = CapsuleLinear(12, 3, 4, 5, bias=bias)
    unusable = {"compiled", *baselines.unusable(layer)}
    errors = verify(list(VARIANTS.keys() - unusable), layer)
    assert errors.keys() >= EAGER
    assert "limit" not in errors
    assert errors["reference"] == 0


def test_a_wrong_variant_is_not_timed(monkeypatch):
    class Wrong(baselines.EinsumCapsules):
        def forward(self, children):
            pose, length = super().forward(children)
            return type(children)(pose * 1.01, length)

    monkeypatch.setitem(VARIANTS, "einsum", Variant(Wrong))
    with pytest.raises(WrongResultError, match="einsum: differs from the reference"):
        verify(["einsum"], CapsuleLinear(12, 3, 4, 5))


def test_all_variants_that_can_run_are_measured_unless_some_are_named(small, sizes):
    reasons = []
    names = step_variants(small, log=reasons.append)
    assert set(names) >= EAGER | {"limit", "limit-torch"}
    assert len(reasons) == len(step.STEPS) - len(names)
    assert step_variants(small, ["limit", "auto", "limit"]) == ["limit", "auto"]
    assert "limit-torch" not in layer_variants(sizes)
    with pytest.raises(UnknownNameError, match="variant"):
        step_variants(small, ["einsums"])


def test_a_model_without_dynamic_routing_has_no_variants():
    with pytest.raises(ValueError, match="model: expected one with a CapsuleLinear, got Linear"):
        routed_layer(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="routing: expected plain dynamic routing"):
        routed_layer(create_model("capsnet", routing="random", decoder=False, **SMALL))


def test_steps_of_equal_time_have_ratios_of_one(small):
    variants = ["limit", "reference", "limit-torch", "einsum", "textbook"]
    assert verify_steps(variants, small)["textbook"] < 1e-4
    rows = benchmark_steps(small, variants, ("fp32", "bf16"), 2, memory=False, clock=ticking())
    assert column(rows, "variant") == 2 * variants
    assert column(rows, "precision") == 5 * ["fp32"] + 5 * ["bf16"]
    for row in rows:
        assert row["ms"] == row["q1"] == row["q3"] == 1000
        assert row["img/s"] == 4
        assert row["tax"] == row["x textbook"] == row["x einsum"] == row["x textbook fp32"] == 1


def test_memory_above_the_limit_and_ratios_without_their_base(small, monkeypatch):
    peaks = {"limit-torch": 100.0, "auto": 130.0}
    monkeypatch.setattr(
        step.timing, "in_fresh_process", lambda *_, variant, **__: {"peak_mib": peaks[variant]}
    )
    monkeypatch.setattr(step.timing, "can_measure_memory", lambda: True)
    rows = benchmark_steps(small, list(peaks), ("fp32",), 1, memory=True, clock=ticking())
    assert column(rows, "above limit-torch MiB") == [0, 30]
    assert column(rows, "x textbook") == [None, None]
    assert column(rows, "tax") == [1, None]  # each over the limit in its own surroundings


def test_layers_have_their_share_of_the_roofline(sizes):
    rates = Rates(copy=1e12, product=1e3)
    variants = ["limit", "reference", "einsum"]
    limit, reference, einsum = benchmark_layers(
        sizes, variants, 2, memory=False, rates=rates, clock=ticking()
    )
    bound = least_work(sizes.batch, sizes.layer()).products
    assert limit["roofline ms"] is None
    assert reference["roofline ms"] == einsum["roofline ms"] == pytest.approx(bound)
    assert reference["of roofline"] == pytest.approx(bound / 1000)
    assert limit["x reference"] == einsum["x reference"] == 1


def test_the_least_work_of_one_iteration_is_that_of_a_linear_layer_and_its_gradients():
    layer = CapsuleLinear(12, 3, 4, 5, iterations=1)
    work = least_work(2, layer)
    assert work.products == 2 * (12 * 4 * 5 * 3 + 12 * 4 * 5 + 3 * 12 * 4 * 5 * 3)
    assert work.bytes == 4 * 4 * (2 * 12 * 3 + 12 * 4 * 5 * 3)
    assert least_seconds(work, Rates(work.bytes, work.products)) == 1
    assert least_seconds(work, Rates(work.bytes / 2, work.products)) == 2


def test_rates_count_what_was_copied_and_multiplied():
    rates = machine_rates(2, ticking(), num_copied=16, matrix_size=8)
    assert rates == (2 * 16 * 4, 8**3)


def test_latency_has_a_row_for_each_batch_and_precision(small):
    rows = benchmark_latency(small, ("fp32", "bf16"), 3, ticking(), batches=(1, 2))
    assert column(rows, "batch") == [1, 2, 1, 2]
    assert column(rows, "precision") == ["fp32", "fp32", "bf16", "bf16"]
    assert rows[1]["median ms"] == rows[1]["95 % ms"] == 1000
    assert rows[1]["ms / image"] == 500


def test_a_workload_is_the_same_each_time_and_leaves_the_callers_random_numbers():
    workload = Workload("capsnet", SMALL)
    state = torch.random.get_rng_state()
    assert_equal(workload.build().state_dict(), workload.build().state_dict())
    assert torch.equal(torch.random.get_rng_state(), state)
