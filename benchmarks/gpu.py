"""What there is to know of a GPU that is there for half an hour, in stages that write a file each.

    python -m benchmarks.gpu --output DIR [--minutes 25] [--stages correctness step ...]

Each stage is a process of its own, so that one that fails, hangs or breaks the state of the GPU
stops no other. Its file is written again with every row that is measured, so that it is there
whenever a stage is killed. It has the expectation, which was written before any GPU was seen, and
the ratio of what was measured to it. It needs torch, numba, Triton and a checkout, no network, and
no package of the command line.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import torchcaps as tc
from benchmarks.baselines import VARIANTS
from benchmarks.report import CHECKOUT, Row, run, write_json
from benchmarks.workload import training_step
from torchcaps import Capsules
from torchcaps.errors import ArgumentError, TrainingError
from torchcaps.testing import KERNEL_LIMITS, kernel_errors, random_capsules
from torchcaps.testing.compare import map_tensors
from torchcaps.training import Interrupted, Run, StopWhen, train

BUNDLE = CHECKOUT / "gpu-bundle"  # of `make gpu-bundle`, with MNIST
MESSAGE = 500  # characters of a failure that are kept
MEMORY_SHARE = 0.01  # of the GPU, in which a training has to run out of memory
FURTHEST = 0.05  # loss of a GPU from that of the CPU after six steps
GRACE = 60  # seconds after which a process is killed that should have ended


@dataclass(frozen=True)
class Sizes:
    """How much is measured; the small ones are for tests.

    Attributes:
        layers: (children, parents, dimensions of a parent, of a child) of layers that are checked.
        systems: that are trained for some steps; None for all.
        batches: of the training step.
        repeats: steps that are timed.
        options: of the capsule network whose step is timed.
        head_batch: images of a step of the backbone's head.
        head_side: side of these images.
        mnist: settings of the training on MNIST.
        score: of held-out images, that ends it.
    """

    layers: tuple[tuple[int, int, int, int], ...] = (
        (1152, 10, 16, 8),
        (1152, 43, 16, 8),
        (1152, 10, 16, 32),
        (33, 17, 5, 3),
    )
    systems: tuple[str, ...] | None = None
    batches: tuple[int, ...] = (128, 1024)
    repeats: int = 20
    options: Row = field(default_factory=dict)
    head_batch: int = 128
    head_side: int = 224
    mnist: Row = field(default_factory=lambda: {"epochs": 10, "root": str(BUNDLE)})
    score: float = 0.995


SMALL = Sizes(
    layers=((33, 5, 4, 3),),
    systems=("cnn_baseline",),
    batches=(2,),
    repeats=2,
    options={"channels": 8, "primary_types": 2},
    head_batch=2,
    head_side=64,
    mnist={"data": "digits", "epochs": 1, "per_class": 4, "holdout": 0.5, "batch_size": 8}
    | {"model_options": {"channels": 8, "primary_types": 2}},
    score=0.01,
)


@dataclass(frozen=True)
class Stage:
    """A part of the measurement.

    Attributes:
        name: of its file.
        minutes: after which it is cut.
        expectation: a sentence, written before.
        measure: takes the sizes, a folder for runs and the seconds that are left; yields a row for
            each measurement, with "failure" if it failed.
        ratio: of what the rows say to the expectation; None if they do not say it.
    """

    name: str
    minutes: float
    expectation: str
    measure: Callable[[Sizes, Path, float], Iterator[Row]]
    ratio: Callable[[Sequence[Row]], float | None]


def attempt(row: Row, measure: Callable[..., Row], *arguments: Any) -> Row:
    """A row with the figures that a function of these arguments gives, or with how it failed."""
    start = time.perf_counter()
    try:
        figures = measure(*arguments)
    except Exception as failure:
        figures = {
            "failure": f"{type(failure).__name__}: {failure}"[:MESSAGE],
            "traceback": traceback.format_exc()[-4 * MESSAGE :],
        }
    return row | figures | {"seconds": round(time.perf_counter() - start, 2)}


def correctness(sizes: Sizes, _folder: Path, _seconds: float) -> Iterator[Row]:
    """Errors of every kernel in value and gradient, in three types, beside what is allowed."""
    for children, parents, dim, in_dim in sizes.layers:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for leaky, detach in ((False, False), (True, False), (False, True)):
                options: Row = {"iterations": 3, "leaky": leaky, "detach": detach}
                layer = tc.nn.CapsuleLinear(children, in_dim, parents, dim, **options).cuda()
                capsules = map_tensors(torch.Tensor.cuda, random_capsules(8, children, in_dim))
                for impl in tc.ops.implementations("dynamic_routing")[2:]:
                    row: Row = {"impl": impl, "dtype": str(dtype)} | options
                    row["sizes"] = [children, parents, dim, in_dim]
                    try:
                        _, row["reason"] = tc.ops.choose(
                            "dynamic_routing", layer.make_votes(capsules), impl=impl
                        )
                    except ArgumentError as error:
                        yield row | {"reason": str(error)}
                        continue
                    yield attempt(row, _kernel_error, layer, capsules, impl, dtype)


def _kernel_error(
    layer: tc.nn.CapsuleLinear, capsules: Capsules, impl: str, dtype: torch.dtype
) -> Row:
    """The largest errors of a fast path, and their ratio to what is allowed."""
    errors = kernel_errors(layer, capsules, impl, dtype)
    ratio = max(errors.values()) / KERNEL_LIMITS[dtype]
    figures: Row = {"errors": errors, "ratio": ratio}
    if not ratio <= 1:  # nor NaN
        figures["failure"] = f"an error is {ratio:.3g} times what is allowed"
    return figures


def systems(sizes: Sizes, folder: Path, _seconds: float) -> Iterator[Row]:
    """The tests of the GPU of host memory, on this one; and the losses of the CPU beside."""
    sys.path.append(str(CHECKOUT / "tests"))
    runs: Any = importlib.import_module("fakecuda.runs")
    names = sizes.systems or runs.list_systems()
    yield attempt({"name": "a run that repeats"}, _repeat, runs, folder)
    yield attempt({"name": "exhausted memory"}, _exhaust, runs, folder)
    for precision in ("bf16", "fp16", "fp32"):
        for name in names if precision != "fp16" else runs.FP16[: len(names)]:
            path = folder / f"{name} {precision}".replace(" ", "-")
            row = runs.run_system(name, precision, path, counted)
            if row["fault"]:
                row["failure"] = row["fault"]
            elif row["waits"]:
                row["failure"] = f"the host waited: {row['waiting lines']}"
            yield row
            if precision == "fp32" and "failure" not in row:
                yield attempt({"name": f"{name} beside the CPU"}, _distance, runs, name, path)


@dataclass
class Counts:
    """Kernels and host waits of a block, as `fakecuda.gpu.counted` counts them."""

    launches: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    waiting_lines: Counter[str] = field(default_factory=Counter)


@contextmanager
def counted() -> Iterator[Counts]:
    """Count the kernels and host waits of a block on a real GPU, which says where it waits."""
    counts = Counts()
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with profiled() as kernels:
                yield counts
        finally:
            torch.cuda.set_sync_debug_mode("default")
    counts.launches.update(name for name, _ in kernels)
    for message in messages:
        if "synchronizing CUDA operation" in str(message.message):
            counts.waits["wait"] += 1
            counts.waiting_lines[f"{message.filename}:{message.lineno}"] += 1


@contextmanager
def profiled() -> Iterator[list[tuple[str, float]]]:
    """Collect the kernels of a block, with their seconds, if this torch can trace a GPU."""
    kernels: list[tuple[str, float]] = []
    activity = torch.profiler.ProfilerActivity.CUDA
    if activity not in torch.profiler.supported_activities():
        yield kernels
        return
    with torch.profiler.profile(activities=[activity]) as profile:
        yield kernels
    for event in profile.events() or []:
        if "CUDA" in str(event.device_type):
            kernels.append((event.name, event.time_range.elapsed_us() / 1e6))


def _repeat(runs: Any, folder: Path) -> Row:
    """Whether a run with `deterministic` that is stopped and resumed gives the bits of another."""
    config = runs.settings("capsnet", "bf16").updated(deterministic=True)
    try:
        train(config, folder / "stopped", callbacks=[runs.StopAfter(2)])
    except Interrupted:
        train(config, folder / "stopped", resume=True)
    train(config, folder / "whole")
    weights = [folder / name / "model.safetensors" for name in ("stopped", "whole")]
    if weights[0].read_bytes() == weights[1].read_bytes():
        return {}
    return {"failure": "the weights are not those of a run that was not stopped"}


def _exhaust(runs: Any, folder: Path) -> Row:
    """Whether exhausted memory is one sentence."""
    config = runs.settings("capsnet", "fp32").updated(batch_size=1024, epoch_size=None)
    torch.cuda.set_per_process_memory_fraction(MEMORY_SHARE)
    try:
        train(config.updated(model_options={}, per_class=None), folder / "large")
    except TrainingError as error:
        return {} if "the memory is exhausted" in str(error) else {"failure": str(error)[:MESSAGE]}
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return {"failure": f"it fits into {MEMORY_SHARE:.0%} of the memory"}


def _distance(runs: Any, name: str, folder: Path) -> Row:
    """How far the loss of an epoch on the GPU is from that on the CPU."""
    config = runs.settings(name, "fp32").updated(device="cpu")
    losses = []
    for path in (folder, train(config, folder.with_name(f"{folder.name}-cpu")).path):
        losses.append(Run(path).epochs[0]["train_loss"])
    distance = abs(losses[0] / losses[1] - 1)
    figures: Row = {"loss": losses[0], "loss of the CPU": losses[1]}
    if not distance <= FURTHEST:
        figures["failure"] = f"the losses differ by {distance:.1%}"
    return figures


def step(sizes: Sizes, _folder: Path, _seconds: float) -> Iterator[Row]:
    """Time and memory of the training step of MNIST's network by the layer of its classes."""
    for batch in sizes.batches:
        for precision in ("bf16", "fp32"):
            for layer in ("limit", "triton", "bmm", "blocked", "compiled", "textbook"):
                row: Row = {"layer": layer, "batch": batch, "precision": precision}
                yield attempt(row, _measure_network, layer, batch, precision, sizes)


def _measure_network(layer: str, batch: int, precision: str, sizes: Sizes) -> Row:
    """Row of the step of the network with this layer of classes."""
    torch.manual_seed(0)
    model: Any = tc.create_model("capsnet", **sizes.options)
    model.class_capsules = VARIANTS[layer].build(model.class_capsules)
    images = torch.rand(batch, 1, 28, 28, device="cuda")
    return _measure_step(model, images, precision, sizes.repeats)


def _measure_step(model: Any, images: Tensor, precision: str, repeats: int) -> Row:
    """Figures of the training step of a classifier of ten classes."""
    labels = torch.randint(10, (len(images),), device="cuda")
    return _measure(training_step(model.cuda(), images, labels, precision), repeats)


def _measure(run: Callable[[], object], repeats: int) -> Row:
    """Median milliseconds, the most memory, launches, and the busy share of the device."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    figures = {"ms": 1e3 * median(times), "MiB": torch.cuda.max_memory_allocated() / 2**20}
    with profiled() as kernels:
        run()
        torch.cuda.synchronize()
    if kernels:
        busy_seconds = sum(seconds for _, seconds in kernels)
        figures |= {"launches": len(kernels), "busy share": busy_seconds / median(times)}
    return figures


def mnist(sizes: Sizes, folder: Path, seconds: float) -> Iterator[Row]:
    """Wall time until a share of the held-out images of MNIST is right."""
    yield attempt({}, _train_mnist, sizes, folder / "run", time.monotonic() + seconds)


def _train_mnist(sizes: Sizes, folder: Path, deadline: float) -> Row:
    """Train until the score is reached; the test images are read once, at the end."""
    config = tc.training.load_recipe("capsnet-mnist").config
    config = config.updated(device="cuda", stop_at=sizes.score, **sizes.mnist)
    start = time.perf_counter()
    run = train(config, folder, callbacks=[StopWhen(lambda: time.monotonic() > deadline)])
    figures: Row = {"s to the score": time.perf_counter() - start}
    scores = [epoch["val_accuracy"] for epoch in run.epochs]
    figures |= {"epochs": len(scores), "held-out accuracy": max(scores)}
    if max(scores) < sizes.score:
        return figures | {"failure": f"{sizes.score:.1%} of held-out images was not reached"}
    evaluation: Any = tc.evaluate(run.path, device="cuda")
    return figures | {"test accuracy": evaluation.accuracy}


def backbone(sizes: Sizes, _folder: Path, _seconds: float) -> Iterator[Row]:
    """The step of a capsule head on a backbone, beside a linear head, on made images."""
    images = torch.rand(sizes.head_batch, 3, sizes.head_side, sizes.head_side, device="cuda")
    for name in ("linear_head", "capsule_head"):
        yield attempt({"head": name}, _measure_head, name, images, sizes.repeats)


def _measure_head(name: str, images: Tensor, repeats: int) -> Row:
    """Row of the step of a head on a backbone."""
    model = tc.create_model(name, in_chans=3, img_size=images.shape[-1])
    return _measure_step(model, images, "bf16", repeats)


def largest_ratio(rows: Sequence[Row]) -> float | None:
    """The largest of the ratios of rows."""
    return max((row["ratio"] for row in rows if "ratio" in row), default=None)


def share_of_failures(rows: Sequence[Row]) -> float | None:
    """Of the rows, those that failed."""
    return sum("failure" in row for row in rows) / len(rows) if rows else None


def time_ratio(key: str, name: str, other: str) -> Callable[[Sequence[Row]], float | None]:
    """A function of rows: the time of the first with one name over that of another."""

    def ratio(rows: Sequence[Row]) -> float | None:
        times: Row = {}
        for row in rows:
            if "ms" in row:
                times.setdefault(row[key], row["ms"])
        return times[name] / times[other] if {name, other} <= times.keys() else None

    return ratio


def share_of_a_minute(rows: Sequence[Row]) -> float | None:
    """The seconds until the score is reached, in minutes."""
    return rows[0]["s to the score"] / 60 if "s to the score" in rows[0] else None


STAGES = (
    Stage(
        "correctness",
        4,
        "no error is larger than allowed: a ratio of at most 1",
        correctness,
        largest_ratio,
    ),
    Stage("systems", 8, "nothing fails: a ratio of 0", systems, share_of_failures),
    Stage(
        "step",
        6,
        "the step with Triton takes 1.5 times that with a linear layer",
        step,
        time_ratio("layer", "triton", "limit"),
    ),
    Stage(
        "mnist",
        5,
        "99.5 % of held-out images within a minute: a ratio of at most 1",
        mnist,
        share_of_a_minute,
    ),
    Stage(
        "backbone",
        2,
        "the step of a capsule head takes 1.2 times that of a linear head",
        backbone,
        time_ratio("head", "capsule_head", "linear_head"),
    ),
)
NAMES = tuple(stage.name for stage in STAGES)


def run_stage(stage: Stage, output: Path, seconds: float, sizes: Sizes) -> None:
    """Run a stage in this process; write its file with every row.

    Args:
        stage: what is measured.
        output: folder of the files.
        seconds: after which no further row is measured.
        sizes: how much is measured.
    """
    start = time.perf_counter()
    rows: list[Row] = []
    document: Row = {
        "expectation": stage.expectation,
        "ratio": None,
        "failure": "it was killed",
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rows": rows,
    }
    path = output / f"{stage.name}.json"
    write_json(path, document)
    with tempfile.TemporaryDirectory() as folder:
        for row in stage.measure(sizes, Path(folder), seconds):
            rows.append(row)
            document["ratio"] = stage.ratio(rows)
            document["seconds"] = round(time.perf_counter() - start, 1)
            write_json(path, document)
            if document["seconds"] > seconds:
                write_json(path, document | {"failure": "it was cut, for its time was over"})
                return
    del document["failure"]
    write_json(path, document)


def run_stages(
    command: Sequence[str], output: Path, minutes: float, names: Sequence[str] = NAMES
) -> int:
    """Run stages one after another, each in a process; print what was expected and what came.

    Args:
        command: that runs a stage, with `--stage NAME --output DIR --minutes M` behind it.
        output: folder of the files.
        minutes: for all of them.
        names: of stages.

    Returns:
        0; or 1 if anything failed, or a stage was cut or not begun.
    """
    output.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * minutes
    status = 0
    for stage in STAGES:
        if stage.name not in names:
            continue
        print(f"{stage.name}: expected: {stage.expectation}", flush=True)
        path = output / f"{stage.name}.json"
        write_json(path, {"expectation": stage.expectation, "failure": "it was not begun"})
        seconds = min(60 * stage.minutes, deadline - time.monotonic())
        ending = ""
        if seconds > 0:
            words = ["--stage", stage.name, "--output", str(output), "--minutes", f"{seconds / 60}"]
            ending = _run_process([*command, *words], seconds + GRACE)
        document = json.loads(path.read_text())
        if ending:
            write_json(path, document | {"failure": ending})
            document["failure"] = ending
        failures = _failures(document)
        print(f"{stage.name}: ratio: {document.get('ratio')}", *failures, sep="\n  ", flush=True)
        status |= bool(failures)
    return status


def _run_process(command: Sequence[str], seconds: float) -> str:
    """How a process failed; empty if it ended with status 0."""
    try:
        process = subprocess.run(command, check=False, timeout=seconds, cwd=CHECKOUT)
    except subprocess.TimeoutExpired:
        return f"its process was killed after {seconds:.0f} s"
    return f"its process ended with status {process.returncode}" if process.returncode else ""


def _failures(document: Row) -> list[str]:
    """What failed of a stage, and of its rows, a line each."""
    lines = [document["failure"]] if "failure" in document else []
    for row in document.get("rows", []):
        if "failure" in row:
            labels = [str(label) for label in row.values() if isinstance(label, str | int)][:4]
            lines.append(f"{' '.join(labels)}: {row['failure']}")
    return lines


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the files")
    parser.add_argument("--minutes", type=float, default=25.0, help="for all stages")
    parser.add_argument("--stages", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--stage", choices=NAMES, help="run one, in this process")
    parser.add_argument("--small", action="store_true", help="small sizes, for tests")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.gpu: torch sees no CUDA device here")
    output = options.output.resolve()
    if options.stage is None:
        command = [sys.executable, "-m", "benchmarks.gpu", *["--small"] * options.small]
        return run_stages(command, output, options.minutes, options.stages)
    stage = STAGES[NAMES.index(options.stage)]
    run_stage(stage, output, 60 * options.minutes, SMALL if options.small else Sizes())
    return 0


if __name__ == "__main__":
    run(main)
