"""Images per second of one process and of several, of one thread each, that train CapsNet.

One training starts after the other, in turn, so that what else the machine does meets both; the
medians are reported. The batch is the same in all. The first of two epochs does not count.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.report import Row, finish, make_parser, parse, positive, run
from torchcaps.training import Run


def images_per_second(world: int, steps: int, batch_size: int) -> float:
    """Of a training by so many processes, in its second epoch."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        line += [f"--nproc-per-node={world}", "-m", "torchcaps", "train", "capsnet"]
        line += ["--data", "digits", "--holdout", "10", "--epochs", "2", "--device", "cpu"]
        line += ["--epoch-size", str(steps * batch_size), "--batch-size", str(batch_size)]
        line += ["--threads", "1", "--output", f"{folder}/run"]
        environ = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(line, env=environ, check=True, capture_output=True)
        return float(Run(Path(folder) / "run").epochs[-1]["images_per_second"])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "processes", threads=1)
    parser.add_argument("--world", type=positive, default=2, help="processes beside one")
    parser.add_argument("--steps", type=positive, default=10, help="of an epoch")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--batch-size", type=positive, default=128)
    options = parse(parser, arguments)
    worlds = (1, options.world)
    speeds: dict[int, list[float]] = {world: [] for world in worlds}
    for _ in range(options.rounds):
        for world in worlds:
            speeds[world].append(images_per_second(world, options.steps, options.batch_size))
    rows: list[Row] = []
    for world in worlds:
        rows.append({"processes": world, "images/s": median(speeds[world]), "all": speeds[world]})
    pairs = zip(*speeds.values(), strict=True)
    return finish(options, {"rows": rows, "speedup": median(many / one for one, many in pairs)})


if __name__ == "__main__":
    run(main)
