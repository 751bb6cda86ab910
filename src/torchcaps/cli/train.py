"""torchcaps train."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torchcaps as tc
from torchcaps import plugins
from torchcaps.cli.console import UsageError, note, note_without_plots, show, usage
from torchcaps.cli.control import FOLDER, compare_with_control, control_config, has_control
from torchcaps.cli.flags import RARE, Flag, parse_options
from torchcaps.cli.parser import hinted
from torchcaps.cli.settings import Settings, format_recipe, resolve
from torchcaps.cli.signals import stoppable

if TYPE_CHECKING:
    from torchcaps.settings import TrainConfig


def train(
    recipe_or_model: Annotated[str, Flag(metavar="NAME")],
    /,
    settings: Settings,
    option: tuple[str, ...] = (),
    output: Path | None = None,
    resume: bool = False,
    threads: int | None = None,
    keep_memory: Annotated[bool, RARE] = True,
    control: Annotated[bool, RARE] = False,
    json: bool = False,
    print_config: Annotated[bool, RARE] = False,
) -> int:
    """Train a model, evaluate it on the test images, and leave a run folder.

    This help has the common settings; --help-all has every one.

    Example: torchcaps train capsnet --data digits --epochs 3

    Args:
        recipe_or_model: A recipe (`torchcaps recipes`), a .toml file, or a model
            (`torchcaps models`).
        option: A model's own option, such as iterations=2; may be given several times.
        output: Run folder; by default the next free name under runs/.
        resume: Continue the run in --output (by default the newest of this name) with the settings
            it was started with.
        threads: Processor threads; by default torch's choice, or with --resume those that the run
            was started with.
        keep_memory: Keep freed memory for reuse instead of returning it to the system (glibc only).
        control: Train the model's control, a linear head for capsule_head, in the same way, and
            compare the two. With the features of a frozen backbone, it is trained in any case.
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
        return 0
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
    if has_folds:
        with hinted(folder / "fold-1"):
            _train(config, folder, resume, partial(tc.cross_validate, started=note, **settings))
        folds = tc.reproduction.CrossValidation.read(folder)
        show(json, folds.to_dict(), folds.table().lines, f"{folds.summary} in {folder}")
        return 0
    if resume:
        run = tc.training.Run(folder)
        before = run.config
        changes = {"model": config.model.name, "model_options": before.model.options | options}
        with usage():
            tc.training.run.resumed_config(
                before, {**settings, **changes}, tc.training.run.is_complete(run)
            )
        former = run.environment.get("threads")
        if threads is not None and former not in (None, threads):
            note(
                f"--threads: the run was started with {former}; "
                f"with {threads} it will not end with the same bits"
            )
    elif ranks.is_main:
        tc.training.folder.check_new(tc.training.Run(folder))
        if config.data.folds is None:  # unreadable test images are an error before the training
            tc.training.sampling.load_images(config, "test")

    with hinted(folder):
        # With the other settings that are given, a run that is resumed agrees already.
        _train(config, folder, resume, partial(tc.training.train, epochs=settings.get("epochs")))
    _evaluate(config, folder, control, resume, json)
    return 0


def _evaluate(config: TrainConfig, folder: Path, control: bool, resume: bool, json: bool) -> None:
    """Evaluate a run on the test images, and its control beside it where there is one."""
    run = tc.training.Run(folder)
    options: dict[str, Any] = {"root": config.data.root, "device": config.training.device}
    evaluation = tc.evaluate(run, output=folder, **options)
    document = evaluation.to_dict() | {"run": str(folder)}
    lines = list(evaluation.table().lines)
    below = f"{evaluation.summary}\nrun folder: {folder}"
    if control or has_control(run):
        second = tc.training.Run(folder / FOLDER)
        config = control_config(run.config)
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


def _train(config: TrainConfig, folder: Path, resume: bool, training: Any) -> None:
    """Train with a bar and a line per epoch.

    Args:
        config: of the training.
        folder: of the run, or of the cross-validation.
        resume: continue what is in the folder.
        training: `train` or `cross_validate`.
    """
    output = shlex.quote(str(folder))
    command = f"torchcaps train {config.model.name} --output {output} --resume"
    if config.data.folds is not None and config.data.fold is None:
        command += f" --folds {config.data.folds}"
    with stoppable(f"continue with: {command}{plugins.flags()}") as callbacks:
        try:
            training(config, folder, resume=resume, callbacks=callbacks)
        except tc.training.OptionError as error:
            raise UsageError(f"--option: {error}") from error
