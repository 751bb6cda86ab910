"""What there is to know of a GPU that is there for half an hour, in stages that write a file each.

    python -m benchmarks.gpu --minutes 25 --output DIR [--stages correctness step ...]

A stage begins only if its minutes are left. Each file has the expectation, which was written before
any GPU was seen, the figures, and the ratio of figure to expectation where there is one. It needs
torch, numba and Triton, no network, and no package of the command line.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

import torchcaps as tc
from torchcaps.bench.baselines import VARIANTS
from torchcaps.data import ImageBatch
from torchcaps.functional import DenseField, ProductVotes, dynamic_routing
from torchcaps.kernels import registry, verify
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.training import Interrupted, train
from torchcaps.types import Capsules


@dataclass(frozen=True)
class Sizes:
    """How much is measured; the small ones are for tests.

    Attributes:
        layers: (children, parents, dimensions of a parent, of a child) of layers that are checked.
        models: that are trained for some steps; None for all.
        batches: of the training step.
        repeats: steps that are timed.
        options: of the capsule network whose step is timed.
        head_side: side of the images of the backbone's head.
    """

    layers: tuple[tuple[int, int, int, int], ...] = (
        (1152, 10, 16, 8),
        (1152, 43, 16, 8),
        (1152, 10, 16, 32),
        (33, 17, 5, 3),
    )
    models: tuple[str, ...] | None = None
    batches: tuple[int, ...] = (128, 1024)
    repeats: int = 20
    options: tuple[tuple[str, int], ...] = ()
    head_side: int = 224


SMALL = Sizes(
    layers=((33, 5, 4, 3),),
    models=("cnn_baseline",),
    batches=(2,),
    repeats=2,
    options=(("channels", 8), ("primary_types", 2)),
    head_side=64,
)
Figures = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """A part of the measurement.

    Attributes:
        name: of its file.
        minutes: that it takes at most, by estimate.
        expectation: a sentence, written before.
        run: takes the sizes and the folder; returns figures, with "ratio" where there is one.
    """

    name: str
    minutes: float
    expectation: str
    run: Callable[[Sizes, Path], Figures]


def correctness(sizes: Sizes, _folder: Path) -> Figures:
    """Errors of every kernel in value and gradient, in three types; the ratio is to the limit."""
    rows = []
    for children, parents, dim, in_dim in sizes.layers:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            pose = torch.empty(8, children, in_dim, device="cuda", dtype=dtype)
            weight = torch.empty(children, parents, in_dim, dim, device="cuda", dtype=dtype)
            votes = ProductVotes(Capsules(pose, pose[..., 0]), DenseField(), weight)
            for path in registry.PATHS["dynamic_routing"]:
                support = path.supports(votes)
                row: dict[str, Any] = {"impl": path.impl, "sizes": [children, parents, dim, in_dim]}
                row |= {"dtype": str(dtype), "reason": support.reason}
                if support.usable:
                    row |= _kernel_error(path, votes)
                rows.append(row)
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    return {"rows": rows, "ratio": max(ratios, default=None)}


def _kernel_error(path: registry.FastPath, votes: ProductVotes) -> Figures:
    """The largest error of a fast path beside what is allowed, or why it does not run."""
    options = {"iterations": 3, "leaky": False, "detach": False}
    try:
        errors = verify.relative_errors(path.run, dynamic_routing, votes, options)
    except Exception as failure:
        return {"failure": f"{type(failure).__name__}: {failure}"[:500]}
    limit = verify.LIMITS[verify.product_type(votes)]
    return {"errors": errors, "ratio": max(errors.values()) / limit}


def systems(sizes: Sizes, folder: Path) -> Figures:
    """Every model: a few steps in bf16, a stop, a resumption, an evaluation."""
    rows = []
    for name in sizes.models or tc.list_models():
        row: Figures = {"model": name}
        start = time.perf_counter()
        try:
            _train_and_use(name, folder / "runs" / name)
        except Exception as failure:
            row["failure"] = f"{type(failure).__name__}: {failure}"[:500]
            row["traceback"] = traceback.format_exc()[-2000:]
        row["seconds"] = round(time.perf_counter() - start, 1)
        rows.append(row)
    return {"rows": rows, "failures": sum("failure" in row for row in rows)}


def _train_and_use(name: str, folder: Path) -> None:
    """A run of six steps that is stopped after two, resumed and evaluated."""
    data: Figures = {"data": "digits", "per_class": 4}
    if name.startswith(("segcaps", "unet")):
        data = {"data": "multi-digits-masks"}
    elif name.startswith("canonical"):
        data = {"data": "planes"}
    size = {"img_size": (36, 36)} if name.endswith(("smallnorb", "multimnist", "2019")) else {}
    run = {"model": name, "epochs": 1, "batch_size": 4, "epoch_size": 24, "device": "cuda"}
    config = TrainConfig.of(**run, **data, **size, holdout=0.2, checkpoint_every=3)
    steps = iter(range(1, 100))
    try:
        train(config, folder, should_stop=lambda: next(steps) == 2)
    except Interrupted:
        train(config, folder, resume=True)
    tc.evaluate(folder, device="cuda")


def step(sizes: Sizes, _folder: Path) -> Figures:
    """Time and memory of the training step of MNIST's network by the layer of its classes."""
    rows = []
    for batch in sizes.batches:
        for layer in ("limit", "triton", "blocked", "compiled", "textbook"):
            for is_bf16 in (True, False):
                row: dict[str, Any] = {
                    "layer": layer,
                    "batch": batch,
                    "precision": "bf16" if is_bf16 else "fp32",
                }
                try:
                    row |= _measure(_training_step(layer, batch, is_bf16, sizes), sizes.repeats)
                except Exception as failure:
                    row["failure"] = f"{type(failure).__name__}: {failure}"[:500]
                rows.append(row)
    times = {(row["layer"], row["batch"], row["precision"]): row.get("ms") for row in rows}
    fast = times.get(("triton", sizes.batches[0], "bf16"))
    limit = times.get(("limit", sizes.batches[0], "bf16"))
    return {"rows": rows, "ratio": fast / limit if fast and limit else None}


def _training_step(
    layer: str, batch: int, is_bf16: bool, sizes: Sizes
) -> Callable[[], torch.Tensor]:
    """A function that takes one training step of the network with this layer of classes."""
    torch.manual_seed(0)
    options: dict[str, Any] = dict(sizes.options)
    model: Any = tc.create_model("capsnet", **options)
    model.class_capsules = VARIANTS[layer].build(model.class_capsules)
    task = create_task(model, TrainConfig()).cuda().train()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    images = torch.rand(batch, 1, 28, 28, device="cuda")
    labels = torch.randint(10, (batch,), device="cuda")

    def take_step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=is_bf16, cache_enabled=False):
            loss: torch.Tensor = task.training_step(ImageBatch(images, labels), 0.0)["loss"]
        loss.backward()
        optimizer.step()
        return loss

    return take_step


def _measure(run: Callable[[], object], repeats: int) -> Figures:
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
    return figures | _profile(run, median(times))


def _profile(run: Callable[[], object], seconds: float) -> Figures:
    """Launches of a run, and the share of its time in which a kernel was at work."""
    activities = torch.profiler.supported_activities()
    if torch.profiler.ProfilerActivity.CUDA not in activities:
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() or [] if "CUDA" in str(event.device_type)]
    busy = sum(event.device_time_total for event in kernels) / 1e6
    return {"launches": len(kernels), "busy share": busy / seconds}


def mnist(_sizes: Sizes, folder: Path) -> Figures:
    """Wall time to 99.5 % on held-out images of MNIST, whose files lie beside the output."""
    root = folder.parent / "mnist"
    if not root.exists():
        return {"skipped": f"{root}: MNIST is not there (make gpu-bundle)"}
    start = time.perf_counter()
    config = tc.training.load_recipe("capsnet-mnist").config
    config = config.updated(device="cuda", root=str(folder.parent), stop_at=0.995)
    run = train(config, folder / "runs" / "mnist")
    seconds = time.perf_counter() - start
    evaluation: Any = tc.evaluate(run.path, root=str(folder.parent), device="cuda")
    return {"seconds": seconds, "test accuracy": evaluation.accuracy, "ratio": seconds / 60}


def backbone(sizes: Sizes, _folder: Path) -> Figures:
    """The step of a capsule head on a backbone, beside a linear head, on made images."""
    side = sizes.head_side
    images = torch.rand(sizes.batches[0], 3, side, side, device="cuda")
    labels = torch.randint(10, (len(images),), device="cuda")
    figures: Figures = {}
    for name in ("capsule_head", "linear_head"):
        model = tc.create_model(name, in_chans=3, img_size=side)
        task = create_task(model, TrainConfig()).cuda().train()
        optimizer = torch.optim.Adam(model.parameters(), fused=True)

        def take_step(task: Any = task, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                loss = task.training_step(ImageBatch(images, labels), 0.0)["loss"]
            loss.backward()
            optimizer.step()

        figures[name] = _measure(take_step, sizes.repeats)
    return figures | {"ratio": figures["capsule_head"]["ms"] / figures["linear_head"]["ms"]}


STAGES = (
    Stage("correctness", 4, "no error beyond its limit: a ratio below 1", correctness),
    Stage("systems", 8, "no model fails", systems),
    Stage("step", 6, "the step with Triton takes 1.5 times that of a linear layer", step),
    Stage("mnist", 5, "99.5 % of held-out images within a minute", mnist),
    Stage("backbone", 2, "a capsule head takes 1.2 times the step of a linear head", backbone),
)


def run_stages(
    output: Path, minutes: float, names: list[str] | None = None, sizes: Sizes | None = None
) -> dict[str, Figures]:
    """Run stages while there is time; write a file for each as it ends.

    Args:
        output: folder of the files.
        minutes: after which no stage begins that would take longer.
        names: of stages; None for all.
        sizes: how much is measured.

    Returns:
        What was written, by stage.
    """
    output.mkdir(parents=True, exist_ok=True)
    deadline = time.perf_counter() + 60 * minutes
    documents = {}
    for stage in STAGES:
        if names is not None and stage.name not in names:
            continue
        print(f"{stage.name}: expected: {stage.expectation}", flush=True)
        document: Figures = {"expectation": stage.expectation}
        start = time.perf_counter()
        if deadline - start < 60 * stage.minutes:
            document["skipped"] = f"it takes {stage.minutes:g} minutes, and fewer are left"
        else:
            try:
                document |= stage.run(sizes or Sizes(), output)
            except Exception as failure:
                document["failure"] = f"{type(failure).__name__}: {failure}"
                document["traceback"] = traceback.format_exc()
        document["seconds"] = round(time.perf_counter() - start, 1)
        document["gpu"] = torch.cuda.get_device_name()
        document["torch"] = torch.__version__
        (output / f"{stage.name}.json").write_text(json.dumps(document, indent=2) + "\n")
        brief = {key: document[key] for key in ("ratio", "skipped", "failure") if key in document}
        print(f"{stage.name}: {document['seconds']} s {brief}", flush=True)
        documents[stage.name] = document
    return documents
