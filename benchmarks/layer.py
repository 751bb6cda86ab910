"""Votes and routing alone, forward and backward, without the network around them.

`extra MiB` is the high-water mark of a forward and backward pass over what the process held before.
"""

import argparse
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks import timing
from benchmarks.baselines import VARIANTS, iterations_of, usable, verify
from benchmarks.plots import add_plot, layer_bars, save
from benchmarks.report import Row, finish, make_parser, parse, positive, run
from benchmarks.timing import Clock, add_timing, alternate, clock_of, spread
from torchcaps import Capsules
from torchcaps.nn import CapsuleLinear, create_router, use_generator

NUM_COPIED = 1 << 24  # numbers that are copied to measure a machine
MATRIX_SIZE = 1024  # rows of the matrices that are multiplied
TOTAL = "forward+backward ms"
Passes = tuple[Callable[[], None], Callable[[], None]]
"""Functions that run a layer forward, and forward and backward."""


class Work(NamedTuple):
    """Bytes read and written, and multiply-adds."""

    bytes: float
    products: float


class Rates(NamedTuple):
    """Bytes copied (read and written), and multiply-adds of matrix products, per second."""

    copy: float
    product: float


@dataclass(frozen=True)
class Sizes:
    """Of a routed layer and its input; by default the class capsules of the MNIST network."""

    batch: int = 128
    children: int = 1152
    parents: int = 10
    dim: int = 16
    in_dim: int = 8
    iterations: int = 3

    def layer(self) -> CapsuleLinear:
        """The reference layer of these sizes."""
        return self.routed("dynamic", impl="reference")

    def routed(self, routing: str, **options: Any) -> CapsuleLinear:
        """The layer of these sizes with a router by name.

        Args:
            routing: of `list_routers()`.
            options: of the router; `iterations` is passed to those that take it.
        """
        router = create_router(routing, **options)
        if "iterations" in inspect.signature(type(router)).parameters:
            options = {"iterations": self.iterations, **options}
        with use_generator(torch.Generator().manual_seed(0)):
            return CapsuleLinear(
                self.children,
                self.in_dim,
                self.parents,
                self.dim,
                routing,
                **options,
            )


def passes_of(variant: str | nn.Module, sizes: Sizes) -> Passes:
    """The passes of a layer of these sizes, or of the variant of this name."""
    layer = variant
    if isinstance(layer, str):
        layer = VARIANTS[layer].build(sizes.layer())
    generator = torch.Generator().manual_seed(1)
    pose = 0.1 * torch.randn(sizes.batch, sizes.children, sizes.in_dim, generator=generator)
    pose.requires_grad_()
    children = Capsules(pose, pose.detach().norm(dim=-1))
    upstream = torch.randn(sizes.batch, sizes.parents, sizes.dim, generator=generator)

    def forward() -> None:
        with torch.no_grad():
            layer(children)

    def forward_backward() -> None:
        layer.zero_grad(set_to_none=True)
        pose.grad = None
        parents = layer(children)
        ((parents.pose * upstream).sum() + parents.activation.sum()).backward()

    return forward, forward_backward


def benchmark_layers(
    sizes: Sizes,
    variants: Sequence[str],
    repeats: int,
    memory: bool,
    rates: Rates,
    clock: Clock,
) -> list[Row]:
    """Time the passes of layers by turns, and measure the peak memory of each in a fresh process.

    Args:
        sizes: of the layers.
        variants: their names.
        repeats: number of runs of each.
        memory: whether memory is measured, where the system can.
        rates: of the machine, see `machine_rates`.
        clock: see `clock_of`.

    Returns:
        A row for each variant: times, ratio to the reference, share of the roofline, extra memory.
    """
    rows = time_passes({name: passes_of(name, sizes) for name in variants}, repeats, clock)
    roofline = 1e3 * least_seconds(least_work(sizes.batch, sizes.layer()), rates)
    for name, row in rows.items():
        ratios = dict.fromkeys(("x reference", "roofline ms", "of roofline"))
        if "reference" in rows:
            ratios["x reference"] = rows["reference"][TOTAL] / row[TOTAL]
        if VARIANTS[name].exact:
            ratios["roofline ms"] = roofline
            ratios["of roofline"] = roofline / row[TOTAL]
        row.update(ratios)
        if memory and timing.can_measure_memory():
            marks = timing.in_fresh_process("layer", variant=name, sizes=asdict(sizes))
            row["extra MiB"] = marks["peak_mib"] - marks["before_mib"]
    return list(rows.values())


def time_passes(passes: Mapping[str, Passes], repeats: int, clock: Clock) -> dict[str, Row]:
    """A row for each name: milliseconds forward, and forward and backward with quartiles."""
    forward = {name: pair[0] for name, pair in passes.items()}
    forward_backward = {name: pair[1] for name, pair in passes.items()}
    forward_seconds = alternate(forward, repeats, clock=clock)
    rows = {}
    for name, seconds in alternate(forward_backward, repeats, clock=clock).items():
        forward_ms = 1e3 * median(forward_seconds[name])
        rows[name] = {"variant": name, "forward ms": forward_ms, **spread(TOTAL, seconds)}
    return rows


def peak(variant: str, sizes: dict[str, Any]) -> dict[str, float]:
    """Resident memory in MiB before and during both passes, after a first run to warm up."""
    forward_backward = passes_of(variant, Sizes(**sizes))[1]
    forward_backward()
    return timing.peak_of(forward_backward)


def least_work(batch: int, layer: CapsuleLinear) -> Work:
    """A forward and backward pass that recomputes votes in every pass, and reads no vote.

    Forward: votes in each of T passes, and in all but the first <u, V> and c u. Backward: T - 1
    passes with votes, two inner products and a sum; then votes, two inner products a pass, dL/du,
    and the gradients of poses and weights. Bytes: poses and weights once per pass, their gradients
    once.
    """
    passes = iterations_of(layer)
    pairs = layer.in_capsules * layer.out_capsules * layer.out_dim  # numbers of a sample's votes
    votes = pairs * layer.in_dim
    forward = passes * votes + (2 * passes - 1) * pairs
    backward = (passes - 1) * (votes + 3 * pairs) + 3 * votes + 4 * (passes - 1) * pairs
    bytes_per_pass = 4 * (batch * layer.in_capsules * layer.in_dim + layer.weight.numel())
    return Work(bytes_per_pass * (2 * passes + 2), batch * (forward + backward))


def least_seconds(work: Work, rates: Rates) -> float:
    """The larger of the times of bytes and of products: the roofline."""
    return max(work.bytes / rates.copy, work.products / rates.product)


def machine_rates(
    repeats: int,
    clock: Clock = time.perf_counter,
    num_copied: int = NUM_COPIED,
    matrix_size: int = MATRIX_SIZE,
) -> Rates:
    """Rates of this machine's CPU in float32, with as many threads as torch uses.

    The fastest of the repeats counts.
    """
    source = torch.zeros(num_copied)
    target = torch.zeros(num_copied)
    matrix = torch.rand(matrix_size, matrix_size)
    work = {"copy": partial(target.copy_, source), "product": partial(torch.mm, matrix, matrix)}
    seconds = alternate(work, repeats, clock=clock)
    num_products = matrix_size**3
    return Rates(2 * source.nbytes / min(seconds["copy"]), num_products / min(seconds["product"]))


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each of the sizes of a layer."""
    for field in fields(Sizes):
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=positive, default=field.default, help="of the layer")


def sizes_of(options: argparse.Namespace) -> Sizes:
    """The sizes of a command line."""
    return Sizes(**{field.name: getattr(options, field.name) for field in fields(Sizes)})


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "layer")
    add_sizes(parser)
    add_timing(parser)
    add_plot(parser)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, help="all that run here")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="time alone")
    options = parse(parser, arguments)
    clock = clock_of(options)
    sizes = sizes_of(options)
    layer = sizes.layer()
    variants = options.variants or usable(layer)
    errors = verify(variants, layer)
    rates = machine_rates(options.repeats, clock)
    rows = benchmark_layers(sizes, variants, options.repeats, options.memory, rates, clock)
    save(options.plot, layer_bars, rows)
    return finish(options, {"rows": rows, "errors": errors, "rates": rates._asdict()})


if __name__ == "__main__":
    run(main)
