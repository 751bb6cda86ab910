"""Every routing in the same layer, with the same weights and children, forward and backward.

"uniform" is the lowest cost that a routing can have. Each router takes the fastest implementation
that it has here; votes are stored for one that is written as a function of them.
"""

from collections.abc import Sequence

from benchmarks.layer import TOTAL, Sizes, add_sizes, passes_of, sizes_of, time_passes
from benchmarks.plots import add_plot, layer_bars, save
from benchmarks.report import Row, finish, make_parser, parse, run
from benchmarks.timing import Clock, add_timing, clock_of
from benchmarks.workload import add_import
from torchcaps.nn import list_routers


def benchmark_routers(
    sizes: Sizes,
    names: Sequence[str],
    repeats: int,
    clock: Clock,
) -> list[Row]:
    """Time routers in the same layer, by turns.

    Args:
        sizes: of the layer; `iterations` is passed to routers that take it.
        names: of `list_routers()`.
        repeats: number of runs of each; the median counts.
        clock: see `clock_of`.

    Returns:
        A row for each router: milliseconds forward, and forward and backward, and the latter over
        the time of "uniform", the router of the ablation.

    Raises:
        UnknownNameError: for a router that is not registered.
    """
    passes = {name: passes_of(sizes.routed(name), sizes) for name in [*names, "uniform"]}
    rows = time_passes(passes, repeats, clock)
    uniform = rows["uniform"][TOTAL]
    return [rows[name] | {"x uniform": rows[name][TOTAL] / uniform} for name in names]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "routers")
    add_sizes(parser)
    add_timing(parser)
    add_import(parser)
    add_plot(parser)
    parser.add_argument("--routers", nargs="+", metavar="NAME", help="all that are registered")
    options = parse(parser, arguments)
    names = options.routers or list_routers()
    rows = benchmark_routers(sizes_of(options), names, options.repeats, clock_of(options))
    save(options.plot, layer_bars, rows)
    return finish(options, {"rows": rows})


if __name__ == "__main__":
    run(main)
