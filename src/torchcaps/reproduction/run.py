"""Running a recipe: every row and seed is a run folder, with a file of what was measured of it."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchcaps import plugins
from torchcaps.errors import RunError, UnknownNameError, check_positive
from torchcaps.models.notebook import parameter_count
from torchcaps.reporting import EvaluatedRun, evaluate, open_task
from torchcaps.reproduction.measures import MEASURES
from torchcaps.reproduction.table import RESULT_FILE, Result, Results
from torchcaps.settings import OPEN, known_settings
from torchcaps.training import Callback, Recipe, Row, Run, TrainConfig, load_recipe, train
from torchcaps.training.run import RESUME_OVERRIDES, is_run
from torchcaps.types import StrPath

RESOLVED_DATA = ("holdout", "storage")  # settings of data that a run decides where they are open


def reproduce(
    recipe: Recipe | str,
    budget: str = "small",
    *,
    output: StrPath = "reproductions",
    seeds: int = 1,
    rows: Sequence[str] = (),
    root: str | None = None,
    device: str | None = None,
    started: Callable[[str], None] | None = None,
    callbacks: Sequence[Callback | str] = (),
) -> Results:
    """Run an experiment. Finished runs are not repeated, and a stopped run is continued.

    Args:
        recipe: the experiment, or its name, or a `.toml` file.
        budget: how much is run, by name: "small", "hour", "full".
        output: runs go to `<recipe>/<budget>/<row>/seed-<k>` in this folder.
        seeds: number of seeds; 0 to `seeds` - 1 are run.
        rows: names or parts of names of the rows that are run; by default all.
        root: where named data sets are looked for first.
        device: by default that of the recipe.
        started: called with the name of each run before it starts.
        callbacks: told of each run; see `train`. One that stops a training stops the experiment,
            with the state of the run saved.

    Returns:
        One result for each row and seed, rows first; `print` sets them beside the published
        figures.

    Raises:
        UnknownNameError: for an unknown recipe, budget, row or measure.
        RunError: for a run folder that holds another run.

    Example:
        >>> print(tc.reproduce("multimnist"))
    """
    if isinstance(recipe, str):
        recipe = load_recipe(recipe)
    check_positive(seeds=seeds)
    check_measures(recipe)
    results = Results()
    all_rows = recipe.rows_of(budget)
    selected = [] if rows else [*all_rows]
    for part in rows:
        matches = [row for row in all_rows if part.lower() in row.name.lower()]
        if not matches:
            raise UnknownNameError("row", part, [row.name for row in all_rows])
        selected += matches
    for row in filter(selected.__contains__, all_rows):
        for seed in range(seeds):
            config = recipe.resolve(row, budget, seed=seed, root=root, device=device)
            run = Run(Path(output) / recipe.name / budget / slug(row.name) / f"seed-{seed}")
            if (run.path / RESULT_FILE).exists():
                results.append(Result.read(run.path))
                continue
            if started is not None:
                started(f"{recipe.name}, {row.name}, seed {seed}")

            train_or_resume(run, config, callbacks=callbacks)
            result, _ = measure_run(run, config, recipe, row, budget)
            result.write(run.path)
            results.append(result)
    return results


def check_measures(recipe: Recipe) -> None:
    """Raise UnknownNameError unless the measures of a recipe are registered."""
    for name in recipe.measures:
        MEASURES[name]


def train_or_resume(
    run: Run,
    config: TrainConfig,
    *,
    callbacks: Sequence[Callback | str] = (),
) -> None:
    """Train to the end, from where an earlier call stopped.

    Args:
        run: its folder may hold a part of the training.
        config: of the run.
        callbacks: see `train`.

    Raises:
        RunError: the folder holds another run.
    """
    resume = is_run(run.path)
    if resume:
        # Raise RunError unless the run was started with these settings.
        saved = run.config.flat()
        settings = known_settings()
        for name, choice in config.flat().items():
            # The task and the loop fill in open settings, except where that means something: in the
            # settings of the data, and in `stop_at`.
            is_data = settings[name].group == "data" and name not in RESOLVED_DATA
            has_default = not is_data and name != "stop_at"
            is_open = choice in OPEN and has_default
            if name not in RESUME_OVERRIDES and not is_open and saved[name] != choice:
                raise RunError(
                    f"{run.path}: was started with {name} {saved[name]!r}, and the recipe has "
                    f"{choice!r} now; remove the folder, or give another output"
                )
    train(config, run.path, resume=resume, callbacks=callbacks)


def measure_run(
    run: Run, config: TrainConfig, recipe: Recipe, row: Row, budget: str
) -> tuple[Result, EvaluatedRun]:
    """The figures of a finished run of a recipe, and the run over its test images.

    Args:
        run: its folder.
        config: that it was trained with.
        recipe: names the measures.
        row: of the recipe.
        budget: name of the recipe's budget.

    Raises:
        UnknownNameError: the recipe names a measure that is not registered.
    """
    options: Any = {"root": config.data.root, "device": config.training.device}
    evaluation = evaluate(run, output=run.path, **options)
    task, images = open_task(run, **options)
    evaluated = EvaluatedRun(run, run.config, task, images, evaluation, run.epochs, len(images))
    machine = run.environment
    seed = run.config.training.seed
    speeds = [epoch["images_per_second"] for epoch in run.epochs]
    processor = machine.get("gpu") or machine.get("processor")
    result = Result(
        recipe=recipe.name,
        row=row.name,
        budget=budget,
        seed=seed,
        figures=evaluation.to_dict(),
        shown=list(recipe.figures),
        published=row.published,
        parameters=parameter_count(evaluated.model),
        epochs=len(speeds),
        images_per_second=sum(speeds) / len(speeds) if speeds else None,
        seconds=run.seconds or 0.0,
        machine=f"{processor}, {machine.get('threads')} threads",
        torch=str(machine.get("torch")),
        command=f"torchcaps reproduce {recipe.name} --budget {budget} "
        f"--seeds {seed + 1}{plugins.flags()}",
    )
    for name in recipe.measures:
        result.figures.update(MEASURES[name](evaluated))
    return result, evaluated


def slug(name: str) -> str:
    """A row's name as a folder's: letters, digits and hyphens."""
    return re.sub(r"[\W_]+", "-", name.lower()).strip("-")
