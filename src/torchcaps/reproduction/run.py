"""Running a recipe: every row and seed is a run folder, and what was measured of it a file in that folder."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torchcaps import plugins
from torchcaps.errors import RunError, UnknownNameError, check_range, read_text
from torchcaps.models.cnn import parameter_count
from torchcaps.reporting import finish_run
from torchcaps.reporting.epochs import epochs_of, training_seconds
from torchcaps.reproduction.measures import MEASURES, finished
from torchcaps.settings import known_settings
from torchcaps.training import Recipe, Run, TrainConfig, train
from torchcaps.training.environment import environment
from torchcaps.training.files import write_json
from torchcaps.training.recipes import Row
from torchcaps.training.run import RESUME_OVERRIDES

RESULT = "result.json"
OPEN = (
    None,
    "auto",
)  # settings of these values are filled in by the task and the loop, but for those of the data
FIXED = ("stop_at",)  # for which None is a value


@dataclass(frozen=True)
class Result:
    """What one run of an experiment measured."""

    recipe: str  # its name
    row: str  # of the recipe's table
    budget: str  # how much was run
    seed: int
    figures: dict[
        str, Any
    ]  # by name; numbers, and whole measurements under the names of their measures
    shown: list[str]  # which of them the table shows
    published: dict[str, str]  # the paper's, by name
    parameters: int  # of the model
    epochs: int  # that were trained
    images_per_second: float | None  # mean over epochs; None if no epoch was measured
    seconds: float  # of training, evaluations left out
    machine: str  # processor or GPU, and threads
    torch: str  # its version
    command: str  # that repeats it


def reproduce(
    recipe: Recipe,
    output: str | Path = "reproductions",
    *,
    budget: str = "small",
    seeds: int = 1,
    rows: Sequence[str] = (),
    root: str | None = None,
    device: str | None = None,
    started: Callable[[str], None] | None = None,
    emit: Callable[[dict[str, Any]], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> list[Result]:
    """Run an experiment; what is done already is not run again, and what was stopped is continued.

    Runs go to `<recipe>/<budget>/<row>/seed-<k>` in the folder `output`. The seeds 0 to `seeds` - 1 are run, of all
    `rows` or of those with such names or parts of names. `root` is where named data sets are looked for first; `device`
    is by default as the recipe says; `started` is called with the name of each run before it starts. For `emit` and
    `should_stop` see `train`, whose errors are raised too.

    The results are one for each row and seed, rows first. UnknownNameError: an unknown budget, row or measure.
    RunError: a run folder that holds another run.
    """
    check_range("seeds", seeds, low=1)
    for name in recipe.measures:
        _ = MEASURES[name]
    found = []
    for row in _chosen(recipe.rows_of(budget), rows):
        for seed in range(seeds):
            config = recipe.resolve(row, budget, seed=seed, root=root, device=device)
            folder = Path(output) / recipe.name / budget / slug(row.name) / f"seed-{seed}"
            if started is not None and not (folder / RESULT).exists():
                started(f"{recipe.name}, {row.name}, seed {seed}")
            found.append(_one(recipe, row, budget, config, Run(folder), emit, should_stop))
    return found


def read_results(output: str | Path) -> list[Result]:
    """Every result below a folder, in the order of their paths. Raises RunError for a result that cannot be read."""
    return [_read(path) for path in sorted(Path(output).glob(f"*/*/*/*/{RESULT}"))]


def slug(name: str) -> str:
    """A row's name as a folder's: letters, digits and hyphens."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def _chosen(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    found = {name: [row for row in rows if name.lower() in row.name.lower()] for name in names}
    for name, some in found.items():
        if not some:
            raise UnknownNameError("row", name, [row.name for row in rows])
    return [row for row in rows if not names or any(row in some for some in found.values())]


def _one(
    recipe: Recipe,
    row: Row,
    budget: str,
    config: TrainConfig,
    run: Run,
    emit: Callable[[dict[str, Any]], None] | None,
    should_stop: Callable[[], bool] | None,
) -> Result:
    file = run.path / RESULT
    if file.exists():
        return _read(file)
    started = run.exists()
    if started:
        _check_same(run, config)
    train(config, run.path, resume=started, emit=emit, should_stop=should_stop)
    figures: dict[str, Any] = finish_run(
        run, device=config.training.device, root=config.data.root
    ).to_dict()
    trained = finished(run, config)
    for name in recipe.measures:
        figures |= MEASURES[name](trained)
    epochs, facts = epochs_of(run), run.environment
    speeds = [entry["images_per_second"] for entry in epochs]
    result = Result(
        recipe=recipe.name,
        row=row.name,
        budget=budget,
        seed=config.training.seed,
        figures=figures,
        shown=[*recipe.figures],
        published=row.published,
        parameters=parameter_count(trained.model),
        epochs=len(epochs),
        images_per_second=sum(speeds) / len(speeds) if speeds else None,
        seconds=training_seconds(epochs) or 0.0,
        machine=f"{facts.get('gpu') or facts.get('processor')}, {facts.get('threads')} threads",
        torch=str(facts.get("torch", environment()["torch"])),
        command=f"torchcaps reproduce {recipe.name} --budget {budget} "
        f"--seeds {config.training.seed + 1}{plugins.flags()}",
    )
    write_json(file, asdict(result))
    return result


def _check_same(run: Run, config: TrainConfig) -> None:
    kept, known = run.config.flat(), known_settings()
    for name, value in config.flat().items():
        ruled = value in OPEN and known[name].group != "data" and name not in FIXED
        if name not in RESUME_OVERRIDES and not ruled and kept[name] != value:
            both = f"{name} {kept[name]!r}, and the recipe has {value!r} now"
            raise RunError(
                f"{run.path}: was started with {both}; remove the folder, or give another output"
            )


def _read(file: Path) -> Result:
    try:
        content = json.loads(read_text(file))
        return Result(**{f.name: content[f.name] for f in fields(Result)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file}: is no readable result ({error})") from error
