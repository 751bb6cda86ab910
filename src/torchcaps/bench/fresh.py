"""What is measured in a process of its own; the benchmarks run it: `python -m torchcaps.bench.fresh ORDER`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch

from torchcaps.bench import layer, memory, step

WORK: dict[str, Callable[..., dict[str, float]]] = {"step": step.peak, "layer": layer.peak, "training": memory.peak}


def main() -> None:
    """Do what the order (JSON: work, threads, arguments) says, and print what was found as one line of JSON."""
    order = json.loads(sys.argv[1])
    torch.set_num_threads(order["threads"])
    print(json.dumps(WORK[order["work"]](**order["arguments"])))


if __name__ == "__main__":
    main()
