"""What docs/results.md has of benchmarks/results/curves: a table and a picture for each data set.

`python tools/make_results.py` writes them with the tables of results.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from make_claims import as_table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "curves"
PICTURES = ROOT / "docs" / "images"
SEEDS = 3
BUDGETS = {15: "15 s", 60: "1 min", 480: "8 min"}
TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}

# Errors of the seeds in percent, by system and then by seconds.
Curves = dict[str, dict[int, list[float]]]


def load(data: str) -> Curves:
    """The points of a data set that have all seeds."""
    errors: Curves = defaultdict(lambda: defaultdict(list))
    for path in sorted((RESULTS / data).glob("*.json")):
        training = json.loads(path.read_text(encoding="utf-8"))
        errors[training["system"]][training["seconds"]].append(100 * training["error"])
    complete = {
        system: {seconds: points for seconds, points in curve.items() if len(points) == SEEDS}
        for system, curve in errors.items()
    }
    return {system: curve for system, curve in complete.items() if curve}


def frontier(curves: Curves) -> dict[int, str]:
    """The system with the fewest errors, by seconds; a shorter one that has fewer stays it."""
    best: dict[int, str] = {}
    lowest = float("inf")
    for seconds in BUDGETS:
        means = {
            statistics.mean(curve[seconds]): system
            for system, curve in curves.items()
            if seconds in curve
        }
        if means and min(means) < lowest:
            lowest = min(means)
            best[seconds] = means[lowest]
    return best


def rows(curves: Curves) -> Iterator[tuple[str, ...]]:
    """A row a system, the one with the fewest errors first; the frontier is bold."""
    best = frontier(curves)

    def rank(system: str) -> float:
        return min(map(statistics.mean, curves[system].values()))

    for system in sorted(curves, key=rank):
        cells = [system]
        for seconds in BUDGETS:
            points = curves[system].get(seconds)
            cell = "-"
            if points:
                accuracies = [100 - point for point in points]
                mean = statistics.mean(accuracies)
                cell = f"{mean:.2f} ± {statistics.stdev(accuracies):.2f} %"
            cells.append(f"**{cell}**" if best.get(seconds) == system else cell)
        yield tuple(cells)


def tables() -> dict[str, str]:
    """Tables of Markdown, by their names; of the data sets that have results."""
    headings = ("system", *BUDGETS.values())
    curves = {data: load(data) for data in TITLES}
    return {f"curves-{data}": as_table(headings, rows(x)) for data, x in curves.items() if x}


def write_pictures() -> None:
    """Write docs/images/curves-*.png: errors against seconds, with the frontier."""
    import matplotlib.pyplot as plt

    for data, title in TITLES.items():
        curves = load(data)
        if not curves:
            continue
        best = set(frontier(curves).values())
        figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
        for system, curve in sorted(curves.items()):
            seconds = sorted(curve)
            means = [statistics.mean(curve[point]) for point in seconds]
            width = 2.5 if system in best else 1
            axes.plot(seconds, means, marker="o", label=system, linewidth=width)
        axes.set(xscale="log", yscale="log", title=title)
        axes.set(xlabel="images, in seconds of one thread", ylabel="test error, %")
        axes.set_xticks(list(BUDGETS), list(BUDGETS.values()))
        figure.legend(loc="outside right upper", fontsize="small")
        figure.savefig(PICTURES / f"curves-{data}.png", dpi=110)
        plt.close(figure)
