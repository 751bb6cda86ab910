"""A training step of SegCaps: routing on maps in compiled loops, and in torch operations.

    python -m benchmarks.maps [--side 32] [--dim 4] [--batch 16] [--repeats 9] [--threads 2]

The two take turns in one process. The result goes to benchmarks/results/maps.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import torchcaps
from torchcaps import ops
from torchcaps.bench.timing import alternate, cells, machine, spread
from torchcaps.errors import check_range
from torchcaps.training import keep_memory

RESULT = Path(__file__).parent / "results" / "maps.json"
IMPLS: tuple[ops.Impl, ...] = ("numba", "reference")


def step(model: torch.nn.Module, images: torch.Tensor) -> None:
    """Forward under bfloat16 autocast, and back."""
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(images)
    outputs.float().square().mean().backward()


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default, help_text in (
        ("side", 32, "of an image"),
        ("dim", 4, "of the smallest capsules; 16 is published"),
        ("batch", 16, "images in a step"),
        ("repeats", 9, "steps of each that are timed"),
        ("threads", 2, "of torch"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=help_text)
    options = parser.parse_args(arguments)
    try:
        for name, number in vars(options).items():
            check_range(f"--{name}", number, low=1)
    except ValueError as error:
        parser.error(str(error))
    torch.set_num_threads(options.threads)
    keep_memory()
    torch.manual_seed(0)
    images = torch.rand(options.batch, 1, options.side, options.side)
    work: dict[str, Callable[[], object]] = {}
    for impl in IMPLS:
        size = (options.side, options.side)
        model = torchcaps.create_model(
            "segcaps", num_classes=4, in_chans=1, img_size=size, dim=options.dim
        )
        torchcaps.set_impl(model, impl)
        work[impl] = partial(step, model, images)
    rows = []
    for impl_name, times in alternate(work, options.repeats).items():
        timing = spread("ms", times)
        rows.append({"impl": impl_name, **timing, "img/s": 1e3 * options.batch / timing["ms"]})
    for line in cells(rows):
        print("".join(f"{cell:>12}" for cell in line))
    report = {"machine": machine(), "settings": vars(options), "rows": rows}
    RESULT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
