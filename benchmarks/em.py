"""A training step of the small matrix-capsule network: compiled loops, blocks of samples, and every vote stored.

    python -m benchmarks.em [--batch 32] [--repeats 5]

The three take turns in one process; the peak memory of each is measured in a process of its own. The result goes to
benchmarks/results/em.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from torchcaps.bench import Workload
from torchcaps.bench.timing import Row, alternate, cells, in_fresh_process, machine, spread
from torchcaps.bench.workload import training_step
from torchcaps.errors import check_range

RESULT = Path(__file__).parent / "results" / "em.json"
IMPLS, ITERATIONS, PRECISION = ("numba", "blocked", "reference"), (2, 3), "bf16"


def measure(iterations: int, batch: int, repeats: int) -> list[Row]:
    """A row for each implementation."""
    workloads = {
        impl: Workload(
            "matrix_caps_small",
            {
                "iterations": iterations,
                "impl": impl,
                "in_chans": 1,
                "img_size": 28,
                "num_classes": 10,
            },
            batch,
        )
        for impl in IMPLS
    }
    models = {impl: workload.build() for impl, workload in workloads.items()}
    images, labels = workloads[IMPLS[0]].data(models[IMPLS[0]])
    work = {impl: training_step(model, images, labels, PRECISION) for impl, model in models.items()}
    seconds = alternate(work, repeats)
    rows = []
    for impl, workload in workloads.items():
        times = spread("ms", seconds[impl])
        memory = in_fresh_process("memory", workload=asdict(workload), precision=PRECISION)
        rows.append(
            {
                "iterations": iterations,
                "impl": impl,
                **times,
                "img/s": 1e3 * batch / times["ms"],
                "peak MiB": memory["peak_mib"] - memory["before_mib"],
            }
        )
    return rows


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=32, help="images in a step")
    parser.add_argument("--repeats", type=int, default=5, help="steps of each that are timed")
    options = parser.parse_args(arguments)
    try:
        check_range("--batch", options.batch, low=1)
        check_range("--repeats", options.repeats, low=1)
    except ValueError as error:
        parser.error(str(error))
    rows = [
        row
        for iterations in ITERATIONS
        for row in measure(iterations, options.batch, options.repeats)
    ]
    for line in cells(rows):
        print("".join(f"{cell:>12}" for cell in line))
    settings = {"batch": options.batch, "repeats": options.repeats, "precision": PRECISION}
    RESULT.write_text(
        json.dumps({"machine": machine(), "settings": settings, "rows": rows}, indent=2) + "\n",
        encoding="utf-8",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
