"""torchcaps reproduce."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from torchcaps.cli.console import note, print_json, print_table, progress_bar, usage
from torchcaps.cli.signals import noted, settle
from torchcaps.cli.train import say, telling

if TYPE_CHECKING:
    from torchcaps.reproduce import Result
    from torchcaps.training import Recipe


def reproduce(
    recipe: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")] = None,
    /,
    list: bool = False,
    budget: Literal["small", "hour", "full"] = "small",
    seeds: int = 1,
    row: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    root: str | None = None,
    output: Path = Path("reproductions"),
    device: str | None = None,
    threads: int | None = None,
    json: bool = False,
) -> int:
    """Run a published experiment and set what it measures beside the published figures.

    Runs that are done stay, and a stopped one is continued. Without a recipe: list the experiments and their cost.

    Example: torchcaps reproduce multimnist --budget small

    Args:
        recipe: Name of an experiment, or a .toml file.
        list: List the experiments with their cost.
        budget: small: at most ten minutes on 2 processor cores; hour: at most one; full: as published.
        seeds: How many seeds of each row.
        row: Only rows whose name contains this; may be given several times.
        root: Folder in which named data sets are looked for first.
        output: Folder of all runs and of results.md.
        device: auto, cpu, cuda, ...
        threads: Processor threads; by default torch's choice.
        json: Print JSON.
    """
    from torchcaps import training
    from torchcaps.errors import check_range
    from torchcaps.reproduce import read_results, results_table, viewpoint_lines, write_table
    from torchcaps.training.environment import check_threads

    if list or recipe is None:
        return _list(json)
    with usage():
        check_range("--seeds", seeds, low=1)
        if threads is not None:
            check_threads("--threads", threads)
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    training.keep_memory()
    stopped = _run(training.load_recipe(recipe), budget, seeds, row, root, output, device)
    if isinstance(stopped, int):
        return stopped
    everything = read_results(output)
    write_table(everything, output)
    if json:
        print_json([vars(result) for result in stopped])
    else:
        print_table(results_table(stopped))
        for line in viewpoint_lines(stopped):
            print(f"\n{line}")
        print(f"\nall results: {output / 'results.md'}")
    return 0


def _run(
    recipe: Recipe, budget: str, seeds: int, rows: Sequence[str], root: str | None, output: Path, device: str | None
) -> list[Result] | int:
    """The results, or the status of a command that a signal stopped."""
    from torchcaps import training
    from torchcaps.reproduce import reproduce

    with progress_bar(recipe.name) as bar, noted() as caught:
        try:
            return reproduce(
                recipe, output, budget=budget, seeds=seeds, rows=rows, root=root, device=device, listener=telling(bar),
                started=lambda name: say(bar, name), should_stop=lambda: bool(caught),
            )  # fmt: skip
        except training.Interrupted as stop:
            settle()
            note(f"{stop}; the same command continues it")
            return 128 + caught[0]


def _list(json: bool) -> int:
    from torchcaps.training import list_recipes, load_recipe

    recipes = [load_recipe(name) for name in list_recipes()]
    if json:
        print_json([
            {
                "name": r.name, "title": r.title, "published": r.published, "rows": [row.name for row in r.rows],
                "budgets": {name: budget.cost for name, budget in r.budgets.items()},
            }
            for r in recipes
        ])  # fmt: skip
        return 0
    for r in recipes:
        print(f"{r.name}: {r.title}")
        print(f"    published: {r.published}")
        for name, budget in r.budgets.items():
            print(f"    {name}: {budget.cost}")
    return 0
