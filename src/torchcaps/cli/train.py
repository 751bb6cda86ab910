"""torchcaps train, with the control that a trained model is compared with, and torchcaps reproduce."""

from __future__ import annotations

import json as json_text
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torchcaps as tc
from torchcaps import plugins
from torchcaps.cli.console import (
    UsageError,
    announce,
    counting,
    note,
    note_next,
    note_without_plots,
    print_json,
    print_table,
    print_wrapped,
    show,
    stoppable,
    usage,
)
from torchcaps.cli.parser import RARE, Flag, Json, Root, Settings, check_flag, hinted, parse_options
from torchcaps.errors import UnknownNameError

if TYPE_CHECKING:
    from torchcaps.settings import TrainConfig


CONTROL_FOLDER = "control"  # within the run's
RECIPE = """\
title = {{ dumps(title) }}
published = "none"

[run]
{% for name, value in config.flat().items() if value is not none and value is not mapping %}
{{ name }} = {{ dumps(value) }}  # {{ config.origins.get(name, "default") }}
{% endfor %}
{% for name, value in config.flat().items() if value is mapping and value %}

[run.{{ name }}]  # {{ config.origins.get(name, "default") }}
{% for key, option in value.items() %}
{{ key if key.isidentifier() else dumps(key) }} = {{ dumps(option) }}
{% endfor %}
{% endfor %}"""


def train(
    recipe_or_model: Annotated[str, Flag(metavar="NAME")],
    *,
    settings: Settings = MappingProxyType({}),
    option: Sequence[str] = (),
    output: Path | None = None,
    resume: bool = False,
    threads: int | None = None,
    keep_memory: Annotated[bool, RARE] = True,
    control: Annotated[bool, RARE] = False,
    json: bool = False,
    print_config: Annotated[bool, RARE] = False,
) -> None:
    """Train a model, evaluate it on the test images, and leave a run folder.

    This help has the common settings; --help-all has every one.

    Example: torchcaps train capsnet --data digits --epochs 3

    Args:
        recipe_or_model: A recipe (`torchcaps recipes`), a .toml file, or a model
            (`torchcaps models`).
        option: A model's own option, such as iterations=2 or routing=em; may be given several times.
        output: Run folder; by default the next free name under runs/.
        resume: Continue the run in --output (by default the newest of this name) with the settings
            it was started with.
        threads: Processor threads; by default torch's choice, or with --resume those that the run
            was started with.
        keep_memory: Keep freed memory for reuse instead of returning it to the system (glibc only).
        control: Train the model's control, for capsule_head a plain head of as many weights, in the
            same way, and compare the two. With the features of a frozen backbone, it is trained in
            any case; torchcaps audit compares more.
        json: Print the evaluation as JSON.
        print_config: Print all settings as a recipe, with the origin of each: given, recipe, model,
            task, data or default. The data is read, and nothing is trained.
    """
    from torchcaps.distributed import current

    ranks = current()
    options = parse_options(option)
    config = resolve(recipe_or_model, settings, options)
    if print_config:
        config = tc.training.resolve_config(config)
        print(format_recipe(config, f"{config.model.name} on {config.data.name}"))
        return
    if control and not tc.models.model_info(config.model.name).control:
        raise UsageError(f"--control: expected a model with a control, got {config.model.name}")
    if keep_memory:
        tc.training.keep_memory()
    has_folds = config.data.folds is not None and config.data.fold is None
    folder = output or tc.training.default_folder(config, recipe_or_model, resume)
    if resume and not has_folds and not tc.training.run.is_run(folder):
        note(f"{folder}: nothing to resume; starting")
        resume = False
    folder, resume = ranks.broadcast((folder, resume))
    if resume and not has_folds:
        run = tc.training.Run(folder)
        before = run.config
        model_options = before.model.options | options
        changes = {**settings, "model": config.model.name, "model_options": model_options}
        with usage():
            tc.training.run.resumed_config(before, changes, tc.training.run.is_complete(run))
        former = run.environment.get("threads")
        if threads is not None and former not in (None, threads):
            note(
                f"--threads: the run was started with {former}; with {threads} it will not end "
                "with the same bits"
            )
    if has_folds:
        with hinted([folder / "fold-1"]):
            _train(config, folder, resume, partial(tc.cross_validate, started=note, **settings))
        folds = tc.reproduction.CrossValidation.read(folder)
        show(json, folds.to_dict(), folds.table().lines, f"{folds.summary} in {folder}")
        return
    if ranks.is_main and not resume and config.data.folds is None:
        with hinted([folder]):
            tc.training.folder.check_new(tc.training.Run(folder))
        # Unreadable test images are an error before the training.
        with announce("reading the test images"):
            tc.training.sampling.load_images(config, "test")

    with hinted([folder]):
        # With the other settings that are given, a run that is resumed agrees already.
        _train(config, folder, resume, partial(tc.training.train, epochs=settings.get("epochs")))
    _evaluate(config, folder, control, resume, json)


def audit(
    run_or_backbone: Annotated[str, Flag(metavar="RUN_OR_BACKBONE")],
    *,
    settings: Settings = MappingProxyType({}),
    option: Sequence[str] = (),
    shifted: str | None = None,
    seeds: int = 3,
    level: float = 0.9,
    margin: str = "10%",
    output: Path | None = None,
    json: bool = False,
) -> None:
    """Compare a capsule head with uniform coupling, a linear head and a plain one of equal size.

    Each is trained on the same features for equally many steps, for each fold and seed. --help-all
    has every setting.

    Example: torchcaps audit runs/resnet20-cifar10 --data fashion-mnist --epochs 5 --json

    Args:
        run_or_backbone: A run of a capsule head on a frozen backbone, or a backbone as --backbone of
            train takes it.
        option: Option of a head on a backbone, such as routing=em; may be given several times.
        shifted: Another data set with the same classes, which is only tested on.
        seeds: Number of seeds, of folds, weights and order.
        level: Share of the conformal sets that should hold the true class.
        margin: Smallest difference that matters; see compare.
        output: File for every prediction, ending in .csv, .jsonl or .parquet.
        json: Print JSON instead of text.
    """
    if "data" not in settings:
        raise UsageError("--data: expected a data set, got none")
    with usage(), counting("training heads") as progress:
        audited = tc.audit(
            run_or_backbone,
            shifted=shifted,
            seeds=seeds,
            level=level,
            margin=margin,
            output=output,
            progress=progress,
            model_options=parse_options(option),
            **settings,
        )
    show(json, audited.to_dict(), audited.table().lines, "\n".join(audited.verdict))


def _evaluate(config: TrainConfig, folder: Path, control: bool, resume: bool, json: bool) -> None:
    """Evaluate a run on the test images, and its control beside it where there is one."""
    from torchcaps.types import spec_of

    run = tc.training.Run(folder)
    options: dict[str, Any] = {"root": config.data.root, "device": config.training.device}
    with counting("evaluating") as progress:
        evaluation = tc.evaluate(run, output=folder, progress=progress, **options)
    document = evaluation.to_dict() | {"run": str(folder)}
    lines = list(evaluation.table().lines)
    below = f"{evaluation.summary}\nrun folder: {folder}"
    has_control = tc.models.model_info(run.config.model.name).control
    if control or (has_control and spec_of(tc.load(folder)).features):
        second = tc.training.Run(folder / CONTROL_FOLDER)
        config = control_config(run)
        note(f"control: {config.model.name}, trained in the same way")
        training = partial(tc.training.train, epochs=config.training.epochs)
        _train(config, second.path, resume and tc.training.run.is_run(second.path), training)
        control_evaluation = tc.evaluate(second, output=second.path, **options)
        rows, verdict, document["control"] = compare_with_control(
            {run: evaluation, second: control_evaluation}
        )
        width = len(lines[0])
        lines += [("",) * width, *(row + ("",) * (width - len(row)) for row in rows)]
        below = f"{verdict}\n{below}"
    show(json, document, lines, below)
    note_without_plots()
    note_next(folder, "report", "explore", "predict IMAGE")


def _train(config: TrainConfig, folder: Path, resume: bool, training: Any) -> None:
    """Train with a bar and a line per epoch.

    Args:
        config: of the training.
        folder: of the run, or of the cross-validation.
        resume: continue what is in the folder.
        training: `train` or `cross_validate`.
    """
    command = f"torchcaps train {config.model.name} --output {shlex.quote(str(folder))} --resume"
    if config.data.folds is not None and config.data.fold is None:
        command += f" --folds {config.data.folds}"
    with stoppable(f"continue with: {command}{plugins.flags()}") as callbacks:
        try:
            training(config, folder, resume=resume, callbacks=callbacks)
        except tc.training.OptionError as error:
            raise UsageError(f"--option: {error}") from error


def resolve(recipe_or_model: str, settings: Settings, options: Mapping[str, Any]) -> TrainConfig:
    """The recipe or model of this name, with the changes of the command line.

    Args:
        recipe_or_model: a name, or the path of a `.toml` file.
        settings: those that the command line names.
        options: of the model, by name.

    Raises:
        UsageError: for a setting or an option that cannot be used.
        UnknownNameError: for a name that is neither a recipe's nor a model's.
    """
    try:
        config = tc.training.resolve_recipe(recipe_or_model)
    except UnknownNameError as error:
        if Path(recipe_or_model).exists() or "/" in recipe_or_model:
            raise UsageError(
                f"{error.argument}: expected a name, got the path {recipe_or_model}; "
                f"to train on it: --data {recipe_or_model}"
            ) from error
        raise
    with usage():
        return config.updated(**settings, model_options={**config.model.options, **options})


def format_recipe(config: TrainConfig, title: str) -> str:
    """A recipe that runs a configuration, the text of a `.toml` file; a comment has each origin.

    Args:
        config: of the run.
        title: of the recipe.
    """
    from jinja2 import Template

    recipe = Template(RECIPE, trim_blocks=True)
    return recipe.render(title=title, config=config, dumps=json_text.dumps).rstrip()


def control_config(run: tc.training.Run) -> TrainConfig:
    """The configuration of the control: the same training of the same images, by its own loss.

    Its head has a hidden layer, and so as many weights as that of the run.

    Args:
        run: that is finished.
    """
    config = run.config
    info = tc.models.model_info(config.model.name)
    model: Any = tc.load(run.path)
    options = {
        name: option
        for name, option in config.model.options.items()
        if name in info.control_options
    }
    options["hidden"] = tc.models.backbone.plain_units(model.head)
    return config.updated(model=info.control, model_options=options, loss="auto")


def compare_with_control(
    evaluations: Mapping[tc.training.Run, Any],
) -> tuple[list[tuple[str, ...]], str, dict[str, Any]]:
    """Both models side by side.

    Args:
        evaluations: that of the run in question, then that of its control.

    Returns:
        The rows of a table, the heading first; the verdict; and a document of both.
    """
    from torchcaps.models.notebook import parameter_count
    from torchcaps.words import duration, percent

    rows: list[tuple[str, ...]] = [("model", "accuracy", "weights of the head", "training")]
    for run, evaluation in evaluations.items():
        model: Any = tc.load(run.path)
        seconds = duration(run.seconds) if run.seconds else "-"
        count = f"{parameter_count(model.head):,}"
        name = run.config.model.name
        if units := run.config.model.options.get("hidden"):
            name = f"{name} (hidden={units})"
        rows.append((name, percent(evaluation.accuracy), count, seconds))
    comparison = tc.compare(*evaluations.values())
    document = evaluation.to_dict() | {"run": str(run.path)}
    return rows, comparison.verdict, document | {"comparison": comparison.to_dict()}


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


def reproduce(
    recipe: str | None = None,
    *,
    list: bool = False,
    table: bool = False,
    extent: Extent = Extent(),
    root: Root = None,
    output: Path = Path("reproductions"),
    device: str | None = None,
    json: Json = False,
) -> None:
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
        _list(json)
        return
    check_flag("--seeds", extent.seeds, low=1)
    if table and recipe is not None:
        raise UsageError(f"--table: expected no recipe beside it, got {recipe}")
    tc.training.keep_memory()
    field = [name for name in tc.training.list_recipes() if name.startswith("field-")]
    names = field if recipe is None else [recipe]
    results: Any = []
    for loaded in [tc.training.load_recipe(name) for name in names]:
        with stoppable("the same command continues it", loaded.name) as callbacks:
            results += tc.reproduce(
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
        return
    tables = field_tables(results) if table else {"": results_table(results)}
    for data, rows in tables.items():
        if data:
            print(f"\n{data}")
        print_table(rows.lines)
    for line in viewpoint_lines(results):
        print(f"\n{line}")
    print(f"\nall results: {' '.join(map(str, files))}")


def _list(json: bool) -> None:
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
        return
    for experiment in experiments:
        print_wrapped(f"{experiment['name']}: {experiment['title']}")
        print_wrapped(f"published: {experiment['published']}", indent=4)
        for budget, cost in experiment["budgets"].items():
            print_wrapped(f"{budget}: {cost}", indent=4)
