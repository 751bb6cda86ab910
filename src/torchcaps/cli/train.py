"""torchcaps train."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from torchcaps.cli.console import NO_PLOTS, UsageError, note, print_json, print_table, progress_bar
from torchcaps.cli.flags import use_threads
from torchcaps.cli.imports import hinted
from torchcaps.cli.settings import Settings, check_unchanged, default_folder, resolve
from torchcaps.cli.signals import noted, settle

if TYPE_CHECKING:
    from rich.progress import Progress

    from torchcaps.training import RunFolder, TrainConfig


def train(
    recipe_or_model: Annotated[str, tyro.conf.Positional],
    /,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
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
    from torchcaps import training
    from torchcaps.ranks import joined

    use_threads(threads)
    ranks, config = joined(), resolve(recipe_or_model, settings, option)
    folder, resume = ranks.same(_where(config, recipe_or_model, output, resume))
    run = training.RunFolder(folder)
    if resume:
        check_unchanged(run, config, settings, option)
    elif ranks.main:
        training.RunFolder.fresh(folder)
        _check_test_images(config)
    if resume:
        _threads_of_then(run, threads)
    if keep_memory == "yes":
        training.keep_memory()
    with hinted(folder):
        status = _train(config, folder, resume)
    return status or _finish(run, config, json)


def _where(config: TrainConfig, recipe_or_model: str, output: Path | None, resume: bool) -> tuple[Path, bool]:
    """The run folder, and whether there is a run in it to go on with."""
    folder = output if output is not None else default_folder(config, recipe_or_model, resume)
    if resume and not (folder / "config.json").exists():
        note(f"{folder}: nothing to resume; starting")
        return folder, False
    return folder, resume


def _check_test_images(config: TrainConfig) -> None:
    """Fail before the training, not after it, if the images of the evaluation at its end cannot be read."""
    from torchcaps.data import load_dataset

    data = config.data
    load_dataset(data.name, "test", data.root, img_size=data.img_size, max_bytes=data.max_bytes)


def _threads_of_then(run: RunFolder, asked: int | None) -> None:
    """Sums over threads differ in their last bits: a resumed run takes as many as before, unless told otherwise."""
    before = run.threads()
    if asked is None:
        use_threads(before)
    elif before not in (None, asked):
        note(f"--threads: the run was started with {before}; with {asked} it will not end with the same bits")


def _train(config: TrainConfig, folder: Path, resume: bool) -> int:
    """Train with a bar and a line per epoch; 130 or 143 when a signal stopped it."""
    from torchcaps import plugins, training
    from torchcaps.ranks import joined

    ranks = joined()
    with progress_bar("training") as bar, noted(ranks.rank if ranks.world > 1 else None) as caught:
        try:
            training.train(config, folder, resume=resume, listener=telling(bar), should_stop=lambda: bool(caught))
        except training.Interrupted as stop:
            settle()
            again = f"torchcaps train {config.model.name} --output {shlex.quote(str(folder))} --resume{plugins.flags()}"
            note(f"{stop}; continue with: {again}")
            return 128 + (caught or [signal.SIGINT])[0]  # another process may be the one that was asked
        except training.OptionError as error:
            raise UsageError(f"--option: {error}") from error
    return 0


def say(bar: Progress, line: str) -> None:
    """A line above the bar."""
    bar.console.print(line, highlight=False, markup=False, soft_wrap=True)


def telling(bar: Progress) -> Callable[[dict[str, Any]], None]:
    """A listener of a training: its steps move the bar; epochs and warnings are lines above it."""
    task = bar.add_task("", total=None)

    def listener(row: dict[str, Any]) -> None:
        if row["kind"] == "tick":
            bar.update(task, completed=row["step"], total=row["steps"], description=f"loss {row['loss']:.4f}")
        elif row["kind"] in ("epoch", "note"):
            say(bar, epoch_line(row) if row["kind"] == "epoch" else f"warning: {row['text']}")

    return listener


def epoch_line(row: dict[str, Any]) -> str:
    """`epoch 2/8  training: loss 0.0453, accuracy 97.10%  validation: loss ...  350 images/s`, and warnings."""
    parts = [f"epoch {row['epoch']}/{row['epochs']}"]
    for title, start in (("training", "train_"), ("validation", "val_")):
        found = [(name.removeprefix(start), value) for name, value in row.items() if name.startswith(start)]
        words = [f"{n.replace('_', ' ')} {f'{v:.2%}' if n == 'accuracy' else f'{v:.4f}'}" for n, v in found]
        parts.append(f"{title}: {', '.join(words)}")
    parts.append(f"{row['images_per_second']:.0f} images/s")
    return "\n".join(["  ".join(parts), *(f"warning: {text}" for text in row["warnings"])])


def _finish(run: RunFolder, config: TrainConfig, json: bool) -> int:
    """Evaluate on the test images, once; write figures and plots; print the table."""
    from torchcaps import report

    evaluation = report.finish_run(run, device=config.run.device, root=config.data.root)
    if json:
        print_json(evaluation.to_dict() | {"run": str(run.path)})
    else:
        print_table(evaluation.table())
        print(f"\nrun folder: {run.path}")
    if not report.can_plot():
        note(NO_PLOTS)
    return 0
