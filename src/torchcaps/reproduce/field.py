"""The field's comparison: every system on the same data, with its routing and without it, as a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from torchcaps.report.run import can_plot, save_figure
from torchcaps.reproduce.run import Result
from torchcaps.reproduce.table import markdown, over_seeds
from torchcaps.training.checkpoint import atomic

PREFIX = "field-"  # of the recipes that make it, one for each data set
WITHOUT = ", uniform coupling"  # ending of the row of a system whose couplings are all equal
HEADING = (
    "system", "parameters", "products", "accuracy", "without routing", "seeds", "epochs", "images/s", "training",
)  # fmt: skip


def field_tables(results: Sequence[Result]) -> dict[str, list[tuple[str, ...]]]:
    """Data set -> a heading, and a line for each system: the most accurate first.

    Products are millions of multiply-adds that an image takes; accuracies are of test images, mean ± standard deviation
    over seeds; images/s and minutes are of training.
    """
    tables = {}
    for recipe, rows in _by_data(results).items():
        systems = [name for name in rows if not name.endswith(WITHOUT)]
        systems.sort(key=lambda name: -mean(_accuracies(rows[name])))
        lines = [_line(name, rows[name], rows.get(name + WITHOUT, [])) for name in systems]
        tables[recipe.removeprefix(PREFIX)] = [HEADING, *lines]
    return tables


def write_field(results: Sequence[Result], output: str | Path) -> list[Path]:
    """Write `field.md`, and `field.png` where matplotlib is installed, into a folder; the files written.

    Raises:
        TrainingError: if they cannot be written.
    """
    path = Path(output) / "field.md"
    with atomic(path) as partial:
        parts = [f"## {data}\n\n{markdown(rows)}\n" for data, rows in field_tables(results).items()]
        partial.write_text("# The field, measured\n\n" + "\n".join(parts), encoding="utf-8")
    return [path, *([_picture(results, Path(output) / "field.png")] if can_plot() else [])]


def _picture(results: Sequence[Result], path: Path) -> Path:
    from torchcaps import viz

    panels = {
        recipe.removeprefix(PREFIX): {
            name: (mean(r.seconds for r in group) / 60, _accuracies(group))
            for name, group in rows.items() if not name.endswith(WITHOUT)
        }
        for recipe, rows in _by_data(results).items()
    }  # fmt: skip
    return save_figure(viz.accuracy_against_time(panels), path)


def _by_data(results: Sequence[Result]) -> dict[str, dict[str, list[Result]]]:
    found: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        if result.recipe.startswith(PREFIX):
            found.setdefault(result.recipe, {}).setdefault(result.row, []).append(result)
    return found


def _accuracies(group: Sequence[Result]) -> list[float]:
    return [1 - float(result.figures["error"]) for result in group]


def _line(name: str, group: Sequence[Result], without: Sequence[Result]) -> tuple[str, ...]:
    first, speeds = group[0], [r.images_per_second for r in group if r.images_per_second]
    products = first.figures.get("products")
    return (
        name, f"{first.parameters:,}", "-" if products is None else f"{products / 1e6:,.1f} M",
        over_seeds("accuracy", _accuracies(group)), over_seeds("accuracy", _accuracies(without)), str(len(group)),
        str(first.epochs), f"{mean(speeds):,.0f}" if speeds else "-", f"{mean(r.seconds for r in group) / 60:.1f} min",
    )  # fmt: skip
