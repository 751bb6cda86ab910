"""torchcaps reproduce."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

import torchcaps as tc
from torchcaps.cli.console import (
    UsageError,
    note,
    print_json,
    print_table,
    print_wrapped,
)
from torchcaps.cli.flags import Json, Root, Threads, check_flag, use_threads
from torchcaps.cli.signals import graceful_stop, ignore_signals
from torchcaps.progress import print_above, progress_bar, report_rows


@dataclass(frozen=True)
class Extent:
    """How much of the experiment is run."""

    budget: Literal["small", "hour", "full"] = "small"
    """small: at most ten minutes on 2 processor cores; hour: at most one; full: as published."""
    seeds: int = 1  # How many seeds of each row.
    row: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Only rows whose name contains this; may be given several times."""


def reproduce(
    recipe: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")] = None,
    /,
    list: bool = False,
    table: bool = False,
    extent: Extent = Extent(),
    root: Root = None,
    output: Path = Path("reproductions"),
    device: str | None = None,
    threads: Threads = None,
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
    use_threads(threads)
    tc.training.keep_memory()
    field = [name for name in tc.training.list_recipes() if name.startswith("field-")]
    results = _run(field if recipe is None else [recipe], extent, root, output, device)
    if isinstance(results, int):
        return results
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


def _run(
    names: Sequence[str],
    extent: Extent,
    root: str | None,
    output: Path,
    device: str | None,
) -> list[Any] | int:
    """The results of these recipes, or the status of a command that a signal stopped."""
    from torchcaps.reproduction import reproduce

    results: list[Any] = []
    for recipe in [tc.training.load_recipe(name) for name in names]:
        run = partial(
            reproduce,
            recipe,
            extent.budget,
            output=output,
            seeds=extent.seeds,
            rows=extent.row,
            root=root,
            device=device,
        )
        finished = until_stopped(recipe.name, run)
        if isinstance(finished, int):
            return finished
        results += finished
    return results


def until_stopped(name: str, run: Callable[..., list[Any]]) -> list[Any] | int:
    """Run trainings under a bar until they end or a signal comes.

    Args:
        name: of the bar.
        run: takes `emit`, `started` and `should_stop`; see `reproduce`.

    Returns:
        What `run` returns, or the exit status after a signal.
    """
    with progress_bar(name) as bar, graceful_stop() as caught:
        try:
            return run(
                emit=report_rows(bar),
                started=partial(print_above, bar),
                should_stop=lambda: bool(caught),
            )
        except tc.training.Interrupted as stop:
            ignore_signals()
            note(f"{stop}; the same command continues it")
            return 128 + caught[0]


def _list(json: bool) -> int:
    """Print the experiments with their cost."""
    experiments = []
    for name in tc.training.list_recipes():
        recipe = tc.training.load_recipe(name)
        experiment: dict[str, Any] = {
            "name": name,
            "title": recipe.title,
            "published": recipe.published,
            "rows": [row.name for row in recipe.rows],
            "budgets": {name: budget.cost for name, budget in recipe.budgets.items()},
        }
        experiments.append(experiment)
    if json:
        print_json(experiments)
        return 0
    for experiment in experiments:
        print_wrapped(f"{experiment['name']}: {experiment['title']}")
        print_wrapped(f"published: {experiment['published']}", indent=4)
        for budget, cost in experiment["budgets"].items():
            print_wrapped(f"{budget}: {cost}", indent=4)
    return 0
