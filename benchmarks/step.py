"""One training step of a network, with its class-capsule layer swapped: how much does routing cost?

The step is that of `torchcaps train`: the library's model and its task (margin loss and
reconstruction), fused Adam, images in channels-last memory. Layers that are not this library's get
torch's own convolution before them, and the C library's own allocator; this library's get what
`torchcaps train` gives them. `limit` and `limit-torch` are the plain linear layer in either
surrounding, and the tax is counted over the one in the same.
"""

import ctypes
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from torch import nn

from benchmarks import timing
from benchmarks.baselines import VARIANTS, iterations_of, usable, verify
from benchmarks.plots import add_plot, save, throughput_bars
from benchmarks.report import Row, finish, make_parser, parse, run
from benchmarks.timing import Clock, add_timing, alternate, clock_of, spread
from benchmarks.workload import Workload, add_workload, training_step, workload_of
from torchcaps.nn import CapsuleLinear
from torchcaps.training import keep_memory

TORCH_LIMIT = "limit-torch"
STEPS = (*VARIANTS, TORCH_LIMIT)
FOREIGN = (TORCH_LIMIT, "einsum", "textbook")  # steps in the surroundings that other code has
# By number of malloc.h: M_MMAP_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD.
GLIBC_DEFAULTS = {-4: 65536, -3: 32 << 20, -1: 64 << 20, -2: 1 << 17}
BASES = {  # heading of a ratio -> variant and precision (None: the row's own) it is taken over
    "x limit-torch": (TORCH_LIMIT, None),
    "x textbook": ("textbook", None),
    "x einsum": ("einsum", None),
    "x textbook fp32": ("textbook", "fp32"),
}


def routed_layer(model: nn.Module) -> tuple[str, CapsuleLinear]:
    """Name and module of a model's last capsule layer, which variants take the place of.

    Raises ValueError if there is none, or one whose routing the variants do not compute.
    """
    layers = [pair for pair in model.named_modules() if isinstance(pair[1], CapsuleLinear)]
    if not layers:
        kind = type(model).__name__
        raise ValueError(f"model: expected one with a CapsuleLinear, got {kind}")
    name, layer = layers[-1]
    assert isinstance(layer, CapsuleLinear)
    iterations_of(layer)
    return name, layer


def step_of(variant: str, workload: Workload, precision: str) -> Callable[[], None]:
    """A function that makes one training step with this class-capsule layer."""
    if variant in FOREIGN:
        workload = replace(workload, impl="reference")
    model = workload.build()
    name, layer = routed_layer(model)
    baseline = VARIANTS[variant.removesuffix("-torch")]
    model.set_submodule(name, baseline.build(layer))
    return training_step(model, *workload.data(model), precision)


def benchmark_steps(
    workload: Workload,
    variants: Sequence[str],
    precisions: Sequence[str],
    repeats: int,
    memory: bool,
    clock: Clock,
) -> list[Row]:
    """Time training steps by turns, and measure the peak memory of each in a fresh process.

    Args:
        workload: the model and the batch.
        variants: names of class-capsule layers.
        precisions: "fp32", "bf16" or both.
        repeats: number of runs of each.
        memory: whether memory is measured, where the system can.
        clock: see `clock_of`.

    Returns:
        A row for each variant and precision: time, images per second, ratios, memory.
    """
    rows: list[Row] = []
    for precision in precisions:
        work = {name: step_of(name, workload, precision) for name in variants}
        seconds = alternate(work, repeats, clock=clock, settle=_settle_allocator)
        give_memory_back()
        del work
        for name in variants:
            row = {"variant": name, "precision": precision, **spread("ms", seconds[name])}
            rows.append(row | {"img/s": 1e3 * workload.batch / row["ms"]})
    _add_ratios(rows)
    if memory and timing.can_measure_memory():
        _add_memory(rows, workload)
    return rows


def _settle_allocator(variant: str, run: Callable[[], object]) -> None:
    """Set the allocator as this variant has it, and run until it holds the memory it needs."""
    if variant in FOREIGN:
        give_memory_back()
    else:
        keep_memory()
    run()


def give_memory_back() -> None:
    """Undo `keep_memory`: what glibc comes to by itself once large blocks have come and gone."""
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        for key, number in GLIBC_DEFAULTS.items():
            mallopt(key, number)


def peak(variant: str, workload: dict[str, Any], precision: str) -> dict[str, float]:
    """Resident memory in MiB before and during a step, after a first one to warm up."""
    step = step_of(variant, Workload(**workload), precision)
    step()
    return timing.peak_of(step)


def _add_ratios(rows: list[Row]) -> None:
    """Add the tax, which is time over that of the limit in the same surroundings, and ratios."""
    times = {(row["variant"], row["precision"]): row["ms"] for row in rows}
    for row in rows:
        limit = TORCH_LIMIT if row["variant"] in FOREIGN else "limit"
        limit_time = times.get((limit, row["precision"]))
        row["tax"] = limit_time and row["ms"] / limit_time
        for head, (variant, precision) in BASES.items():
            time = times.get((variant, precision or row["precision"]))
            row[head] = time and time / row["ms"]


def _add_memory(rows: list[Row], workload: Workload) -> None:
    """Add the peak memory of each step, and what it is above that of the limit."""
    limits = {}
    for row in rows:
        variant = row["variant"]
        precision = row["precision"]
        memory = timing.in_fresh_process(
            "step",
            workload=asdict(workload),
            variant=variant,
            precision=precision,
        )
        row["peak MiB"] = memory["peak_mib"]
        if variant == TORCH_LIMIT:
            limits[precision] = memory["peak_mib"]
    for row in rows:
        limit = limits.get(row["precision"])
        row["above limit-torch MiB"] = limit and row["peak MiB"] - limit


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "step")
    add_workload(parser)
    add_timing(parser)
    add_plot(parser)
    parser.add_argument("--variants", nargs="+", choices=STEPS, help="all that run here")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="time alone")
    options = parse(parser, arguments)
    clock = clock_of(options)
    workload = workload_of(options)
    _, layer = routed_layer(workload.build())
    variants = options.variants or [*usable(layer), TORCH_LIMIT]
    errors = verify([name for name in variants if name in VARIANTS], layer)
    rows = benchmark_steps(
        workload, variants, options.precision, options.repeats, options.memory, clock
    )
    save(options.plot, throughput_bars, rows)
    return finish(options, {"rows": rows, "errors": errors})


if __name__ == "__main__":
    run(main)
