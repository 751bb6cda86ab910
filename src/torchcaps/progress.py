"""A bar on stderr, and the row of an epoch as lines above it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """A bar on stderr that vanishes when done; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    with Progress(
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        yield bar


def print_above(bar: Progress, line: str) -> None:
    """Print a line above the bar."""
    bar.console.print(line, highlight=False, markup=False, soft_wrap=True)


def epoch_lines(row: dict[str, Any]) -> str:
    """`epoch 2/8  training: loss 0.0453, accuracy 97.10%  validation: ...`, and warnings."""
    parts = [f"epoch {row['epoch']}/{row['epochs']}"]
    for title, prefix in (("training", "train_"), ("validation", "val_")):
        metrics = [
            _format_metric(name.removeprefix(prefix), metric)
            for name, metric in row.items()
            if name.startswith(prefix)
        ]
        parts.append(f"{title}: {', '.join(metrics)}")
    parts.append(f"{row['images_per_second']:.0f} images/s")
    lines = ["  ".join(parts)]
    lines += [f"warning: {text}" for text in row["warnings"]]
    return "\n".join(lines)


def _format_metric(name: str, metric: float) -> str:
    """`accuracy 97.10%`, `loss 0.0453`."""
    number = f"{metric:.2%}" if name.endswith("accuracy") else f"{metric:.4f}"
    return f"{name.replace('_', ' ')} {number}"
