"""One training step of a network, with its class-capsule layer swapped: how much does routing cost?

The step is that of `torchcaps train`: the library's model and its task (margin loss and
reconstruction), fused Adam, images in channels-last memory. Layers that are not this library's get
torch's own convolution before them, and the C library's own allocator; this library's get what
`torchcaps train` gives them. `limit` and `limit-torch` are the plain linear layer in either
surrounding, and the tax is counted over the one in the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from torchcaps.bench import timing
from torchcaps.bench.baselines import VARIANTS, select, unusable, verify
from torchcaps.bench.timing import Clock, Log, Row, alternate, silent, spread
from torchcaps.bench.workload import Workload, routed_layer, training_step
from torchcaps.nn import set_impl
from torchcaps.training.allocator import give_memory_back, keep_memory

TORCH_LIMIT = "limit-torch"
STEPS = (*VARIANTS, TORCH_LIMIT)
FOREIGN = (TORCH_LIMIT, "einsum", "textbook")  # steps in the surroundings that other code has
BASES = {  # heading of a ratio -> variant and precision (None: the row's own) it is taken over
    "x limit-torch": (TORCH_LIMIT, None),
    "x textbook": ("textbook", None),
    "x einsum": ("einsum", None),
    "x textbook fp32": ("textbook", "fp32"),
}


def step_variants(workload: Workload, names: Sequence[str] = (), log: Log = silent) -> list[str]:
    """The variants of these names; without any, all that can run here.

    Those that cannot are logged with the reason. Raises UnknownNameError for one that does not
    exist, and ArgumentError for a model that none can be built for.
    """
    return select("variant", names, STEPS, lambda: unusable(routed_layer(workload.build())[1]), log)


def verify_steps(variants: Sequence[str], workload: Workload) -> dict[str, float]:
    """Largest relative error of each exact variant; see `verify`."""
    layer = routed_layer(workload.build())[1]
    return verify([name for name in variants if name in VARIANTS], layer)


def step_of(variant: str, workload: Workload, precision: str) -> Callable[[], None]:
    """A function that makes one training step with this class-capsule layer."""
    model = workload.build()
    if variant in FOREIGN:
        set_impl(model, "reference")
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
    log: Log = silent,
) -> list[Row]:
    """Time training steps by turns, and measure the peak memory of each in a fresh process.

    Args:
        workload: the model and the batch.
        variants: names of class-capsule layers, see `step_variants`.
        precisions: "fp32", "bf16" or both.
        repeats: number of runs of each.
        memory: whether memory is measured, where the system can.
        clock: see `timing.use_clock`.
        log: called with a line about the work that begins.

    Returns:
        A row for each variant and precision: time, images per second, ratios, memory.
    """
    rows: list[Row] = []
    for precision in precisions:
        work = {name: step_of(name, workload, precision) for name in variants}
        seconds = alternate(
            work,
            repeats,
            clock=clock,
            log=_prefixed(log, precision),
            settle=_settle_allocator,
        )
        give_memory_back()
        del work
        for name in variants:
            row = {"variant": name, "precision": precision, **spread("ms", seconds[name])}
            rows.append(row | {"img/s": 1e3 * workload.batch / row["ms"]})
    _add_ratios(rows)
    if memory and timing.can_measure_memory():
        _add_memory(rows, workload, log)
    return rows


def _prefixed(log: Log, prefix: str) -> Log:
    """A log whose lines begin with a prefix."""
    return lambda line: log(f"{prefix}, {line}")


def _settle_allocator(variant: str, run: Callable[[], object]) -> None:
    """Set the allocator as this variant has it, and run until it holds the memory it needs."""
    if variant in FOREIGN:
        give_memory_back()
    else:
        keep_memory()
    run()


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


def _add_memory(rows: list[Row], workload: Workload, log: Log) -> None:
    """Add the peak memory of each step, and what it is above that of the limit."""
    limits = {}
    for row in rows:
        variant = row["variant"]
        precision = row["precision"]
        log(f"{precision}, {variant}: memory")
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
