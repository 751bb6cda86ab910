"""A training step of any model by each implementation of its operators, by turns.

    python -m benchmarks.impls --model segcaps --impl numba reference --option num_classes=4

The peak memory of each, above that of a process with torch, is measured in a process of its own.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace

from benchmarks import timing
from benchmarks.report import Row, finish, make_parser, parse, run
from benchmarks.timing import Clock, add_timing, alternate, clock_of, in_fresh_process, spread
from benchmarks.workload import Workload, add_workload, training_step, workload_of
from torchcaps import ops
from torchcaps.training import keep_memory


def benchmark_impls(
    workload: Workload,
    impls: Sequence[ops.Impl],
    precision: str,
    repeats: int,
    clock: Clock,
) -> list[Row]:
    """A row for each implementation: time, images per second, memory."""
    subjects: dict[str, Workload] = {impl: replace(workload, impl=impl) for impl in impls}
    steps = {}
    for name, subject in subjects.items():
        model = subject.build()
        steps[name] = training_step(model, *subject.data(model), precision)
    rows = []
    for name, seconds in alternate(steps, repeats, clock=clock).items():
        row = {"impl": name, "precision": precision, **spread("ms", seconds)}
        row["img/s"] = 1e3 * workload.batch / row["ms"]
        if timing.can_measure_memory():
            arguments = {"workload": asdict(subjects[name]), "precision": precision}
            marks = in_fresh_process("workload", **arguments)
            row["peak MiB"] = marks["peak_mib"] - marks["before_mib"]
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "impls")
    add_workload(parser)
    add_timing(parser)
    parser.add_argument("--impl", nargs="+", choices=ops.IMPLS, default=["auto", "reference"])
    options = parse(parser, arguments)
    clock = clock_of(options)
    keep_memory()
    workload = workload_of(options)
    rows: list[Row] = []
    for precision in options.precision:
        rows += benchmark_impls(workload, options.impl, precision, options.repeats, clock)
    return finish(options, {"rows": rows})


if __name__ == "__main__":
    run(main)
