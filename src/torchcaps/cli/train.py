"""torchcaps train."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

import torchcaps as tc
from torchcaps import plugins
from torchcaps.cli.console import (
    UsageError,
    note,
    note_without_plots,
    show,
    usage,
)
from torchcaps.cli.control import (
    FOLDER,
    Trained,
    compare_with_control,
    control_config,
    has_control,
)
from torchcaps.cli.flags import RARE, use_threads
from torchcaps.cli.imports import hinted
from torchcaps.cli.settings import (
    Settings,
    format_recipe,
    parse_options,
    parse_settings,
    resolve,
)
from torchcaps.cli.signals import graceful_stop, ignore_signals
from torchcaps.progress import progress_bar, report_rows

if TYPE_CHECKING:
    from torchcaps.settings import TrainConfig


def train(
    recipe_or_model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    /,
    settings: Settings,
    option: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
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
        print_config: Print all settings as a recipe, and train nothing.
    """
    from torchcaps.distributed import current

    use_threads(threads)
    ranks = current()
    config = resolve(recipe_or_model, settings, option)
    if print_config:
        print(format_recipe(config, f"{config.model.name} on {config.data.name}"))
        return 0
    if control and not tc.models.model_info(config.model.name).control:
        raise UsageError(f"--control: expected a model with a control, got {config.model.name}")
    if keep_memory:
        tc.training.keep_memory()
    if config.data.folds is not None and config.data.fold is None:
        if output is None:
            output = tc.training.default_folder(config, recipe_or_model, resume)
        return _cross_validate(config, parse_settings(settings), output, resume, json)
    folder, resume = ranks.broadcast(_find_folder(config, recipe_or_model, output, resume))
    run = tc.training.Run(folder)
    data = config.data
    if resume:
        before = run.config
        options = before.model.options | parse_options(option)
        changes = {"model": config.model.name, "model_options": options}
        with usage():
            tc.training.run.resumed_config(
                before, parse_settings(settings) | changes, tc.training.run.is_complete(run)
            )
        _compare_threads(run, threads)
    elif ranks.is_main:
        tc.training.folder.check_new(run)
        if data.folds is None:  # test images that cannot be read are an error before the training
            tc.training.sampling.load_images(config, "test")

    with hinted(folder):
        # With the other settings that are given, a run that is resumed agrees already.
        training = partial(tc.training.train, epochs=parse_settings(settings).get("epochs"))
        status = _train(config, folder, resume, training)
    if status:
        return status
    return _evaluate(config, run, control, resume, json)


def _evaluate(
    config: TrainConfig, run: tc.training.Run, control: bool, resume: bool, json: bool
) -> int:
    """Evaluate a run on the test images, and its control beside it where there is one."""
    root = config.data.root
    evaluation = tc.evaluate(run, root=root, device=config.training.device, output=run.path)
    document = evaluation.to_dict() | {"run": str(run.path)}
    lines = [*evaluation.table().lines]
    below = f"{evaluation.summary}\nrun folder: {run.path}"
    if control or has_control(run):
        status, compared = _train_control(Trained(run, evaluation), resume)
        if status:
            return status
        rows, verdict, document["control"] = compared
        width = len(lines[0])
        lines += [("",) * width, *(row + ("",) * (width - len(row)) for row in rows)]
        below = f"{verdict}\n{below}"
    show(json, document, lines, below)
    note_without_plots()
    return 0


def _train_control(first: Trained, resume: bool) -> tuple[int, Any]:
    """Train and evaluate the control; the exit status, and what `compare_with_control` returns."""
    folder = first.run.path / FOLDER
    config = control_config(first.run.config)
    note(f"control: {config.model.name}, trained in the same way")
    resume = resume and tc.training.run.is_run(folder)
    training = partial(tc.training.train, epochs=config.training.epochs)
    status = _train(config, folder, resume, training)
    if status:
        return status, None
    run = tc.training.Run(folder)
    settings = config.training
    evaluation = tc.evaluate(run, root=config.data.root, device=settings.device, output=folder)
    return 0, compare_with_control(first, Trained(run, evaluation))


def _cross_validate(
    config: TrainConfig,
    changes: dict[str, Any],
    folder: Path,
    resume: bool,
    json: bool,
) -> int:
    """Train and measure all folds, and print their means and deviations."""
    with hinted(folder / "fold-1"):
        status = _train(config, folder, resume, partial(tc.cross_validate, **changes))
    if status:
        return status
    outcome = tc.reproduction.CrossValidation.read(folder)
    show(json, outcome.to_dict(), outcome.table().lines, f"{outcome.summary} in {folder}")
    return 0


def _find_folder(
    config: TrainConfig,
    recipe_or_model: str,
    output: Path | None,
    resume: bool,
) -> tuple[Path, bool]:
    """The run folder, and whether there is a run in it to continue."""
    folder = output
    if folder is None:
        folder = tc.training.default_folder(config, recipe_or_model, resume)
    if resume and not tc.training.run.is_run(folder):
        note(f"{folder}: nothing to resume; starting")
        return folder, False
    return folder, resume


def _compare_threads(run: tc.training.Run, threads: int | None) -> None:
    """Say so where the command line names another number of threads than a run was started with."""
    before = run.environment.get("threads")
    if threads is not None and before not in (None, threads):
        note(
            f"--threads: the run was started with {before}; "
            f"with {threads} it will not end with the same bits"
        )


def _train(
    config: TrainConfig,
    folder: Path,
    resume: bool,
    training: Callable[..., Any],
) -> int:
    """Train with a bar and a line per epoch; 130 or 143 when a signal stopped it.

    Args:
        config: of the training.
        folder: of the run, or of the cross-validation.
        resume: continue what is in the folder.
        training: `train` or `cross_validate`.
    """
    from torchcaps.distributed import current

    ranks = current()
    rank = ranks.rank if ranks.world_size > 1 else None
    with progress_bar("training") as bar, graceful_stop(rank) as caught:
        try:
            training(
                config,
                folder,
                resume=resume,
                emit=report_rows(bar),
                should_stop=lambda: bool(caught),
            )
        except tc.training.Interrupted as stop:
            ignore_signals()
            output = shlex.quote(str(folder))
            command = f"torchcaps train {config.model.name} --output {output} --resume"
            if config.data.folds is not None and config.data.fold is None:
                command += f" --folds {config.data.folds}"
            note(f"{stop}; continue with: {command}{plugins.flags()}")
            number = caught[0] if caught else signal.SIGINT  # another process may have got it
            return 128 + number
        except tc.training.OptionError as error:
            raise UsageError(f"--option: {error}") from error
    return 0
