"""The field's comparison: every system on the same data, with its routing and without it, as a table and a picture."""

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
Rows = dict[str, list[Result]]


def field_tables(results: Sequence[Result]) -> dict[str, list[tuple[str, ...]]]:
    """Data set -> a heading, and a line for each system: the most accurate first.

    Products are millions of multiply-adds that an image takes; accuracies are of test images, mean ± standard deviation
    over seeds; images/s and minutes are of training.
    """
    tables = {}
    for data, (systems, without) in _by_data(results).items():
        names = sorted(systems, key=lambda name: -mean(_accuracies(systems[name])))
        tables[data] = [HEADING, *(_line(name, systems[name], without.get(name, [])) for name in names)]
    return tables


def write_field(results: Sequence[Result], output: str | Path) -> list[Path]:
    """Write `field.md`, and `field.png` where matplotlib is installed, into a folder: the files written."""
    path = Path(output) / "field.md"
    with atomic(path) as partial:
        parts = [f"## {data}\n\n{markdown(rows)}\n" for data, rows in field_tables(results).items()]
        partial.write_text("# The field, measured\n\n" + "\n".join(parts), encoding="utf-8")
    if not can_plot():
        return [path]
    from torchcaps import viz

    panels = {
        data: {name: (mean(r.seconds for r in group) / 60, _accuracies(group)) for name, group in systems.items()}
        for data, (systems, _) in _by_data(results).items()
    }
    return [path, save_figure(viz.accuracy_against_time(panels), path.with_suffix(".png"))]


def _by_data(results: Sequence[Result]) -> dict[str, tuple[Rows, Rows]]:
    """Data set -> results of each system, and of those without its routing."""
    found: dict[str, tuple[Rows, Rows]] = {}
    for result in results:
        if result.recipe.startswith(PREFIX):
            both = found.setdefault(result.recipe.removeprefix(PREFIX), ({}, {}))
            both[result.row.endswith(WITHOUT)].setdefault(result.row.removesuffix(WITHOUT), []).append(result)
    return found


def _accuracies(group: Sequence[Result]) -> list[float]:
    return [1 - float(result.figures["error"]) for result in group]


def _line(name: str, group: Sequence[Result], without: Sequence[Result]) -> tuple[str, ...]:
    first, speeds = group[0], [r.images_per_second for r in group if r.images_per_second]
    return (
        name, f"{first.parameters:,}", over_seeds("products", [first.figures.get("products")]),
        over_seeds("accuracy", _accuracies(group)), over_seeds("accuracy", _accuracies(without)), str(len(group)),
        str(first.epochs), f"{mean(speeds):,.0f}" if speeds else "-", f"{mean(r.seconds for r in group) / 60:.1f} min",
    )  # fmt: skip
