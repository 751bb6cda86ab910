"""Every GPU figure, by one command; it needs a CUDA device and Triton. Nothing has been run on a GPU yet.

    python -m benchmarks.gpu [--batches 128 1024] [--repeats 20]
    python -m benchmarks.gpu --offline [--shapes matter|grid|all]
    python -m benchmarks.gpu --minutes 25 --output DIR

The last runs the stages of `gpu_stages.py`.

The second needs Triton and no GPU, no CUDA. It compiles every kernel for sm_80 and sm_90 in the tile that is chosen for
each shape, and tells registers, spills, shared memory and tensor-core instructions: evidence that the kernels would
launch, none that they are fast. 220 compilations for the shapes that matter, 412 for the grid, 796 for all sizes, a
second or two each.

The first measures:

1. The kernels against the reference, in value and gradient: without that, no figure.
2. The class-capsule layer of the MNIST network, forward and backward: textbook, einsum, torch.compile of the reference,
   the Triton kernels, and the roofline: the larger of bytes over the measured copy rate and products over the measured
   matrix-product rate, for the least work that this algorithm does (`torchcaps.bench.least_work`).
3. The whole training step, as it is and replayed as a CUDA graph; the tax over a plain linear layer; seconds per epoch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch

from torchcaps.bench.baselines import VARIANTS, check_errors, largest_error, outputs_of
from torchcaps.bench.layer import Rates, least_seconds, least_work
from torchcaps.bench.timing import cells, machine
from torchcaps.data import Batch
from torchcaps.models import create_model
from torchcaps.nn import CapsuleLinear
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.types import Capsules

EPOCH = 60_000
RESULT = Path(__file__).parent / "results" / "gpu.json"
LAYERS = {
    name: VARIANTS[name]
    for name in ("limit", "textbook", "einsum", "compiled", "reference", "triton")
}


def milliseconds(run: Callable[[], object], repeats: int) -> float:
    """Median time on the device, by events, after three runs to warm up and to tune."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    return median(times)


def as_graph(run: Callable[[], object]) -> Callable[[], object]:
    """The same work, recorded once and replayed without the host."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def rates(repeats: int) -> dict[str, float]:
    """Measured rates: copies in bytes per second (read and written), matrix products in multiply-adds per second."""
    x, y = torch.empty(1 << 28, device="cuda"), torch.empty(1 << 28, device="cuda")
    speeds = {"copy": 2 * x.nbytes / (milliseconds(lambda: y.copy_(x), repeats) / 1e3)}
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.randn(8192, 8192, device="cuda", dtype=dtype)
        speeds[str(dtype)] = 8192**3 / (milliseconds(partial(torch.mm, a, a), repeats) / 1e3)
    return speeds


def forward_and_backward(
    layer: torch.nn.Module, batch: int, sizes: tuple[int, int]
) -> Callable[[], None]:
    """A function that runs a layer forward and backward."""
    pose = (torch.randn(batch, *sizes, device="cuda") * 0.1).requires_grad_()
    children = Capsules(pose, pose.detach().norm(dim=-1))

    def run() -> None:
        layer.zero_grad(set_to_none=True)
        pose.grad = None
        parents = layer(children)
        (parents.pose.square().sum() + parents.activation.sum()).backward()

    return run


def layer_rows(batch: int, repeats: int, device_rates: dict[str, float]) -> list[dict[str, object]]:
    """A row for each layer at this batch size, and its share of the roofline."""
    layer = CapsuleLinear(1152, 8, 10, 16, impl="reference").cuda()
    bound = 1e3 * least_seconds(
        least_work(batch, layer), Rates(device_rates["copy"], device_rates[str(torch.float32)])
    )
    rows = []
    for name, variant in LAYERS.items():
        built = variant.build(layer).cuda()
        time = milliseconds(forward_and_backward(built, batch, (1152, 8)), repeats)
        peak = peak_mib(forward_and_backward(built, batch, (1152, 8)))
        rows.append(
            {
                "layer": name,
                "batch": batch,
                "ms": time,
                "roofline ms": bound,
                "of roofline": bound / time,
                "MiB": peak,
            }
        )
    return rows


def peak_mib(run: Callable[[], object]) -> float:
    """Most device memory that a run holds, over what was held before."""
    run()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return (torch.cuda.max_memory_allocated() - before) / (1 << 20)


def step_of(name: str, batch: int, bf16: bool) -> Callable[[], None]:
    """One training step of the MNIST network with this class-capsule layer."""
    torch.manual_seed(0)
    model: Any = create_model("capsnet")
    model.class_capsules = LAYERS[name].build(model.class_capsules)
    task = create_task(model, TrainConfig()).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=True)
    images, labels = (
        torch.rand(batch, 1, 28, 28, device="cuda"),
        torch.randint(10, (batch,), device="cuda"),
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            loss = task.training_step(
                Batch(images, {"label": labels}, torch.arange(len(labels))), 0.0
            )["loss"]
        loss.backward()
        optimizer.step()

    return step


def step_rows(batch: int, repeats: int) -> list[dict[str, object]]:
    """A row for each layer and precision: step time as it is and as a graph, tax, seconds per epoch."""
    rows = []
    for bf16 in (False, True):
        steps = {
            name: step_of(name, batch, bf16) for name in ("limit", "triton", "compiled", "textbook")
        }
        plain = {name: milliseconds(step, repeats) for name, step in steps.items()}
        graphs = {
            name: milliseconds(as_graph(steps[name]), repeats) for name in ("limit", "triton")
        }
        for name in steps:
            best = graphs.get(name, plain[name])
            rows.append(
                {
                    "step": name,
                    "batch": batch,
                    "precision": "bf16" if bf16 else "fp32",
                    "ms": plain[name],
                    "ms as graph": graphs.get(name),
                    "tax": best / graphs["limit"],
                    "s per epoch": best / 1e3 * EPOCH / batch,
                }
            )
    return rows


def verify(batch: int = 37) -> float:
    """Largest relative error of the kernels.

    Raises:
        WrongResultError: if it exceeds the tolerance.
    """
    layer = CapsuleLinear(1152, 8, 10, 16, impl="reference").cuda()
    pose, upstream = (
        torch.randn(batch, 1152, 8, device="cuda") * 0.1,
        torch.randn(batch, 10, 16, device="cuda"),
    )
    truth = outputs_of(layer, pose, upstream)
    outputs = outputs_of(LAYERS["triton"].build(layer).cuda(), pose, upstream)
    return check_errors({"triton": largest_error(outputs, truth)})["triton"]


def offline(shapes: str, command: str) -> int:
    """What the compiler makes of the kernels, here where there is no GPU."""
    if find_spec("triton") is None:
        raise SystemExit("benchmarks.gpu: --offline needs Triton (pip install triton)")
    from benchmarks.offline import main as compile_all

    return compile_all(shapes, command)


def in_stages(options: argparse.Namespace) -> int:
    """The stages of `gpu_stages`, or one of them."""
    from benchmarks.gpu_stages import NAMES, SMALL, STAGES, Sizes, run_stage, run_stages

    names = [options.stage] if options.stage else options.stages or NAMES
    for name in names:
        if name not in NAMES:
            raise SystemExit(
                f"benchmarks.gpu: expected stages among {', '.join(NAMES)}, got {name}"
            )
    output = options.output.resolve()
    if options.stage is None:
        command = [sys.executable, "-m", "benchmarks.gpu", *["--small"] * options.small]
        return run_stages(command, output, options.minutes, names)
    stage = STAGES[NAMES.index(options.stage)]
    run_stage(stage, output, 60 * options.minutes, SMALL if options.small else Sizes())
    return 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument(
        "--offline", action="store_true", help="compile for sm_80 and sm_90 and run nothing"
    )
    parser.add_argument(
        "--shapes", choices=("matter", "grid", "all"), default="grid", help="of --offline"
    )
    parser.add_argument("--output", type=Path, help="run the stages of gpu_stages into a folder")
    parser.add_argument("--minutes", type=float, default=25.0, help="of --output")
    parser.add_argument("--stages", nargs="+", help="of --output; all by default")
    parser.add_argument("--stage", help="of --output: run one, in this process")
    parser.add_argument("--small", action="store_true", help="of --output: small sizes, for tests")
    options = parser.parse_args()
    command = " ".join(["python -m benchmarks.gpu", *sys.argv[1:]])
    if options.offline:
        return offline(options.shapes, command)
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.gpu: torch sees no CUDA device here")
    if options.output is not None:
        return in_stages(options)
    from torchcaps.cli.console import print_table  # needs packages of the command line

    torch.backends.cuda.matmul.allow_tf32 = False
    error, device_rates = verify(), rates(options.repeats)
    layers = [
        row for batch in options.batches for row in layer_rows(batch, options.repeats, device_rates)
    ]
    steps = [row for batch in options.batches for row in step_rows(batch, options.repeats)]
    print_table(cells(layers))
    print_table(cells(steps))
    figures = {"error": error, "rates": device_rates, "layers": layers, "steps": steps}
    RESULT.write_text(
        json.dumps({"command": command, "machine": machine(), **figures}, indent=2) + "\n"
    )
    print(f"written to {RESULT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
