"""The main tables of docs/results.md, and the verdicts and pictures of claims.

    python tools/make_results.py

writes the tables between the marks `<!-- table: NAME -->` and `<!-- end of table -->`. Those of
docs/results.md come from accuracy.csv and curves/ (make_curves.py), those of docs/claims.md and
docs/does-routing-help.md from claims.json and the trainings behind it (make_claims.py). A row of
accuracy.csv is one training, or several (`0-2`) of which only mean and deviation were kept. `error`
and `deviation` are percentages of the test images, `minutes` is the training of one network.
"""

from __future__ import annotations

import csv
import re
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import make_claims
import make_curves
from make_claims import as_table

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "benchmarks" / "results" / "accuracy.csv"
PAGE = ROOT / "docs" / "results.md"
TABLE = re.compile(
    r"(?<=<!-- table: )([\w-]+)( -->\n\n).*?(?=\n\n<!-- end of table -->)", re.DOTALL
)
FIELD = "field-"  # the tables of all systems, with their routing and without it
FIELD_HEADINGS = (
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
SEED_HEADINGS = ("model", "parameters", "epochs", "seeds", "test accuracy", "training", "command")


class Figure(NamedTuple):
    """Trainings of one model that differ in their seed: error in percent, minutes of one."""

    rows: list[dict[str, str]]

    @property
    def first(self) -> dict[str, str]:
        return self.rows[0]

    @property
    def num_seeds(self) -> int:
        return sum(map(num_seeds, self.rows))

    @property
    def accuracy(self) -> str:
        """`99.41 ± 0.02 %`, and those of two or more seeds where they were kept."""
        accuracies = [100 - float(row["error"]) for row in self.rows]
        deviation = float(self.first["deviation"] or 0)
        if len(accuracies) > 2:
            deviation = statistics.stdev(accuracies)
        mean = f"{statistics.mean(accuracies):.{decimals(self.first['error'])}f}"
        text = f"{mean} ± {deviation:.2f} %" if deviation else f"{mean} %"
        if len(accuracies) > 1:
            text += f" ({', '.join(f'{accuracy:.2f}' for accuracy in accuracies)})"
        return text


def num_seeds(row: dict[str, str]) -> int:
    """How many trainings a row of the file stands for."""
    lowest, _, highest = row["seed"].partition("-")
    return int(highest or lowest) - int(lowest) + 1


def decimals(number: str) -> int:
    """How many digits a number has behind its point."""
    return len(number.partition(".")[2])


def load() -> dict[str, dict[tuple[str, str], Figure]]:
    """Figures by table, and by model and routing, in the order of the file."""
    tables: dict[str, dict[tuple[str, str], Figure]] = {}
    with FIGURES.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            figures = tables.setdefault(row["table"], {})
            key = (row["model"], row["routing"])
            figures.setdefault(key, Figure([])).rows.append(row)
    return tables


def field_rows(figures: dict[tuple[str, str], Figure]) -> Iterator[tuple[str, ...]]:
    """One row for each system; the same network with uniform coupling is a cell of it."""
    for (model, routing), figure in figures.items():
        if routing == "uniform":
            continue
        uniform = figures.get((model, "uniform"))
        yield (
            model,
            f"{int(figure.first['parameters']):,}",
            f"{figure.first['products']} M",
            figure.accuracy,
            uniform.accuracy if uniform else "-",
            str(figure.num_seeds),
            figure.first["epochs"],
            f"{int(figure.first['images_per_second']):,}",
            f"{figure.first['minutes']} min",
        )


def seed_rows(figures: dict[tuple[str, str], Figure]) -> Iterator[tuple[str, ...]]:
    """One row for each model and routing, with the accuracy of each seed."""
    for (model, routing), figure in figures.items():
        minutes = [row["minutes"] for row in figure.rows if row["minutes"]]
        yield (
            f"{model}, {routing}" if routing else model,
            f"{int(figure.first['parameters']):,}",
            figure.first["epochs"],
            str(figure.num_seeds),
            figure.accuracy,
            f"{minutes[-1]} min" if minutes else "-",
            f"`{figure.first['command']}`",
        )


def markdown(table: str, figures: dict[tuple[str, str], Figure]) -> str:
    """A table of Markdown."""
    if table.startswith(FIELD):
        return as_table(FIELD_HEADINGS, field_rows(figures))
    return as_table(SEED_HEADINGS, seed_rows(figures))


def fill_tables(text: str, tables: Mapping[str, str]) -> str:
    """A page with these tables between its marks.

    Args:
        text: of the page.
        tables: by their names.
    """
    return TABLE.sub(lambda match: "".join((*match.groups(), tables[match[1]])), text)


def page(text: str) -> str:
    """The page with every table as the file of figures has it."""
    return fill_tables(text, tables())


def tables() -> dict[str, str]:
    """The tables of the page, by their names."""
    made = {name: markdown(name, figures) for name, figures in load().items()}
    return made | make_curves.tables()


def claims_pages() -> dict[Path, str]:
    """The pages on claims as claims.json has them, by their files."""
    pages = {}
    for name in (make_claims.PAGE, make_claims.ROUTING_PAGE):
        path = ROOT / "docs" / name
        pages[path] = fill_tables(path.read_text(encoding="utf-8"), make_claims.tables(name))
    return pages


def gaps() -> list[str]:
    """What is wrong with the tables of the pages."""
    text = PAGE.read_text(encoding="utf-8")
    faults = []
    for path, new in ((PAGE, page(text)), *claims_pages().items()):
        if new != path.read_text(encoding="utf-8"):
            faults.append(f"docs/{path.name} is old: run python tools/make_results.py")
    faults += make_claims.gaps((ROOT / "docs" / make_claims.PAGE).read_text(encoding="utf-8"))
    for name in sorted(set(tables()) ^ {match[1] for match in TABLE.finditer(text)}):
        faults.append(f"the table {name} has figures or a place in docs/results.md, not both")
    return faults


def main() -> int:
    """Write the tables and the pictures."""
    for path, text in claims_pages().items():
        path.write_text(text, encoding="utf-8")
    make_claims.write_pictures()
    make_curves.write_pictures()
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
