"""What there is to know of a GPU that is there for twelve minutes, in stages that write a file each.

    python -m benchmarks.gpu --output DIR [--root FOLDER] [--stages graph peers ...]

Each stage is a process of its own, so that one that fails, hangs or breaks the state of the GPU
stops no other. Its file is written again with every row that is measured, so that it is there
when the stage is cut at its minutes. A row that has an expectation has the ratio of what was
measured to it, at most 1 where it is met; the ratio of a stage is the largest of its rows.

It needs torch with what torch requires, Triton, numba, numpy, scipy, Pillow, safetensors, jaxtyping
and rich, a checkout, and MNIST in a folder; no network, and no package of the command line.
"""

import argparse
import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import torchcaps as tc
from benchmarks.baselines import VARIANTS
from benchmarks.ensemble import activations_of, ensemble_accuracy
from benchmarks.peers import peer_step
from benchmarks.report import CHECKOUT, Row, machine, run, write_json
from benchmarks.workload import Workload, training_step
from torchcaps import Capsules
from torchcaps.data import Dataset
from torchcaps.errors import TrainingError
from torchcaps.testing import KERNEL_LIMITS, kernel_errors, random_capsules
from torchcaps.testing.compare import map_tensors
from torchcaps.training import Callback, TrainConfig, Trainer, load_recipe, train

BUNDLE = CHECKOUT / "gpu-bundle"  # of `make gpu-bundle`, with MNIST
MESSAGE = 500  # characters of a failure that are kept
ROOM = 256 << 20  # bytes of the GPU, too few for the first convolution of a large batch
FURTHEST = 0.05  # loss of a GPU from that of the CPU after six steps
WARM_UP = 5  # steps before those that are timed
BLOCK = 10  # steps between two looks at the clock

# What is expected.
OVERHEAD = 1.25  # milliseconds of a step of the training over those of a bare replay
BUSY = 0.8  # share of a step in which the device works
HOST_MS = 0.3  # between two replays
SCORES = (0.99, 0.995)  # of held-out images; the last one within the seconds of `Training`
RECORD = 0.997  # of the test images, by the networks of the record together


@dataclass(frozen=True)
class Training:
    """A training that is timed.

    Attributes:
        model: its name.
        seconds: until the last of `SCORES` is reached.
        settings: of the training.
    """

    model: str
    seconds: float
    settings: Row


@dataclass(frozen=True)
class Sizes:
    """How much is measured; the small ones are for tests.

    Attributes:
        layers: (children, parents, dimensions of a parent, of a child) of layers that are checked.
        systems: that are trained for some steps.
        steps: of the training whose step is timed.
        batch: of this training.
        leads: by batch, over the fastest way of the network of plain torch.
        blocks: of steps that are timed.
        options: of the capsule network whose step is timed.
        data: name of the set that is trained on.
        root: its folder.
        seeds: of each training.
        holdout: images of the trainings that are timed, which choose the epoch.
        trainings: that are timed.
        record: settings of the networks of the record, beside its recipe.
    """

    layers: tuple[tuple[int, int, int, int], ...] = (
        (1152, 10, 16, 8),
        (1152, 43, 16, 8),
        (1152, 10, 16, 32),
        (33, 17, 5, 3),
    )
    systems: tuple[str, ...] = (
        "capsnet",
        "efficient_capsnet",
        "cnn_baseline",
        "matrix_caps_small",
        "deepcaps_small",
        "segcaps_small",
        "canonical_capsules",
        "capsnet on pairs",
        "scae",
        "tree_capsnet",
        "vb_caps_small",
    )
    steps: int = 240
    batch: int = 64
    leads: dict[int, float] = field(default_factory=lambda: {128: 1.3, 1024: 1.6})
    blocks: int = 5
    options: Row = field(default_factory=dict)
    data: str = "mnist"
    root: str = str(BUNDLE)
    seeds: int = 3
    holdout: int = 5000
    trainings: tuple[Training, ...] = (
        Training("capsnet", 8, {"epochs": 12, "batch_size": 256, "lr": 0.003}),
        Training("efficient_capsnet", 5, {"epochs": 16, "batch_size": 128, "lr": 0.004}),
        Training("capsnet_small", 5, {"epochs": 10, "batch_size": 128, "lr": 0.002}),
    )
    record: Row = field(default_factory=lambda: {"batch_size": 128})

    def load(self, split: str) -> Dataset:
        """The images of a split."""
        return tc.data.load_dataset(self.data, split, root=self.root)


TINY: Row = {"channels": 8, "primary_types": 2}
SMALL = Sizes(
    layers=((33, 5, 4, 3),),
    systems=("cnn_baseline",),
    steps=60,
    batch=4,
    leads={2: 1.3},
    blocks=1,
    options=TINY,
    data="digits",
    seeds=2,
    holdout=600,
    trainings=(
        Training(
            "capsnet_small", 5, {"epochs": 2, "epoch_size": 64, "batch_size": 8, "per_class": 8}
        ),
    ),
    record={"epochs": 1, "epoch_size": 64, "batch_size": 8},
)


@dataclass(frozen=True)
class Stage:
    """A part of the measurement.

    Attributes:
        name: of its file.
        minutes: after which it is cut.
        expectation: a sentence, written before.
        measure: takes the sizes and a folder for runs; yields a row for each measurement, with
            "failure" if it failed, and "ratio" if there is something to expect.
    """

    name: str
    minutes: float
    expectation: str
    measure: Callable[[Sizes, Path], Iterator[Row]]


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


def correctness(sizes: Sizes, _folder: Path) -> Iterator[Row]:
    """Errors of every kernel in value and gradient, in three types, beside what is allowed."""
    for children, parents, dim, in_dim in sizes.layers:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for leaky, detach in ((False, False), (True, False), (False, True)):
                options: Row = {"iterations": 3, "leaky": leaky, "detach": detach}
                layer = tc.nn.CapsuleLinear(children, in_dim, parents, dim, **options).cuda()
                capsules = map_tensors(torch.Tensor.cuda, random_capsules(8, children, in_dim))
                for impl in ("triton", "blocked"):
                    row: Row = {"impl": impl, "dtype": str(dtype), **options}
                    row["sizes"] = [children, parents, dim, in_dim]
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


def systems(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """The tests of the GPU of host memory, on this one; and the losses of the CPU beside."""
    sys.path.append(str(CHECKOUT / "tests"))
    runs: Any = importlib.import_module("fakecuda.runs")
    pairs: Any = importlib.import_module("fakecuda.pairs")
    yield attempt({"name": "a run that repeats"}, _repeat, pairs, folder)
    yield attempt({"name": "exhausted memory"}, _exhaust, runs, folder)
    for name in sizes.systems:
        path = folder / name.replace(" ", "-")
        row = {"name": f"{name} with and without a graph"}
        yield attempt(row, _compare_graphs, pairs, name, path / "graphs")
        row = runs.run_system(name, "bf16", path / "bf16", counted)
        if row["fault"]:
            row["failure"] = row["fault"]
        elif row["waits"]:
            row["failure"] = f"the host waited: {row['waiting lines']}"
        yield row
        yield attempt({"name": f"{name} beside the CPU"}, _distance, runs, name, path)


@contextmanager
def counted() -> Iterator[Any]:
    """Count the kernels and host waits of a block on a real GPU, which says where it waits."""
    counts = SimpleNamespace(launches=Counter(), waits=Counter(), waiting_lines=Counter())
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


def _repeat(pairs: Any, folder: Path) -> Row:
    """Whether a run with `deterministic` that is stopped and resumed gives the bits of another."""
    config = pairs.settings("capsnet", "bf16", deterministic=True)
    pairs.trainings(config, folder / "stopped")
    train(config, folder / "whole")
    return _failure_of(pairs.differences(folder / "stopped", folder / "whole"))


def _failure_of(differences: Sequence[str]) -> Row:
    """The failure where two runs differ in bits, by the names of what differs."""
    return {"failure": f"other bits in {differences}"} if differences else {}


def _exhaust(runs: Any, folder: Path) -> Row:
    """Whether exhausted memory is one sentence."""
    config = runs.settings("capsnet", "fp32").updated(batch_size=1024, epoch_size=None)
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(ROOM / total)
    try:
        train(config.updated(model_options={}, per_class=None), folder / "large")
    except TrainingError as error:
        return {} if "the memory is exhausted" in str(error) else {"failure": str(error)[:MESSAGE]}
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return {"failure": f"it fits into {ROOM >> 20} MiB"}


def _compare_graphs(pairs: Any, name: str, folder: Path) -> Row:
    """Whether a training whose step is a graph has the bits of one without."""
    figures: Row = pairs.compare(name, "bf16", folder, deterministic=True)
    if figures["reason"]:
        figures["failure"] = f"there is no graph: {figures['reason']}"
    return figures | _failure_of(figures["differences"])


def _distance(runs: Any, name: str, folder: Path) -> Row:
    """How far the loss of an epoch on the GPU is from that on the CPU."""
    losses = {}
    for device in ("cuda", "cpu"):
        config = runs.settings(name, "fp32").updated(device=device)
        losses[device] = train(config, folder / device).epochs[0]["train_loss"]
    distance = abs(losses["cuda"] / losses["cpu"] - 1)
    figures: Row = {"losses": losses, "ratio": distance / FURTHEST}
    if not distance <= FURTHEST:
        figures["failure"] = f"the losses differ by {distance:.1%}"
    return figures


def measure_step(step: Callable[[], object], blocks: int) -> Row:
    """Milliseconds of a step, the median of blocks of steps; launches; those the device works."""
    for _ in range(WARM_UP):
        step()
    times = []
    for _ in range(blocks):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(BLOCK):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / BLOCK)
    figures: Row = {"ms": 1e3 * median(times)}
    with profiled() as kernels:
        step()
        torch.cuda.synchronize()
    if kernels:
        busy_ms = 1e3 * sum(seconds for _, seconds in kernels)
        figures |= {"launches": len(kernels), "busy ms": busy_ms}
    return figures


def fit_model(
    config: TrainConfig, images: Dataset, *callbacks: Callback
) -> tuple[torch.nn.Module, Row]:
    """Train a model from the weights of the seed on.

    Args:
        config: of the training.
        images: to train on; a part of them is held out.
        callbacks: that are told of it.

    Returns:
        The model with the weights of its best epoch, and figures: the reason why the steps were
        taken without a graph, and the curve of (seconds, held-out accuracy). Seconds are those of
        the steps with all that they need, the capture of the graph among it, without validation.
    """
    generator = torch.Generator().manual_seed(config.training.seed)
    model = tc.create_model(config.model.name, generator=generator, **config.model.options)
    reason = Reason()
    model, history = tc.fit(
        model,
        images,
        config=config.updated(device="cuda"),
        callbacks=[reason, *callbacks],
        verbose=False,
    )
    curve = []
    seconds = 0.0
    for epoch in history:
        seconds += epoch["images"] / epoch["images_per_second"]
        curve.append((round(seconds, 2), epoch["val_accuracy"]))
    return model, {"no graph": reason.text, "curve": curve}


class Reason(Callback):
    """Notes why the steps of a training are no graph; empty if they are."""

    text = ""

    def on_end(self, trainer: Trainer) -> None:
        """The training is over."""
        self.text = trainer.graph.reason


class Probe(Callback):
    """Times the steps of a training; and at its end a bare replay of its graph, and the host.

    Args:
        blocks: of replays that are timed.

    Attributes:
        marks: (number of steps, seconds) whenever the device was done with these steps.
        figures: what was measured.
    """

    is_late = True

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.marks: list[tuple[int, float]] = []
        self.figures: Row = {}

    def on_step(self, trainer: Trainer, losses: dict[str, float]) -> None:
        """A step is done; the clock counts after the newest of those that were read together."""
        step = trainer.state.step
        if losses["step"] == step:
            self.marks.append((step, time.perf_counter()))

    def on_end(self, trainer: Trainer) -> None:
        """The weights are still where the graph has them."""
        if trainer.error is not None:
            return
        times = []
        for (first, start), (last, end) in pairwise(self.marks):
            if first > WARM_UP:
                times.append(1e3 * (end - start) / (last - first))
        self.figures["ms"] = median(times)
        if trainer.graph.graph is not None:
            self._measure_graph(trainer)

    def _measure_graph(self, trainer: Trainer) -> None:
        """Compare the step of the training with its parts."""
        figures = self.figures
        replay = measure_step(trainer.graph.graph.replay, self.blocks)
        figures |= {"replay ms": replay["ms"], "host ms": self._measure_host(trainer)}
        ratios = [figures["ms"] / replay["ms"] / OVERHEAD, figures["host ms"] / HOST_MS]
        if "busy ms" in replay:
            figures["busy share"] = replay["busy ms"] / figures["ms"]
            ratios.append(BUSY / figures["busy share"])
        figures["ratio"] = max(ratios)

    def _measure_host(self, trainer: Trainer) -> float:
        """Milliseconds of the host for a step whose replay does nothing."""
        trainer.graph.graph = SimpleNamespace(replay=lambda: None)
        trainer.state.step = 0
        times = []
        for item in islice(trainer.batches.epoch(0), BLOCK * self.blocks):
            start = time.perf_counter()
            trainer.step(item)
            times.append(time.perf_counter() - start)
        return 1e3 * median(times)


def graph(sizes: Sizes, _folder: Path) -> Iterator[Row]:
    """The step of `torchcaps train capsnet-mnist`, beside a bare replay of its graph."""
    images = sizes.load("train")
    recipe = load_recipe("capsnet-mnist").config.updated(
        epochs=1, holdout=1000, model_options=sizes.options
    )
    for batch in (sizes.batch, *sizes.leads):
        for setting in ("yes", "no"):
            config = recipe.updated(graph=setting, batch_size=batch, epoch_size=batch * sizes.steps)
            row: Row = {"graph": setting, "batch": batch}
            yield attempt(row, _measure_training, config, images, sizes.blocks)


def _measure_training(config: TrainConfig, images: Dataset, blocks: int) -> Row:
    """Figures of the steps of a training."""
    probe = Probe(blocks)
    fit_model(config, images, probe)
    return probe.figures


# Each takes the same step: a layer of classes or the network of plain torch, and how it is run.
NETWORKS = (
    ("einsum", "eager"),
    ("einsum", "compiled"),
    ("einsum", "graphs"),
    ("textbook", "eager"),
    ("limit", "graph"),
    ("bmm", "graph"),
    ("blocked", "graph"),
    ("auto", "eager"),
    ("auto", "graph"),
)


def peers(sizes: Sizes, _folder: Path) -> Iterator[Row]:
    """The step of MNIST's network beside the 80 lines of `benchmarks.peers`, in bf16."""
    for batch, lead in sizes.leads.items():
        peer_times = []
        for network, way in NETWORKS:
            row: Row = {"network": network, "way": way, "batch": batch}
            row = attempt(row, _measure_network, network, way, batch, sizes)
            if network == "einsum" and "ms" in row:
                peer_times.append(row["ms"])
            if (network, way) == ("auto", "graph") and "ms" in row and peer_times:
                row["lead"] = min(peer_times) / row["ms"]
                row["ratio"] = lead / row["lead"]
            yield row


def _measure_network(network: str, way: str, batch: int, sizes: Sizes) -> Row:
    """Figures of the step of a network."""
    torch.compiler.reset()  # else a second batch is compiled for batches of any size
    torch.cuda.reset_peak_memory_stats()
    workload = Workload(options=sizes.options, batch=batch)
    model: Any = workload.build()
    images, labels = (tensor.cuda() for tensor in workload.data(model))
    if network == "einsum":
        step = peer_step(way, images, labels, "bf16")
    else:
        model.class_capsules = VARIANTS[network].build(model.class_capsules)
        step = training_step(model.cuda(), images, labels, "bf16")
    replay = as_graph(step) if way == "graph" else step
    figures = measure_step(replay, sizes.blocks)
    return figures | {"MiB": torch.cuda.max_memory_allocated() / 2**20}


def as_graph(step: Callable[[], None]) -> Callable[[], None]:
    """The replay of a step as one graph; whoever calls it keeps the step, which has the tensors."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay


def accuracy(sizes: Sizes, _folder: Path) -> Iterator[Row]:
    """Seconds of training until shares of the held-out images are right."""
    images = sizes.load("train")
    tested = sizes.load("test")
    for training in sizes.trainings:
        config = TrainConfig.of(
            model=training.model, holdout=sizes.holdout, shift=2, **training.settings
        )
        # Kernels are compiled and loaded.
        first_steps = config.updated(epochs=1, epoch_size=WARM_UP * training.settings["batch_size"])
        row: Row = {"model": training.model, "seed": "none, a few steps"}
        yield attempt(row, _time_to_scores, first_steps, images, images.subset(range(100)))
        seconds = []
        for seed in range(sizes.seeds):
            row = {"model": training.model, "seed": seed}
            row = attempt(row, _time_to_scores, config.updated(seed=seed), images, tested)
            seconds.append(row.get("s to 99.5%") or math.inf)
            yield row
        if median(seconds) < math.inf:
            yield {"model": training.model, "ratio": median(seconds) / training.seconds}
        else:
            yield {"model": training.model, "failure": "half of the trainings have no 99.5 %"}


def _time_to_scores(config: TrainConfig, images: Dataset, tested: Dataset) -> Row:
    """Train; the test images are read once, by the weights of the best epoch."""
    model, figures = fit_model(config, images)
    for score in SCORES:
        reached = [seconds for seconds, right in figures["curve"] if right >= score]
        figures[f"s to {score:.1%}"] = min(reached, default=None)
    evaluation: Any = tc.evaluate(model, tested, device="cuda")
    return figures | {"test accuracy": evaluation.accuracy}


def records(sizes: Sizes, _folder: Path) -> Iterator[Row]:
    """The recipe of the weights that come with the package; its networks, one by one and joined."""
    images = sizes.load("train")
    tested = sizes.load("test").to("cuda")
    config = load_recipe("efficient-capsnet-long").config.updated(**sizes.record)
    outputs: list[Tensor] = []
    for seed in range(sizes.seeds):
        config = config.updated(seed=seed)
        row = attempt({"seed": seed}, _train_for_record, config, images, tested, outputs)
        if len(outputs) == sizes.seeds:
            row["ratio"] = (1 - row["together"]) / (1 - RECORD)
        yield row


def _train_for_record(
    config: TrainConfig, images: Dataset, tested: Dataset, outputs: list[Tensor]
) -> Row:
    """Train a network, whose activations of the test images join those of others."""
    model, figures = fit_model(config, images)
    outputs.append(activations_of(model, tested).cpu())
    return figures | ensemble_accuracy(outputs, tested.labels.cpu())


STAGES = (
    Stage("correctness", 1.5, "no error is larger than allowed", correctness),
    Stage(
        "graph",
        1,
        "a step of the training takes at most 1.25 times a bare replay, the device is busy for "
        "80 % of it, and the host needs at most 0.3 ms",
        graph,
    ),
    Stage(
        "peers",
        2.25,
        "as a graph, the network is 1.3 times as fast as the fastest way of the 80 lines at batch "
        "128, and 1.6 times at 1,024",
        peers,
    ),
    Stage(
        "accuracy",
        2.5,
        "99.5 % of held-out images within 8 s of training (capsnet) and 5 s (efficient_capsnet, "
        "capsnet_small), medians over seeds",
        accuracy,
    ),
    Stage("records", 3, "three networks together have 99.7 % of the test images", records),
    Stage("systems", 1.75, "nothing fails; losses are those of the CPU within 5 %", systems),
)
NAMES = tuple(stage.name for stage in STAGES)
MINUTES = sum(stage.minutes for stage in STAGES)


def run_stage(stage: Stage, output: Path, sizes: Sizes) -> None:
    """Run a stage in this process; write its file with every row.

    Args:
        stage: what is measured.
        output: folder of the files.
        sizes: how much is measured.
    """
    start = time.perf_counter()
    rows: list[Row] = []
    document: Row = {
        "expectation": stage.expectation,
        "ratio": None,
        "failure": "it was killed",
        "machine": machine(),
        "rows": rows,
    }
    path = output / f"{stage.name}.json"
    write_json(path, document)
    with tempfile.TemporaryDirectory() as folder:
        for row in stage.measure(sizes, Path(folder)):
            rows.append(row)
            document["ratio"] = max((row["ratio"] for row in rows if "ratio" in row), default=None)
            document["seconds"] = round(time.perf_counter() - start, 1)
            write_json(path, document)
    del document["failure"]
    write_json(path, document)


def run_stages(
    command: Sequence[str], output: Path, minutes: float, names: Sequence[str] = NAMES
) -> int:
    """Run stages one after another, each in a process; print what was expected and what came.

    Args:
        command: that runs a stage, with `--stage NAME --output DIR` behind it.
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
            words = ["--stage", stage.name, "--output", str(output)]
            ending = _run_process([*command, *words], seconds)
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
    # cuBLAS repeats its sums with this workspace, and so does `torchcaps train`.
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment["TMPDIR"] = folder  # of what a process leaves that is cut
        try:
            process = subprocess.run(
                command, check=False, timeout=seconds, cwd=CHECKOUT, env=environment
            )
        except subprocess.TimeoutExpired:
            return f"it was cut after {seconds:.0f} s"
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
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all stages")
    parser.add_argument("--root", type=Path, default=BUNDLE, help="folder with MNIST")
    parser.add_argument("--stages", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--stage", choices=NAMES, help="run one, in this process")
    parser.add_argument("--small", action="store_true", help="small sizes, for tests")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.gpu: torch sees no CUDA device here")
    output = options.output.resolve()
    if options.stage is None:
        words = ["--root", str(options.root.resolve()), *["--small"] * options.small]
        command = [sys.executable, "-m", "benchmarks.gpu", *words]
        return run_stages(command, output, options.minutes, options.stages)
    sizes = replace(SMALL if options.small else Sizes(), root=str(options.root))
    run_stage(STAGES[NAMES.index(options.stage)], output, sizes)
    return 0


if __name__ == "__main__":
    run(main)
