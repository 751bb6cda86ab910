"""Results: what one run of an experiment measured, as a file in its folder; and their tables.

Tables show measured beside published figures, and the field's comparison. The field is every system
on the same data, with its routing and without it, as a table and a picture.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev

from torchcaps.errors import counted
from torchcaps.evaluation import compare_viewpoints
from torchcaps.evaluation.base import TextTable
from torchcaps.reporting import can_plot, save_figure
from torchcaps.training.files import atomic, read_json, reading, write_json
from torchcaps.types import Json, StrPath
from torchcaps.words import in_words

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
# Endings of the names of figures that are shown in percent.
SHARES = ("error", "accuracy", "detected", "changed_by_routing", "success")
FIELD_PREFIX = "field-"  # of the recipes of the field, one for each data set
UNIFORM_SUFFIX = ", uniform coupling"  # of the row of a system whose couplings are all equal
FIELD_HEADING = (
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
Curve = tuple[list[float], list[float]]  # on familiar and novel views: an accuracy each epoch
RESULT_FILE = "result.json"


@dataclass(frozen=True)
class Result:
    """What one run of an experiment measured.

    Attributes:
        recipe: name of the recipe.
        row: name of the row of the recipe's table.
        budget: how much was run.
        seed: of the run.
        figures: by name; numbers, and whole measurements under the names of their measures.
        shown: names of the figures that the table shows.
        published: the paper's figures, by name.
        parameters: number of parameters of the model.
        epochs: number of epochs that were trained.
        images_per_second: mean over epochs; None if no epoch was measured.
        seconds: of training, without evaluations.
        machine: processor or GPU, and threads.
        torch: its version.
        command: repeats the run.
    """

    recipe: str
    row: str
    budget: str
    seed: int
    figures: Json
    shown: list[str]
    published: dict[str, str]
    parameters: int
    epochs: int
    images_per_second: float | None
    seconds: float
    machine: str
    torch: str
    command: str

    @classmethod
    def read(cls, folder: Path) -> "Result":
        """The result in a run folder. Raises RunError if it cannot be read."""
        file = folder / RESULT_FILE
        with reading(file, "result"):
            content = read_json(file)
            return cls(**{field.name: content[field.name] for field in fields(cls)})

    def write(self, folder: Path) -> None:
        """Write it into a run folder."""
        write_json(folder / RESULT_FILE, asdict(self))


def read_results(output: StrPath) -> list[Result]:
    """Every result below a folder, in the order of their paths.

    Raises RunError for a result that cannot be read.
    """
    files = sorted(Path(output).glob(f"*/*/*/*/{RESULT_FILE}"))
    return [Result.read(file.parent) for file in files]


Runs = Sequence[Result]


class Results(list[Result]):
    """Results of runs; as text, their table."""

    def table(self) -> TextTable:
        """See `results_table`."""
        return results_table(self)

    def __str__(self) -> str:
        return markdown(self.table())


def results_table(results: Runs) -> TextTable:
    """Figures that the recipes name, a row for each row and budget of a recipe.

    Shares are in percent; several seeds are shown as mean ± standard deviation.
    """
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.recipe, result.row, result.budget), []).append(result)
    rows = []
    for seeds in groups.values():
        first = seeds[0]
        columns = {name: [result.figures.get(name) for result in seeds] for name in first.shown}
        metrics = [
            f"{in_words(name)} {over_seeds(name, figures)}"
            for name, figures in columns.items()
            if any(isinstance(figure, int | float) for figure in figures)
        ]
        published = [f"{in_words(name)} {figure}" for name, figure in first.published.items()]
        epochs = sorted({result.epochs for result in seeds})
        rows.append(
            (
                first.recipe,
                first.row,
                first.budget,
                "; ".join(metrics) or "-",
                "; ".join(published) or "-",
                str(len(seeds)),
                f"{first.parameters:,}",
                "-".join(map(str, dict.fromkeys([epochs[0], epochs[-1]]))),
                _minutes(seeds),
            )
        )
    return TextTable(HEADING, rows)


def over_seeds(name: str, figures: Sequence[float | None]) -> str:
    """A figure of one row over its seeds, as mean ± standard deviation; a dash for none.

    Its name decides the unit: percent for shares, millions for products, none for others.
    """
    numbers = [float(figure) for figure in figures if figure is not None and math.isfinite(figure)]
    if not numbers:
        return "-"
    scale, digits, unit = 1.0, 4 if abs(mean(numbers)) < 0.1 else 3, ""
    if name == "products":
        scale, digits, unit = 1e-6, 1, " M"
    elif name.endswith(SHARES):
        scale, digits, unit = 100.0, 2, " %"
    text = f"{scale * mean(numbers):.{digits}f}"
    if len(numbers) > 1:
        text += f" ± {scale * stdev(numbers):.{digits}f}"
    return text + unit


def _minutes(seeds: Runs) -> str:
    """Mean time of training over seeds, in minutes."""
    return f"{mean(result.seconds for result in seeds) / 60:.1f} min"


def viewpoint_lines(results: Runs) -> list[str]:
    """Pairs of rows of a viewpoint experiment at equal accuracy on familiar views: a sentence each.

    Only rows whose models were kept after every epoch can be compared so (`keep_epochs` in the
    recipe), by `evaluation.compare_viewpoints`. Each seed of one row is compared with the same seed
    of the other.
    """
    experiments: dict[tuple[str, str], dict[str, dict[int, Curve]]] = {}
    for result in results:
        if curve := result.figures.get("curve"):
            rows = experiments.setdefault((result.recipe, result.budget), {})
            rows.setdefault(result.row, {})[result.seed] = (curve["familiar"], curve["novel"])
    lines = []
    for (recipe, budget), rows in experiments.items():
        for first, second in combinations(rows, 2):
            seeds = sorted(rows[first].keys() & rows[second].keys())
            if seeds:
                pairs = [
                    compare_viewpoints(rows[first][seed], rows[second][seed]) for seed in seeds
                ]
                target = mean(pair.target for pair in pairs)
                first_novel = mean(pair.first.novel_at_target for pair in pairs)
                second_novel = mean(pair.second.novel_at_target for pair in pairs)
                gains = [100 * pair.gain for pair in pairs]
                gain = f"{mean(gains):+.1f}"
                if len(gains) > 1:
                    gain += f" ± {stdev(gains):.1f}"
                lines.append(
                    f"{recipe}, {budget}: at {target:.1%} on familiar views, {first_novel:.1%} of "
                    f"novel ones for {first} and {second_novel:.1%} for {second}: {gain} points "
                    f"({counted(len(gains), 'seed')})"
                )
    return lines


def write_table(results: Runs, output: StrPath) -> Path:
    """Write `results.md`: the table, and the commands and machines behind it. Returns the file."""
    sources = {
        f"* `{result.command.split(' --seeds')[0]}`: {result.machine}, torch {result.torch}"
        for result in results
    }
    lines = ["# Measured and published", "", markdown(results_table(results)), "", *sorted(sources)]
    if views := viewpoint_lines(results):
        lines += ["", "## Novel views at equal accuracy on familiar ones", ""]
        lines += [f"* {view}" for view in views]
    return _write(Path(output) / "results.md", lines)


def _write(path: Path, lines: Sequence[str]) -> Path:
    """Write a text file atomically."""
    with atomic(path) as partial:
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def markdown(table: TextTable) -> str:
    """A table in Markdown."""
    heading, *rows = ["| " + " | ".join(line) + " |" for line in table.lines]
    return "\n".join([heading, "|" + "---|" * len(table.heads), *rows])


def field_tables(results: Runs) -> dict[str, TextTable]:
    """A table of each data set of the field, with a row for each system, the most accurate first.

    Products are millions of multiply-adds of one image; accuracies are of test images, as mean ±
    standard deviation over seeds; images/s and minutes are of training.
    """
    tables = {}
    for data, systems in _field(results).items():
        rows = []
        for name in sorted(systems, key=lambda name: -mean(_accuracies(systems[name]))):
            if name.endswith(UNIFORM_SUFFIX):
                continue
            seeds = systems[name]
            without_routing = systems.get(name + UNIFORM_SUFFIX, [])
            first = seeds[0]
            speeds = [result.images_per_second for result in seeds if result.images_per_second]
            row = (
                name,
                f"{first.parameters:,}",
                over_seeds("products", [first.figures.get("products")]),
                over_seeds("accuracy", _accuracies(seeds)),
                over_seeds("accuracy", _accuracies(without_routing)),
                str(len(seeds)),
                str(first.epochs),
                f"{mean(speeds):,.0f}" if speeds else "-",
                _minutes(seeds),
            )
            rows.append(row)
        tables[data] = TextTable(FIELD_HEADING, rows)
    return tables


def _field(results: Runs) -> dict[str, dict[str, list[Result]]]:
    """Results of the field, by data set and system."""
    field: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        if result.recipe.startswith(FIELD_PREFIX):
            systems = field.setdefault(result.recipe.removeprefix(FIELD_PREFIX), {})
            systems.setdefault(result.row, []).append(result)
    return field


def _accuracies(seeds: Runs) -> list[float]:
    """Accuracy of each seed, in [0, 1]."""
    return [1 - float(result.figures["error"]) for result in seeds]


def write_field(results: Runs, output: StrPath) -> list[Path]:
    """Write `field.md`, and `field.png` where matplotlib is installed. Returns the files."""
    lines = ["# The field, measured"]
    for data, table in field_tables(results).items():
        lines += ["", f"## {data}", "", markdown(table)]
    path = _write(Path(output) / "field.md", lines)
    if not can_plot():
        return [path]
    from torchcaps import viz

    panels = {
        data: {
            name: (mean(result.seconds for result in seeds) / 60, _accuracies(seeds))
            for name, seeds in systems.items()
            if not name.endswith(UNIFORM_SUFFIX)
        }
        for data, systems in _field(results).items()
    }
    return [path, save_figure(viz.ranked_accuracies(panels), path.with_suffix(".png"))]
