"""Times of known clocks, variants that equal the reference, and the commands on small layers."""

import json
import mmap
from dataclasses import asdict

import numpy as np
import pytest
from benchmarks.baselines import VARIANTS, Variant, WrongResultError, verify
from benchmarks.layer import Rates, Sizes, least_seconds, least_work
from benchmarks.workload import Workload
from torch import nn

from benchmarks import baselines, latency, layer, routers, scaling, step, timing
from checks import column
from torchcaps import create_model
from torchcaps.nn import CapsuleLinear

SIZES = Sizes(batch=3, children=12, parents=4, dim=5, in_dim=3)
THIN = {"channels": 16, "primary_types": 4}
SMALL = Workload("capsnet", THIN, batch=4)
MODEL = "--option channels=16 --option primary_types=4 --batch 4 --repeats 1"
LAYER = "--children 12 --batch 4 --repeats 1"


def ticking():
    """A clock that moves by a second each time it is read."""
    seconds = iter(range(1_000_000))
    return lambda: float(next(seconds))


def test_work_takes_turns_after_a_warm_up():
    order = []
    work = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    seconds = timing.alternate(work, 2, clock=ticking(), settle=lambda name, _: order.append(name))
    assert "".join(order) == "ab" + 2 * "aabb"
    assert seconds == {"a": [1.0, 1.0], "b": [1.0, 1.0]}


def test_the_spread_of_five_and_of_one():
    assert timing.spread("ms", [5.0, 1.0, 3.0, 2.0, 4.0]) == {"ms": 3000, "q1": 1500, "q3": 4500}
    assert timing.spread("ms", [2.0]) == {"ms": 2000, "q1": 2000, "q3": 2000}


@pytest.mark.skipif(not timing.can_measure_memory(), reason="no /proc here")
def test_the_peak_is_what_was_written_to_meanwhile():
    def fill_64_mib():
        with mmap.mmap(-1, 64 << 20) as memory:
            memory[::4096] = bytes(len(memory) // 4096)

    marks = timing.peak_of(fill_64_mib)
    assert 60 < marks["peak_mib"] - marks["before_mib"] < 80


@pytest.mark.skipif(not timing.can_measure_memory(), reason="no /proc here")
def test_a_fresh_process_measures_from_any_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    marks = timing.in_fresh_process("layer", variant="limit", sizes=asdict(SIZES))
    assert marks["peak_mib"] >= marks["before_mib"] - 1 > 0


@pytest.mark.parametrize("bias", [False, True])
def test_every_exact_variant_equals_the_reference(bias):
    linear = CapsuleLinear(12, 3, 4, 5, bias=bias)
    names = [name for name in baselines.usable(linear) if name != "compiled"]
    errors = verify(names, linear)
    assert errors.keys() >= {"auto", "blocked", "einsum", "textbook"}
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


def test_a_model_without_dynamic_routing_has_no_variants():
    with pytest.raises(ValueError, match="model: expected one with a CapsuleLinear, got Linear"):
        step.routed_layer(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="routing: expected plain dynamic routing"):
        step.routed_layer(create_model("capsnet", routing="random", decoder=False, **THIN))


def test_steps_of_equal_time_have_ratios_of_one():
    variants = ["limit", "reference", "limit-torch", "einsum", "textbook"]
    rows = step.benchmark_steps(SMALL, variants, ("fp32", "bf16"), 2, False, ticking())
    assert column(rows, "variant") == 2 * variants
    assert column(rows, "precision") == 5 * ["fp32"] + 5 * ["bf16"]
    for row in rows:
        assert row["ms"] == row["q1"] == row["q3"] == 1000
        assert row["img/s"] == 4
        assert row["tax"] == row["x textbook"] == row["x einsum"] == row["x textbook fp32"] == 1


def test_memory_above_the_limit_and_ratios_without_their_base(monkeypatch):
    peaks = {"limit-torch": 100.0, "auto": 130.0}
    monkeypatch.setattr(
        timing, "in_fresh_process", lambda *_, variant, **__: {"peak_mib": peaks[variant]}
    )
    monkeypatch.setattr(timing, "can_measure_memory", lambda: True)
    rows = step.benchmark_steps(SMALL, list(peaks), ("fp32",), 1, True, ticking())
    assert column(rows, "above limit-torch MiB") == [0, 30]
    assert column(rows, "x textbook") == [None, None]
    assert column(rows, "tax") == [1, None]  # each over the limit in its own surroundings


def test_layers_have_their_share_of_the_roofline():
    rates = Rates(copy=1e12, product=1e3)
    names = ["limit", "reference", "einsum"]
    limit, reference, einsum = layer.benchmark_layers(SIZES, names, 2, False, rates, ticking())
    bound = least_work(SIZES.batch, SIZES.layer()).products
    assert limit["roofline ms"] is None
    assert reference["roofline ms"] == einsum["roofline ms"] == pytest.approx(bound)
    assert reference["of roofline"] == pytest.approx(bound / 1000)
    assert limit["x reference"] == einsum["x reference"] == 1


def test_the_least_work_of_one_iteration_is_that_of_a_linear_layer_and_its_gradients():
    work = least_work(2, CapsuleLinear(12, 3, 4, 5, iterations=1))
    assert work.products == 2 * (12 * 4 * 5 * 3 + 12 * 4 * 5 + 3 * 12 * 4 * 5 * 3)
    assert work.bytes == 4 * 4 * (2 * 12 * 3 + 12 * 4 * 5 * 3)
    assert least_seconds(work, Rates(work.bytes, work.products)) == 1
    assert least_seconds(work, Rates(work.bytes / 2, work.products)) == 2


def test_latency_has_a_row_for_each_batch_and_precision():
    rows = latency.benchmark_latency(SMALL, ("fp32", "bf16"), 3, ticking(), batches=(1, 2))
    assert column(rows, "batch") == [1, 2, 1, 2]
    assert rows[1]["median ms"] == rows[1]["95 % ms"] == 1000
    assert rows[1]["ms / image"] == 500


@pytest.mark.parametrize("power", [-1.0, 0.0, 0.5, 2.0])
def test_the_exponent_of_a_power_law_is_exact(power):
    sizes = [3, 6, 12, 24, 48]
    seconds = 0.7 * np.power(sizes, power)
    assert scaling.fitted_exponent(sizes, seconds.tolist()) == pytest.approx(power, abs=1e-12)


def test_series_double_around_the_middle_and_hold_no_size_twice():
    assert scaling.series(128) == [32, 64, 128, 256, 512]
    assert scaling.series(1) == [1, 2, 4]
    rows = scaling.benchmark_scaling(("blocked", "reference"), SIZES, 1, ticking(), count=3)
    assert len(rows) == 2 * len(Sizes.__dataclass_fields__)
    assert column(rows, "exponent") == pytest.approx([0] * len(rows), abs=1e-12)
    assert rows[0]["sizes"] == [2, 3, 6]


@pytest.mark.parametrize(
    ("command", "words", "head"),
    [
        (step, f"{MODEL} --precision fp32 --no-memory --variants limit blocked", "img/s"),
        (layer, f"{LAYER} --no-memory --variants limit einsum", "of roofline"),
        (routers, f"{LAYER} --routers dynamic uniform", "x uniform"),
        (latency, MODEL, "95 % ms"),
        (scaling, f"{LAYER} --impl blocked --count 2", "exponent"),
    ],
)
def test_a_command_writes_figures_and_a_picture(command, words, head, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    output = tmp_path / "new" / "figures.json"
    picture = tmp_path / "picture.png"
    words = [*words.split(), "--output", str(output), "--plot", str(picture)]
    assert command.main(words) == 0
    assert set(head.split()) <= set(capsys.readouterr().out.split())
    document = json.loads(output.read_text())
    assert head in document["rows"][0]
    assert document["settings"]["clock"] == "wall"
    assert document["machine"].keys() >= {"processor", "threads", "torch", "date"}
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("command", "words", "sentence"),
    [
        (step, "--repeats 0", "expected at least 1, got 0"),
        (layer, "--output .", "--output: expected a file, got the folder ."),
    ],
)
def test_a_wrong_argument_is_2(command, words, sentence, capsys):
    with pytest.raises(SystemExit) as ending:
        command.main(words.split())
    assert ending.value.code == 2
    assert sentence in capsys.readouterr().err
