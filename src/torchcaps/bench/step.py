"""One training step of a network, the class-capsule layer being swapped: how much does routing cost?

Step: the library's model and its task (margin loss and reconstruction), fused Adam, images in channels-last, as
`torchcaps train` does it. Layers that are not this library's get torch's own convolution before them, and the C
library's own allocator; this library's get what `torchcaps train` gives them. `limit` and `limit-torch` are the plain
linear layer in either surrounding, and the tax is counted over the one in the same. `textbook-network` is another
network of as many weights, with a step of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from torchcaps.bench import timing
from torchcaps.bench.baselines import (
    VARIANTS,
    check_errors,
    largest_error,
    select,
    unusable,
    verify,
)
from torchcaps.bench.timing import Clock, Log, Row, alternate, silent, spread
from torchcaps.bench.workload import (
    TextbookNetwork,
    Workload,
    replicable,
    routed_layer,
    textbook_step,
    training_step,
)
from torchcaps.evaluation.base import capsule_model
from torchcaps.nn import set_impl
from torchcaps.training.allocator import give_memory_back, keep_memory

NETWORK, TORCH_LIMIT = "textbook-network", "limit-torch"
STEPS = (*VARIANTS, TORCH_LIMIT, NETWORK)
FOREIGN = (
    TORCH_LIMIT,
    "einsum",
    "textbook",
    NETWORK,
)  # steps in the surroundings that other code has


def step_variants(workload: Workload, names: Sequence[str] = (), log: Log = silent) -> list[str]:
    """The variants asked for, or without any all that can run here; which ones cannot, and why, is logged. Raises
    UnknownNameError for one that does not exist, and ValueError for a model that none can be built for."""

    def reasons() -> dict[str, str]:
        model = workload.build()
        network = "the tutorials' network is a capsnet with a decoder for 28x28 images"
        return unusable(routed_layer(model)[1]) | ({} if replicable(model) else {NETWORK: network})

    return select("variant", names, STEPS, reasons, log)


def verify_steps(variants: Sequence[str], workload: Workload) -> dict[str, float]:
    """Largest relative error of each exact variant, the textbook network too. Raises WrongResultError as `verify`."""
    model = workload.build()
    errors = verify([name for name in variants if name in VARIANTS], routed_layer(model)[1])
    if NETWORK in variants:
        images, labels = replace(workload, batch=2).data(model)
        network = capsule_model(model, decoder=True)
        with torch.no_grad():
            outputs = TextbookNetwork(model)(images, labels)
            capsules = network.capsules(images)
            drawn = network.reconstruct(capsules, labels).flatten(1)
        errors |= check_errors({NETWORK: largest_error(outputs, (capsules.activation, drawn))})
    return errors


def step_of(variant: str, workload: Workload, precision: str) -> Callable[[], None]:
    """A function that runs one training step with this class-capsule layer."""
    model = workload.build()
    images, labels = workload.data(model)
    if variant == NETWORK:
        return textbook_step(model, images, labels, precision)
    if variant in FOREIGN:
        set_impl(model, "reference")
    place, layer = routed_layer(model)
    model.set_submodule(
        place, VARIANTS["limit" if variant == TORCH_LIMIT else variant].build(layer)
    )
    return training_step(model, images, labels, precision)


def benchmark_steps(
    workload: Workload,
    variants: Sequence[str],
    precisions: Sequence[str],
    repeats: int,
    memory: bool,
    clock: Clock,
    log: Log = silent,
) -> list[Row]:
    """A row for each variant and precision: time, images per second, ratios, peak memory of a process of its own."""
    rows: list[Row] = []
    for precision in precisions:
        work = {name: step_of(name, workload, precision) for name in variants}
        seconds = alternate(
            work, repeats, clock=clock, log=_prefixed(log, precision), settle=_surround
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


def _surround(variant: str, run: Callable[[], object]) -> None:
    """Set the allocator as this variant has it, and run it once, untimed, until it holds the memory it needs."""
    (give_memory_back if variant in FOREIGN else keep_memory)()
    run()


def peak(variant: str, workload: dict[str, Any], precision: str) -> dict[str, float]:
    """Resident memory in MiB before and during a step, after a first one to warm up."""
    step = step_of(variant, Workload(**workload), precision)
    step()
    return timing.peak_of(step)


def _add_ratios(rows: list[Row]) -> None:
    """Time over that of the limit in the same surroundings; times of other code over the row's time."""
    time_of = {(row["variant"], row["precision"]): row["ms"] for row in rows}
    for row in rows:
        time, precision = row["ms"], row["precision"]
        limit = time_of.get((TORCH_LIMIT if row["variant"] in FOREIGN else "limit", precision))
        row["tax"] = None if limit is None else time / limit
        for head, other in (
            ("x limit-torch", (TORCH_LIMIT, precision)),
            ("x textbook", ("textbook", precision)),
            ("x einsum", ("einsum", precision)),
            ("x textbook fp32", ("textbook", "fp32")),
            ("x network fp32", (NETWORK, "fp32")),
        ):
            row[head] = time_of[other] / time if other in time_of else None


def _add_memory(rows: list[Row], workload: Workload, log: Log) -> None:
    for row in rows:
        log(f"{row['precision']}, {row['variant']}: memory")
        case = {"variant": row["variant"], "precision": row["precision"]}
        row["peak MiB"] = timing.in_fresh_process("step", workload=asdict(workload), **case)[
            "peak_mib"
        ]
    limits = {row["precision"]: row["peak MiB"] for row in rows if row["variant"] == TORCH_LIMIT}
    for row in rows:
        limit = limits.get(row["precision"])
        row["above limit-torch MiB"] = None if limit is None else row["peak MiB"] - limit


def _prefixed(log: Log, prefix: str) -> Log:
    return lambda text: log(f"{prefix}, {text}")
