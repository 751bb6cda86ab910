"""torchcaps reproduce."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

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

CLAIMS = "claims"  # in place of the name of a recipe
TRIAL_SEEDS = 2
# Flags of `Extent` that only one of both reads.
OF_CLAIMS = ("run", "minutes", "results")
OF_RECIPES = ("seeds", "row")


@dataclass(frozen=True)
class Extent:
    """How much of the experiment is run.

    Attributes:
        budget: small: at most ten minutes on 2 processor cores, the default; hour: at most one;
            full: as published, the default of claims.
        seeds: How many seeds of each row.
        row: Only rows whose name contains this; may be given several times.
        run: Of claims: train what is missing; without it, print what is there.
        minutes: Of claims: start no training after so many minutes.
        results: Of claims: folder of their results.
    """

    budget: Literal["auto", "small", "hour", "full"] = "auto"
    seeds: int = 1
    row: tuple[str, ...] = ()
    run: bool = False
    minutes: float = math.inf
    results: Path = Path("benchmarks/results/claims")


def reproduce(
    recipe: str | None = None,
    claim: str | None = None,
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
    and their cost. `reproduce claims` prints the published claims that are tested, and their
    results.

    Example: torchcaps reproduce multimnist --budget small

    Args:
        recipe: Name of an experiment, or a .toml file; or the word claims.
        claim: Name of a claim, after the word claims.
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

    if recipe == CLAIMS:
        return reproduce_claims(claim, extent, root, device, threads, json)
    if claim is not None:
        raise UsageError(f"expected `reproduce {CLAIMS}` before the name of a claim, got {claim}")
    _check_extent(extent, OF_CLAIMS, f"reproduce {CLAIMS}")
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
            "small" if extent.budget == "auto" else extent.budget,
            output=output,
            seeds=extent.seeds,
            rows=extent.row,
            root=root,
            device=device,
        )
        finished = _until_stopped(recipe.name, run)
        if isinstance(finished, int):
            return finished
        results += finished
    return results


def _until_stopped(name: str, run: Callable[..., list[Any]]) -> list[Any] | int:
    """What a function returns that shows its trainings, or the status after a signal."""
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


def _check_extent(extent: Extent, names: Sequence[str], command: str) -> None:
    """Raise UsageError for a flag that only another command reads."""
    for name in names:
        if getattr(extent, name) != getattr(Extent(), name):
            raise UsageError(f"--{name}: has an effect only with `{command}`")


def reproduce_claims(
    name: str | None,
    extent: Extent,
    root: str | None,
    device: str | None,
    threads: int | None,
    json: bool,
) -> int:
    """Train what is missing of the claims if asked, and print what is there.

    A trial (`--budget small`) has its results below `runs/`, or where `--results` says, and never
    counts.
    """
    from torchcaps.reproduction import list_claims, load_claim, read_claim_results, run_claims

    _check_extent(extent, OF_RECIPES, "reproduce RECIPE")
    names = list_claims() if name is None else [name]
    loaded = [load_claim(each) for each in names]
    budget = "full" if extent.budget == "auto" else extent.budget
    work = Path("runs") / CLAIMS / budget
    results = extent.results
    if budget != "full":
        if results == Extent.results:
            results = work / "results"
        loaded = [replace(claim, seeds=TRIAL_SEEDS) for claim in loaded]
    if extent.run:
        use_threads(threads or 1)  # the trainings of many claims are done side by side
        tc.training.keep_memory()
        options: dict[str, Any] = {"work": work, "budget": budget, "minutes": extent.minutes}
        options |= {"root": root, "device": device}
        finished = _until_stopped(CLAIMS, partial(run_claims, loaded, results, **options))
        if isinstance(finished, int):
            return finished
    finished_of = {claim.name: read_claim_results(claim, results, budget) for claim in loaded}
    _print_claims(loaded, finished_of, name, json)
    return 0


def _print_claims(
    claims: Sequence[Any], finished: Mapping[str, Any], name: str | None, json: bool
) -> None:
    """Print a table of all claims, or the arms of one, with what is finished of each."""
    from torchcaps.reproduction import arms_table, claims_table, judge_claims

    if json:
        verdicts = judge_claims(claims, finished)
        print_json({claim: vars(verdict) for claim, verdict in verdicts.items()})
        return
    if name is not None:
        [claim] = claims
        for title in ("statement", "source", "published", "measure", "support", "refutation"):
            print_wrapped(f"{title}: {getattr(claim, title)}")
        print()
        print_table(arms_table(claim, finished[claim.name]).lines)
        print()
    print_table(claims_table(claims, finished).lines)


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
