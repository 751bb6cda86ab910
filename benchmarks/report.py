"""What all benchmarks share: flags, facts of the machine, tables and JSON files."""

import argparse
import datetime
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

import torchcaps as tc
from torchcaps.errors import TorchcapsError

CHECKOUT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]


def positive(text: str) -> int:
    """A whole number of at least 1, for flags."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def make_parser(
    description: str | None,
    name: str,
    threads: int | None = None,
) -> argparse.ArgumentParser:
    """A parser with the flags of every benchmark: `--threads`, `--output` and `--json`.

    Args:
        description: docstring of the module.
        name: of the benchmark and its file in benchmarks/results.
        threads: of torch by default; None for those that torch has.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--threads", type=positive, default=threads or torch.get_num_threads(), help="of torch"
    )
    output = RESULTS / f"{name}.json"
    about = f"file of the figures; by default benchmarks/results/{name}.json"
    parser.add_argument("--output", type=Path, default=output, metavar="JSON", help=about)
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The flags of a command line; torch gets its number of threads."""
    options = parser.parse_args(arguments)
    if options.output.is_dir():
        parser.error(f"--output: expected a file, got the folder {options.output}")
    torch.set_num_threads(options.threads)
    return options


def finish(options: argparse.Namespace, figures: Mapping[str, Any]) -> int:
    """Write figures with their settings and the machine, and print them; returns the status 0.

    Args:
        options: of `parse`.
        figures: ready for JSON; the table is that of "rows".
    """
    settings = {key: value for key, value in vars(options).items() if key not in ("output", "json")}
    document = {"settings": settings, "machine": machine(), **figures}
    write_json(options.output, document)
    if options.json:
        print(json.dumps(document, indent=2, default=str))
    else:
        print_table(figures["rows"])
    return 0


def run(main: Callable[[], int]) -> NoReturn:
    """Run a command to its exit status; an error is one sentence."""
    try:
        sys.exit(main())
    except (TorchcapsError, ValueError) as error:
        sys.exit(f"benchmarks: error: {error}")


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write indented JSON; a reader never sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=2, default=str) + "\n", encoding="utf-8")
    partial.replace(path)


def machine() -> dict[str, Any]:
    """Versions, hardware, load and date that figures belong to."""
    return {
        "torchcaps": tc.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "load_1min": os.getloadavg()[0] if sys.platform != "win32" else None,
        "date": datetime.date.today().isoformat(),
    }


def _processor() -> str:
    """Name of the processor; Linux tells it in a file."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows in aligned columns, the keys first."""
    table = cells(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def cells(rows: Sequence[Mapping[str, object]]) -> list[list[str]]:
    """Rows as text, with a heading: figures to three digits, a dash where there is none."""
    heads = list(dict.fromkeys(head for row in rows for head in row))
    return [heads, *([_cell(row.get(head)) for head in heads] for row in rows)]


def _cell(figure: object) -> str:
    """A figure, or several, as text."""
    if isinstance(figure, list):
        return " ".join(map(_cell, figure))
    if isinstance(figure, float):
        return f"{figure:.3g}" if abs(figure) < 100 else f"{figure:.0f}"
    return "-" if figure is None else str(figure)
