"""Tables of results: measured beside published, and the field's comparison.

The field is every system on the same data, with its routing and without it, as a table and a picture.
"""

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev

from torchcaps.evaluation import compare_viewpoints
from torchcaps.evaluation.base import TextTable
from torchcaps.reporting import can_plot, save_figure
from torchcaps.reproduction.result import Result
from torchcaps.training.files import atomic
from torchcaps.words import in_words

TABLE = "results.md"
HEADING = (
    "experiment",
    "what",
    "budget",
    "measured",
    "published",
    "seeds",
    "parameters",
    "epochs",
    "training",
)
SHARES = (
    "error",
    "accuracy",
    "detected",
    "changed_by_routing",
    "success",
)  # endings of figures shown in percent
PREFIX = "field-"  # of the recipes that make it, one for each data set
WITHOUT = ", uniform coupling"  # ending of the row of a system whose couplings are all equal
SYSTEMS = (
    "system",
    "parameters",
    "products",
    "accuracy",
    "without routing",
    "seeds",
    "epochs",
    "images/s",
    "training",
)
Rows = dict[str, list[Result]]


class Results(list[Result]):
    """Results of runs; as text, their table."""

    def table(self) -> TextTable:
        """See `results_table`."""
        return results_table(self)

    def __str__(self) -> str:
        return markdown(self.table())


def results_table(results: Sequence[Result]) -> TextTable:
    """A row for each row and budget of recipes: the figures that the recipe names.

    Shares are in percent, the others as they are; mean ± standard deviation where there are several seeds.
    """
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.recipe, result.row, result.budget), []).append(result)
    return TextTable(HEADING, [_line(group) for group in groups.values()])


def viewpoint_lines(results: Sequence[Result]) -> list[str]:
    """Two rows of a viewpoint experiment at equal accuracy on familiar views: one sentence for each pair, over seeds.

    Only rows whose models were kept after every epoch can be compared so (`keep_epochs` in the recipe), by
    `evaluation.compare_viewpoints`; each seed of one row stands against the same seed of the other.
    """
    curves: dict[tuple[str, str], dict[str, dict[int, dict[str, list[float]]]]] = {}
    for result in results:
        if "curve" in result.figures:
            rows = curves.setdefault((result.recipe, result.budget), {})
            rows.setdefault(result.row, {})[result.seed] = result.figures["curve"]
    return [
        f"{recipe}, {budget}: {_matched(first, rows[first], second, rows[second])}"
        for (recipe, budget), rows in curves.items()
        for first, second in combinations(rows, 2)
        if rows[first].keys() & rows[second].keys()
    ]


def write_table(results: Sequence[Result], output: str | Path) -> Path:
    """Write the table, with the commands and machines behind it, as `results.md` into a folder, atomically."""
    sources = sorted(
        {(result.command.split(" --seeds")[0], result.machine, result.torch) for result in results}
    )
    notes = [f"* `{command}`: {machine}, torch {torch}" for command, machine, torch in sources]
    views = [f"* {line}" for line in viewpoint_lines(results)]
    matched = ["", "## Novel views at equal accuracy on familiar ones", "", *views] if views else []
    path = Path(output) / TABLE
    with atomic(path) as partial:
        text = [
            "# Measured and published",
            "",
            markdown(results_table(results)),
            "",
            *notes,
            *matched,
            "",
        ]
        partial.write_text("\n".join(text), encoding="utf-8")
    return path


def markdown(table: TextTable) -> str:
    """A table in Markdown."""
    heading, *rows = ["| " + " | ".join(line) + " |" for line in table.lines]
    return "\n".join([heading, "|" + "---|" * len(table.heads), *rows])


def over_seeds(name: str, values: Sequence[float | None]) -> str:
    """A figure of one row, in percent or millions if its name says so: mean ± deviation over seeds; a dash for none."""
    numbers = [float(value) for value in values if value is not None and math.isfinite(value)]
    if not numbers:
        return "-"
    if name == "products":
        scale, digits, unit = 1e-6, 1, " M"
    elif name.endswith(SHARES):
        scale, digits, unit = 100.0, 2, " %"
    else:
        scale, digits, unit = 1.0, 4 if abs(mean(numbers)) < 0.1 else 3, ""
    spread = f" ± {scale * stdev(numbers):.{digits}f}" if len(numbers) > 1 else ""
    return f"{scale * mean(numbers):.{digits}f}{spread}{unit}"


def _line(group: list[Result]) -> tuple[str, ...]:
    first = group[0]
    names = [
        name
        for name in first.shown
        if any(isinstance(r.figures.get(name), int | float) for r in group)
    ]
    measured = [
        f"{in_words(name)} {over_seeds(name, [r.figures.get(name) for r in group])}"
        for name in names
    ]
    least, most = min(r.epochs for r in group), max(r.epochs for r in group)
    seconds = mean(r.seconds for r in group)
    return (
        first.recipe,
        first.row,
        first.budget,
        "; ".join(measured) or "-",
        "; ".join(f"{in_words(name)} {value}" for name, value in first.published.items()) or "-",
        str(len(group)),
        f"{first.parameters:,}",
        str(least) if least == most else f"{least}-{most}",
        f"{seconds / 60:.1f} min",
    )


def _matched(
    first: str,
    ours: dict[int, dict[str, list[float]]],
    second: str,
    theirs: dict[int, dict[str, list[float]]],
) -> str:
    pairs = [
        compare_viewpoints(
            *((curve["familiar"], curve["novel"]) for curve in (ours[seed], theirs[seed]))
        )
        for seed in sorted(ours.keys() & theirs.keys())
    ]
    novel = [
        mean(taken)
        for taken in zip(*((pair.first_taken, pair.second_taken) for pair in pairs), strict=True)
    ]
    gains = [100 * pair.gain for pair in pairs]
    spread = f" ± {stdev(gains):.1f}" if len(gains) > 1 else ""
    seeds = "1 seed" if len(pairs) == 1 else f"{len(pairs)} seeds"
    return (
        f"at {mean(pair.target for pair in pairs):.1%} on familiar views, {novel[0]:.1%} of novel ones for {first} and "
        f"{novel[1]:.1%} for {second}: {mean(gains):+.1f}{spread} points ({seeds})"
    )


def field_tables(results: Sequence[Result]) -> dict[str, TextTable]:
    """Data set -> a row for each system: the most accurate first.

    Products are millions of multiply-adds that an image takes; accuracies are of test images, mean ± standard deviation
    over seeds; images/s and minutes are of training.
    """
    tables = {}
    for data, (systems, without) in _by_data(results).items():
        names = sorted(systems, key=lambda name: -mean(_accuracies(systems[name])))
        rows = [_system(name, systems[name], without.get(name, [])) for name in names]
        tables[data] = TextTable(SYSTEMS, rows)
    return tables


def write_field(results: Sequence[Result], output: str | Path) -> list[Path]:
    """Write `field.md`, and `field.png` where matplotlib is installed, into a folder: the files written."""
    path = Path(output) / "field.md"
    with atomic(path) as partial:
        parts = [
            f"## {data}\n\n{markdown(table)}\n" for data, table in field_tables(results).items()
        ]
        partial.write_text("# The field, measured\n\n" + "\n".join(parts), encoding="utf-8")
    if not can_plot():
        return [path]
    from torchcaps import viz

    panels = {
        data: {
            name: (mean(r.seconds for r in group) / 60, _accuracies(group))
            for name, group in systems.items()
        }
        for data, (systems, _) in _by_data(results).items()
    }
    return [path, save_figure(viz.accuracy_against_time(panels), path.with_suffix(".png"))]


def _by_data(results: Sequence[Result]) -> dict[str, tuple[Rows, Rows]]:
    found: dict[str, tuple[Rows, Rows]] = {}
    for result in results:
        if result.recipe.startswith(PREFIX):
            both = found.setdefault(result.recipe.removeprefix(PREFIX), ({}, {}))
            both[result.row.endswith(WITHOUT)].setdefault(
                result.row.removesuffix(WITHOUT), []
            ).append(result)
    return found


def _accuracies(group: Sequence[Result]) -> list[float]:
    return [1 - float(result.figures["error"]) for result in group]


def _system(name: str, group: Sequence[Result], without: Sequence[Result]) -> tuple[str, ...]:
    first, speeds = group[0], [r.images_per_second for r in group if r.images_per_second]
    return (
        name,
        f"{first.parameters:,}",
        over_seeds("products", [first.figures.get("products")]),
        over_seeds("accuracy", _accuracies(group)),
        over_seeds("accuracy", _accuracies(without)),
        str(len(group)),
        str(first.epochs),
        f"{mean(speeds):,.0f}" if speeds else "-",
        f"{mean(r.seconds for r in group) / 60:.1f} min",
    )
