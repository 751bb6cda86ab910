from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from torchcaps.bench import (
    Workload,
    baselines,
    benchmark_latency,
    benchmark_layers,
    benchmark_steps,
    step,
    verify,
)
from torchcaps.bench.baselines import WrongResultError
from torchcaps.bench.layer import Rates, layer_variants, least_seconds, least_work, machine_rates
from torchcaps.bench.step import NETWORK, step_variants, verify_steps
from torchcaps.bench.workload import TextbookNetwork, routed_layer, task_of, textbook_loss
from torchcaps.data import ImageBatch
from torchcaps.errors import UnknownNameError
from torchcaps.models import create_model
from torchcaps.nn import CapsuleLinear

from .conftest import SMALL
from .test_timing import ticking

EAGER = ("limit", "auto", "blocked", "reference", "einsum", "textbook")


@pytest.mark.parametrize("bias", [False, True])
def test_every_exact_variant_equals_the_reference(bias):
    layer = CapsuleLinear(12, 3, 4, 5, bias=bias)
    errors = verify([name for name in layer_names(layer) if name != "compiled"], layer)
    assert {"auto", "blocked", "reference", "einsum", "textbook"} <= errors.keys()
    assert "limit" not in errors
    assert errors["reference"] == 0


def layer_names(layer):
    return [name for name in baselines.VARIANTS if name not in baselines.unusable(layer)]


def test_a_wrong_variant_is_not_timed(monkeypatch):
    class Wrong(baselines.EinsumCapsules):
        def forward(self, children):
            pose, length = super().forward(children)
            return type(children)(pose * 1.01, length)

    monkeypatch.setitem(baselines.VARIANTS, "einsum", baselines.Variant(Wrong))
    with pytest.raises(
        WrongResultError, match=r"einsum: differs from the reference by .*; nothing was timed"
    ):
        verify(["einsum"], CapsuleLinear(12, 3, 4, 5))


def test_the_textbook_network_has_our_weights_and_computes_the_same(small):
    model = small.build()
    network = TextbookNetwork(model)
    assert count(network) == count(model)
    images, labels = small.data(model)
    batch = ImageBatch(images, labels)
    ours, theirs = (
        task_of(model)(batch, 0.0)["loss"],
        textbook_loss(images, labels, *network(images, labels)),
    )
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-6)
    ours.backward()
    theirs.backward()
    torch.testing.assert_close(
        network.conv1.weight.grad, model.conv.weight.grad, rtol=1e-3, atol=1e-6
    )
    assert verify_steps([NETWORK, "einsum"], small)[NETWORK] < 1e-4


def test_the_published_textbook_network_has_8215568_weights():
    assert count(TextbookNetwork(create_model("capsnet"))) == 8_215_568


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_textbook_network_takes_the_network_of_2017_only():
    with pytest.raises(TypeError, match="model: expected a capsnet with a decoder, got Linear"):
        TextbookNetwork(nn.Linear(2, 2))


def test_variants_are_those_that_run_here_or_those_asked_for(small, sizes):
    told = []
    found = step_variants(small, log=told.append)
    assert {*EAGER, NETWORK} <= set(found)
    assert len(told) == len(step.STEPS) - len(found)
    assert step_variants(small, ["limit", "auto", "limit"]) == ["limit", "auto"]
    assert NETWORK not in layer_variants(sizes)
    larger = replace(small, options=SMALL | {"img_size": 20})
    assert NETWORK not in step_variants(larger, log=lambda _: None)
    with pytest.raises(UnknownNameError, match="variant"):
        step_variants(small, ["einsums"])


def test_a_model_without_dynamic_routing_has_no_variants():
    with pytest.raises(ValueError, match="model: expected one with a CapsuleLinear, got Linear"):
        routed_layer(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="routing: expected plain dynamic routing"):
        routed_layer(create_model("capsnet", routing="random", decoder=False, **SMALL))


def test_steps_of_equal_time_have_ratios_of_one(small):
    variants = ["limit", "reference", "limit-torch", "einsum", "textbook", NETWORK]
    rows = benchmark_steps(small, variants, ("fp32", "bf16"), 2, memory=False, clock=ticking())
    assert [(row["variant"], row["precision"]) for row in rows] == [
        (v, p) for p in ("fp32", "bf16") for v in variants
    ]
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
    rows = benchmark_steps(
        small, ["limit-torch", "auto"], ("fp32",), 1, memory=True, clock=ticking()
    )
    assert [row["above limit-torch MiB"] for row in rows] == [0, 30]
    assert [row["x textbook"] for row in rows] == [None, None]
    assert [row["tax"] for row in rows] == [1, None]  # each over the limit in its own surroundings


def test_a_step_learns(small):
    for variant in ("auto", NETWORK):
        run = step.step_of(variant, small, "fp32")
        run()
        run()


def test_layers_have_their_share_of_the_roofline(sizes):
    rates = Rates(copy=1e12, product=1e3)
    rows = benchmark_layers(
        sizes, ["limit", "reference", "einsum"], 2, memory=False, rates=rates, clock=ticking()
    )
    bound = least_work(sizes.batch, sizes.layer()).products
    assert [row["roofline ms"] for row in rows] == [
        None,
        pytest.approx(bound),
        pytest.approx(bound),
    ]
    assert rows[1]["of roofline"] == pytest.approx(bound / 1000)
    assert [row["x reference"] for row in rows] == [1, 1, 1]


def test_the_least_work_of_one_iteration_is_that_of_a_linear_layer_and_its_gradients():
    layer = CapsuleLinear(12, 3, 4, 5, iterations=1)
    work = least_work(2, layer)
    assert work.products == 2 * (12 * 4 * 5 * 3 + 12 * 4 * 5 + 3 * 12 * 4 * 5 * 3)
    assert work.bytes == 4 * 4 * (2 * 12 * 3 + 12 * 4 * 5 * 3)
    assert least_seconds(work, Rates(work.bytes, work.products)) == 1
    assert least_seconds(work, Rates(work.bytes / 2, work.products)) == 2


def test_rates_count_what_was_copied_and_multiplied():
    assert machine_rates(2, ticking(), copied=16, side=8) == (2 * 16 * 4, 8**3)


def test_latency_has_a_row_for_each_batch_and_precision(small):
    rows = benchmark_latency(small, ("fp32", "bf16"), 3, ticking(), batches=(1, 2))
    assert [(row["batch"], row["precision"]) for row in rows] == [
        (1, "fp32"),
        (2, "fp32"),
        (1, "bf16"),
        (2, "bf16"),
    ]
    assert rows[1]["median ms"] == rows[1]["95 % ms"] == 1000
    assert rows[1]["ms / image"] == 500


def test_a_subject_is_the_same_each_time_and_leaves_the_callers_random_numbers():
    build = partial(Workload("capsnet", SMALL).build)
    state = torch.random.get_rng_state()
    first, second = build(), build()
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )
    assert torch.equal(torch.random.get_rng_state(), state)
