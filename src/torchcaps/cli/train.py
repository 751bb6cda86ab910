"""torchcaps train."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.progress import Progress

import torchcaps as tc
from torchcaps import plugins
from torchcaps.cli.console import UsageError, note, note_without_plots, progress_bar, show
from torchcaps.cli.flags import use_threads
from torchcaps.cli.imports import hinted
from torchcaps.cli.settings import Settings, check_unchanged, resolve
from torchcaps.cli.signals import graceful_stop, ignore_signals

if TYPE_CHECKING:
    from torchcaps.settings import TrainConfig


def train(
    recipe_or_model: Annotated[str, tyro.conf.Positional],
    /,
    settings: Settings,
    option: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    output: Path | None = None,
    resume: bool = False,
    threads: int | None = None,
    keep_memory: Literal["yes", "no"] = "yes",
    json: bool = False,
) -> int:
    """Train a model, evaluate it on the test images, and leave a run folder.

    Example: torchcaps train capsnet --data digits --epochs 3

    Args:
        recipe_or_model: A recipe (`torchcaps recipes`), a .toml file, or a model (`torchcaps models`).
        settings: Changes to the recipe.
        option: A model's own option, such as iterations=2; may be given several times.
        output: Run folder; by default the next free name under runs/.
        resume: Continue the run in --output (by default the newest of this name) with the settings it was started with.
        threads: Processor threads; by default torch's choice, or with --resume those that the run was started with.
        keep_memory: Whether freed memory is kept for reuse instead of returned to the system (glibc only).
        json: Print the evaluation as JSON.
    """
    from torchcaps.distributed import current

    use_threads(threads)
    ranks, config = current(), resolve(recipe_or_model, settings, option)
    folder, resume = ranks.broadcast(_where(config, recipe_or_model, output, resume))
    run, data = tc.training.Run(folder), config.data
    if resume:
        check_unchanged(run, config, settings, option)
        _threads_of_then(run, threads)
    elif ranks.is_main:
        run.check_new()
        # If the images of the evaluation cannot be read, it fails before the training and not after it.
        tc.data.load_dataset(
            data.name, "test", data.root, img_size=data.img_size, max_bytes=data.max_bytes
        )
    if keep_memory == "yes":
        tc.training.keep_memory()
    with hinted(folder):
        if status := _train(config, folder, resume):
            return status
    # On the test images, once.
    evaluation = tc.evaluate(run, root=data.root, device=config.training.device, output=run.path)
    show(
        json,
        evaluation.to_dict() | {"run": str(folder)},
        evaluation.table().lines,
        f"run folder: {folder}",
    )
    note_without_plots()
    return 0


def _where(
    config: TrainConfig, recipe_or_model: str, output: Path | None, resume: bool
) -> tuple[Path, bool]:
    """The run folder, and whether there is a run in it to go on with."""
    folder = (
        output
        if output is not None
        else tc.training.default_folder(config, recipe_or_model, resume)
    )
    if resume and not (folder / "config.json").exists():
        note(f"{folder}: nothing to resume; starting")
        return folder, False
    return folder, resume


def _threads_of_then(run: tc.training.Run, asked: int | None) -> None:
    """Sums over threads differ in their last bits: a resumed run takes as many as before, unless told otherwise."""
    before = run.threads
    if asked is None:
        use_threads(before)
    elif before not in (None, asked):
        note(
            f"--threads: the run was started with {before}; with {asked} it will not end with the same bits"
        )


def _train(config: TrainConfig, folder: Path, resume: bool) -> int:
    """Train with a bar and a line per epoch; 130 or 143 when a signal stopped it."""
    from torchcaps.distributed import current

    ranks = current()
    with (
        progress_bar("training") as bar,
        graceful_stop(ranks.rank if ranks.world_size > 1 else None) as caught,
    ):
        try:
            tc.training.train(
                config,
                folder,
                resume=resume,
                emit=telling(bar),
                should_stop=lambda: bool(caught),
            )
        except tc.training.Interrupted as stop:
            ignore_signals()
            again = f"torchcaps train {config.model.name} --output {shlex.quote(str(folder))} --resume{plugins.flags()}"
            note(f"{stop}; continue with: {again}")
            return (
                128 + (caught or [signal.SIGINT])[0]
            )  # another process may be the one that was asked
        except tc.training.OptionError as error:
            raise UsageError(f"--option: {error}") from error
    return 0


def say(bar: Progress, line: str) -> None:
    """A line above the bar."""
    bar.console.print(line, highlight=False, markup=False, soft_wrap=True)


def telling(bar: Progress) -> Callable[[dict[str, Any]], None]:
    """Takes the rows of a training: its steps move the bar; epochs and warnings are lines above it."""
    task = bar.add_task("", total=None)

    def emit(row: dict[str, Any]) -> None:
        if row["kind"] == "tick":
            bar.update(
                task,
                completed=row["step"],
                total=row["steps"],
                description=f"loss {row['loss']:.4f}",
            )
        elif row["kind"] in ("epoch", "note"):
            say(bar, epoch_line(row) if row["kind"] == "epoch" else f"warning: {row['text']}")

    return emit


def epoch_line(row: dict[str, Any]) -> str:
    """`epoch 2/8  training: loss 0.0453, accuracy 97.10%  validation: loss ...  350 images/s`, and warnings."""
    parts = [f"epoch {row['epoch']}/{row['epochs']}"]
    for title, start in (("training", "train_"), ("validation", "val_")):
        found = [
            (name.removeprefix(start), value)
            for name, value in row.items()
            if name.startswith(start)
        ]
        words = [
            f"{n.replace('_', ' ')} {f'{v:.2%}' if n == 'accuracy' else f'{v:.4f}'}"
            for n, v in found
        ]
        parts.append(f"{title}: {', '.join(words)}")
    parts.append(f"{row['images_per_second']:.0f} images/s")
    return "\n".join(["  ".join(parts), *(f"warning: {text}" for text in row["warnings"])])
