"""torchcaps reproduce."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torchcaps as tc
from torchcaps.cli.console import (
    UsageError,
    note,
    print_json,
    print_table,
    print_wrapped,
    stoppable,
)
from torchcaps.cli.parser import Json, Root, check_flag


@dataclass(frozen=True, kw_only=True)
class Extent:
    """How much of the experiment is run.

    Attributes:
        budget: small: at most ten minutes on 2 processor cores, the default; hour: at most one;
            full: as published.
        seeds: How many seeds of each row.
        row: Only rows whose name contains this; may be given several times.
    """

    budget: Literal["small", "hour", "full"] = "small"
    seeds: int = 1
    row: Sequence[str] = ()


def run_experiment(
    recipe: str | None = None,
    *,
    list: bool = False,
    table: bool = False,
    extent: Extent = Extent(),
    root: Root = None,
    output: Path = Path("reproductions"),
    device: str | None = None,
    json: Json = False,
) -> int:
    """Run a published experiment and compare its figures with the published ones.

    Finished runs are kept, and a stopped run is continued. Without a recipe, list the experiments
    and their cost.

    Example: torchcaps reproduce multimnist --budget small

    Args:
        recipe: Name of an experiment, or a .toml file.
        list: List the experiments with their cost.
        table: Run every recipe whose name begins with field-, and write a table of all systems.
        extent: How much of the experiment is run.
        output: Folder of all runs and of results.md.
        device: auto, cpu, cuda, ...
    """
    from torchcaps.reproduction import (
        field_tables,
        read_results,
        reproduce,
        results_table,
        viewpoint_lines,
        write_field,
        write_table,
    )

    if list or (recipe is None and not table):
        return _list(json)
    check_flag("--seeds", extent.seeds, low=1)
    if table and recipe is not None:
        raise UsageError(f"--table: expected no recipe beside it, got {recipe}")
    tc.training.keep_memory()
    field = [name for name in tc.training.list_recipes() if name.startswith("field-")]
    names = field if recipe is None else [recipe]
    results: Any = []
    for loaded in [tc.training.load_recipe(name) for name in names]:
        with stoppable("the same command continues it", loaded.name) as callbacks:
            results += reproduce(
                loaded,
                extent.budget,
                output=output,
                seeds=extent.seeds,
                rows=extent.row,
                root=root,
                device=device,
                callbacks=callbacks,
                started=note,
            )
    all_results = read_results(output)
    files = [write_table(all_results, output)]
    if table:
        files += write_field(all_results, output)
    if json:
        print_json([vars(result) for result in results])
        return 0
    tables = field_tables(results) if table else {"": results_table(results)}
    for data, rows in tables.items():
        if data:
            print(f"\n{data}")
        print_table(rows.lines)
    for line in viewpoint_lines(results):
        print(f"\n{line}")
    print(f"\nall results: {' '.join(map(str, files))}")
    return 0


def _list(json: bool) -> int:
    """Print the experiments with their cost."""
    experiments: list[dict[str, Any]] = []
    for name in tc.training.list_recipes():
        recipe = tc.training.load_recipe(name)
        experiments.append(
            {
                "name": name,
                "title": recipe.title,
                "published": recipe.published,
                "rows": [row.name for row in recipe.rows],
                "budgets": {name: budget.cost for name, budget in recipe.budgets.items()},
            }
        )
    if json:
        print_json(experiments)
        return 0
    for experiment in experiments:
        print_wrapped(f"{experiment['name']}: {experiment['title']}")
        print_wrapped(f"published: {experiment['published']}", indent=4)
        for budget, cost in experiment["budgets"].items():
            print_wrapped(f"{budget}: {cost}", indent=4)
    return 0
