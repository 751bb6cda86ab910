"""Running a recipe: every row and seed is a run folder, and what was measured of it a file in that folder."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchcaps import plugins
from torchcaps.errors import RunError, UnknownNameError, check_range
from torchcaps.reporting import EvaluatedRun, evaluate, open_task
from torchcaps.reproduction.measures import MEASURES
from torchcaps.reproduction.result import RESULT_FILE, Result
from torchcaps.reproduction.table import Results
from torchcaps.settings import known_settings
from torchcaps.training import Recipe, Run, TrainConfig, load_recipe, train
from torchcaps.training.recipes import Row
from torchcaps.training.run import RESUME_OVERRIDES

# Settings of these values are filled in by the task and the loop, but for those of the data.
OPEN = (None, "auto")
FIXED = ("stop_at",)  # for which None is a value


def reproduce(
    recipe: Recipe | str,
    budget: str = "small",
    *,
    output: str | Path = "reproductions",
    seeds: int = 1,
    rows: Sequence[str] = (),
    root: str | None = None,
    device: str | None = None,
    started: Callable[[str], None] | None = None,
    emit: Callable[[dict[str, Any]], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Results:
    """Run an experiment; what is done already is not run again, and what was stopped is continued.

    Args:
        recipe: the experiment, or its name, or a `.toml` file.
        budget: how much is run, by name: "small", "hour", "full".
        output: runs go to `<recipe>/<budget>/<row>/seed-<k>` in this folder.
        seeds: the seeds 0 to `seeds` - 1 are run.
        rows: only rows with such names or parts of names; by default all.
        root: where named data sets are looked for first.
        device: by default as the recipe says.
        started: is called with the name of each run before it starts.
        emit, should_stop: see `train`, whose errors are raised too.

    Returns:
        One result for each row and seed, rows first; `print` sets them beside the published figures.

    Raises:
        UnknownNameError: for an unknown recipe, budget, row or measure.
        RunError: for a run folder that holds another run.

    Example:
        >>> print(tc.reproduce("multimnist"))
    """
    if isinstance(recipe, str):
        recipe = load_recipe(recipe)
    check_range("seeds", seeds, low=1)
    measures = [MEASURES[name] for name in recipe.measures]
    results = Results()
    for row in _select(recipe.rows_of(budget), rows):
        for seed in range(seeds):
            config = recipe.resolve(row, budget, seed=seed, root=root, device=device)
            run = Run(Path(output) / recipe.name / budget / slug(row.name) / f"seed-{seed}")
            if (run.path / RESULT_FILE).exists():
                results.append(Result.read(run.path))
                continue
            if started is not None:
                started(f"{recipe.name}, {row.name}, seed {seed}")
            resume = run.exists()
            if resume:
                _check_same(run, config)
            train(config, run.path, resume=resume, emit=emit, should_stop=should_stop)
            data_root, run_device = config.data.root, config.training.device
            evaluation = evaluate(run, root=data_root, device=run_device, output=run.path)
            task, images = open_task(run, root=data_root, device=run_device)
            evaluated = EvaluatedRun(run, run.config, task, images, evaluation, len(images))
            result = _result(recipe, row, budget, evaluated)
            for measure in measures:
                result.figures.update(measure(evaluated))
            result.write(run.path)
            results.append(result)
    return results


def slug(name: str) -> str:
    """A row's name as a folder's: letters, digits and hyphens."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def _select(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Rows with such parts of names, in their order."""
    for name in names:
        if not any(name.lower() in row.name.lower() for row in rows):
            raise UnknownNameError("row", name, [row.name for row in rows])
    if not names:
        return list(rows)
    return [row for row in rows if any(name.lower() in row.name.lower() for name in names)]


def _result(recipe: Recipe, row: Row, budget: str, evaluated: EvaluatedRun) -> Result:
    """The result of a run, with the figures of its evaluation alone."""
    run, machine = evaluated.run, evaluated.run.environment
    seed = evaluated.config.training.seed
    speeds = [epoch["images_per_second"] for epoch in evaluated.epochs]
    return Result(
        recipe=recipe.name,
        row=row.name,
        budget=budget,
        seed=seed,
        figures=evaluated.evaluation.to_dict(),
        shown=[*recipe.figures],
        published=row.published,
        parameters=evaluated.parameters,
        epochs=len(speeds),
        images_per_second=sum(speeds) / len(speeds) if speeds else None,
        seconds=run.seconds or 0.0,
        machine=f"{machine.get('gpu') or machine.get('processor')}, {machine.get('threads')} threads",
        torch=str(machine.get("torch")),
        command=f"torchcaps reproduce {recipe.name} --budget {budget} "
        f"--seeds {seed + 1}{plugins.flags()}",
    )


def _check_same(run: Run, config: TrainConfig) -> None:
    """Raise RunError unless the run was started with these settings."""
    saved, settings = run.config.flat(), known_settings()
    for name, value in config.flat().items():
        is_open = value in OPEN and settings[name].group != "data" and name not in FIXED
        if name not in RESUME_OVERRIDES and not is_open and saved[name] != value:
            raise RunError(
                f"{run.path}: was started with {name} {saved[name]!r}, and the recipe has {value!r} "
                "now; remove the folder, or give another output"
            )
