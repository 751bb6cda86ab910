"""Votes and routing alone, forward and backward, without the network around them: implementations, and routers.

`extra MiB` is the high-water mark of a forward and backward pass over what the process held before it.
"""

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn

from torchcaps.bench import timing
from torchcaps.bench.baselines import VARIANTS, iterations_of, select, unusable
from torchcaps.bench.timing import Clock, Log, Row, alternate, silent, spread
from torchcaps.errors import check_range
from torchcaps.nn import CapsuleLinear, create_router, list_routers, use_generator
from torchcaps.types import Capsules

COPIED, SIDE = 1 << 24, 1024  # numbers that are copied; rows of the matrices
Passes = tuple[Callable[[], None], Callable[[], None]]


class Work(NamedTuple):
    """Bytes read and written, and multiply-adds."""

    bytes: float
    products: float


class Rates(NamedTuple):
    """Bytes copied (read and written) per second, and multiply-adds of matrix products per second."""

    copy: float
    product: float


@dataclass(frozen=True)
class Sizes:
    """Of a routed layer and its input; by default the class capsules of the MNIST network. Raises ValueError for one
    below 1."""

    batch: int = 128
    children: int = 1152
    parents: int = 10
    dim: int = 16
    in_dim: int = 8
    iterations: int = 3

    def __post_init__(self) -> None:
        for field in fields(self):
            check_range(field.name, getattr(self, field.name), low=1)

    def layer(self) -> CapsuleLinear:
        """The reference layer of these sizes."""
        return self.routed("dynamic", impl="reference")

    def routed(self, routing: str, **options: Any) -> CapsuleLinear:
        """The layer of these sizes with a router by name; `iterations` goes to those that take such an option."""
        if "iterations" in inspect.signature(type(create_router(routing, **options))).parameters:
            options = {"iterations": self.iterations, **options}
        with use_generator(torch.Generator().manual_seed(0)):
            return CapsuleLinear(
                self.children, self.in_dim, self.parents, self.dim, routing, **options
            )


def layer_variants(sizes: Sizes, names: Sequence[str] = (), log: Log = silent) -> list[str]:
    """The variants asked for, or without any all that can run here; which ones cannot, and why, is logged."""
    return select("variant", names, VARIANTS, lambda: unusable(sizes.layer()), log)


def passes_of(variant: str | nn.Module, sizes: Sizes) -> Passes:
    """Functions that run a layer of these sizes, or the variant of this name, forward, and forward and backward."""
    layer = VARIANTS[variant].build(sizes.layer()) if isinstance(variant, str) else variant
    generator = torch.Generator().manual_seed(1)
    pose = (
        torch.randn(sizes.batch, sizes.children, sizes.in_dim, generator=generator) * 0.1
    ).requires_grad_()
    children = Capsules(pose, pose.detach().norm(dim=-1))
    upstream = torch.randn(sizes.batch, sizes.parents, sizes.dim, generator=generator)

    def forward() -> None:
        with torch.no_grad():
            layer(children)

    def both() -> None:
        layer.zero_grad(set_to_none=True)
        pose.grad = None
        parents = layer(children)
        ((parents.pose * upstream).sum() + parents.activation.sum()).backward()

    return forward, both


def benchmark_layers(
    sizes: Sizes,
    variants: Sequence[str],
    repeats: int,
    memory: bool,
    rates: Rates,
    clock: Clock,
    log: Log = silent,
) -> list[Row]:
    """A row for each variant: times, ratio to the reference, extra memory, share of the roofline."""
    rows = pass_rows({name: passes_of(name, sizes) for name in variants}, repeats, clock, log)
    bound = 1e3 * least_seconds(least_work(sizes.batch, sizes.layer()), rates)
    reference = rows["reference"]["forward+backward ms"] if "reference" in rows else None
    for name, row in rows.items():
        total = row["forward+backward ms"]
        row["x reference"] = None if reference is None else reference / total
        row["roofline ms"], row["of roofline"] = (
            (bound, bound / total) if VARIANTS[name].exact else (None, None)
        )
        if memory and timing.can_measure_memory():
            log(f"{name}: memory")
            memory_use = timing.in_fresh_process("layer", variant=name, sizes=asdict(sizes))
            row["extra MiB"] = memory_use["peak_mib"] - memory_use["before_mib"]
    return list(rows.values())


def pass_rows(passes: Mapping[str, Passes], repeats: int, clock: Clock, log: Log) -> dict[str, Row]:
    """Name -> a row: milliseconds forward, and forward and backward with quartiles; all take turns."""
    forward, whole = (
        alternate({name: pair[k] for name, pair in passes.items()}, repeats, clock=clock, log=log)
        for k in (0, 1)
    )
    return {
        name: {
            "variant": name,
            "forward ms": 1e3 * median(forward[name]),
            **spread("forward+backward ms", seconds),
        }
        for name, seconds in whole.items()
    }


def peak(variant: str, sizes: dict[str, Any]) -> dict[str, float]:
    """Resident memory in MiB before and during a forward and backward pass, after a first one to warm up."""
    both = passes_of(variant, Sizes(**sizes))[1]
    both()
    return timing.peak_of(both)


def least_work(batch: int, layer: CapsuleLinear) -> Work:
    """A forward and backward pass that recomputes votes in every pass, and reads no vote.

    Forward: votes in each of T passes, and in all but the first <u, V> and c u. Backward: T - 1 passes with votes, two
    inner products and a sum; then votes, two inner products a pass, dL/du, and the gradients of poses and weights.
    Bytes: poses and weights once per pass, their gradients once.
    """
    passes = iterations_of(layer)
    pairs = layer.in_capsules * layer.out_capsules * layer.out_dim  # numbers of a sample's votes
    votes = pairs * layer.in_dim
    forward = passes * votes + (2 * passes - 1) * pairs
    backward = (passes - 1) * (votes + 3 * pairs) + 3 * votes + 4 * (passes - 1) * pairs
    once = 4 * (batch * layer.in_capsules * layer.in_dim + layer.weight.numel())
    return Work(once * (2 * passes + 2), batch * (forward + backward))


def least_seconds(work: Work, rates: Rates) -> float:
    """The larger of the times of bytes and of products."""
    return max(work.bytes / rates.copy, work.products / rates.product)


def machine_rates(
    repeats: int, clock: Clock = time.perf_counter, copied: int = COPIED, side: int = SIDE
) -> Rates:
    """Rates of this machine's CPU in float32, with as many threads as torch uses; the fastest of the repeats."""
    x, y, a = torch.zeros(copied), torch.zeros(copied), torch.rand(side, side)
    seconds = alternate(
        {"copy": partial(y.copy_, x), "product": partial(torch.mm, a, a)}, repeats, clock=clock
    )
    return Rates(2 * x.nbytes / min(seconds["copy"]), side**3 / min(seconds["product"]))


def routers_known(names: Sequence[str] = ()) -> list[str]:
    """The routers asked for, or without any all that are registered. Raises UnknownNameError for one that is not."""
    return select("routing", names, list_routers())


def benchmark_routers(
    sizes: Sizes,
    names: Sequence[str],
    repeats: int,
    clock: Clock,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    log: Log = silent,
) -> list[Row]:
    """A row for each routing: milliseconds forward, and forward and backward, and those over the time of "uniform".

    Each takes the fastest implementation that it has here; one that is written as a function of votes has them stored.

    Args:
        sizes: of the layer; `iterations` goes to those that take such an option.
        names: of `list_routers()`; that of the ablation, "uniform", is timed in any case.
        repeats: runs of each, taking turns; the median counts.
        clock: see `timing.use_clock`.
        options: name -> options of that router.
        log: is called with a line on what is being measured.

    Raises:
        UnknownNameError: for a routing that is not registered. TypeError: for an option that it does not take.
    """
    options = options or {}
    timed = list(dict.fromkeys([*routers_known(names), "uniform"]))
    passes = {name: passes_of(sizes.routed(name, **options.get(name, {})), sizes) for name in timed}
    rows, total = pass_rows(passes, repeats, clock, log), "forward+backward ms"
    return [
        rows[name] | {"x uniform": rows[name][total] / rows["uniform"][total]} for name in names
    ]
