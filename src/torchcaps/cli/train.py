"""torchcaps train."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from torchcaps.cli.console import note, print_json, print_table, progress_bar

if TYPE_CHECKING:
    from torchcaps.training import RunFolder, TrainConfig


@dataclass(frozen=True)
class Settings:
    """What a command line may change of a recipe; what is not given stays as the recipe has it."""

    data: str | None = None
    """Name of a data set (`torchcaps data list`), or a path: class folders, .npz, .csv, IDX files, ..."""
    root: str | None = None
    """Folder in which a named data set is looked for first."""
    img_size: tuple[int, int] | None = None
    """Resize images to this height and width."""
    epochs: int | None = None
    """Passes over the training images."""
    batch_size: int | None = None
    """Images per step."""
    lr: float | None = None
    """Peak learning rate of Adam."""
    schedule: Literal["short", "paper", "constant"] | None = None
    """Learning rate over time."""
    holdout: float | None = None
    """Training images kept for validation: a fraction below 1, or a count."""
    reconstruction: float | None = None
    """Weight of the reconstruction loss; 0 leaves it out."""
    shift: int | None = None
    """Largest random shift in pixels."""
    flip: bool | None = None
    """Mirror half of the training images."""
    degrees: float | None = None
    """Largest random rotation."""
    zoom: float | None = None
    """Largest random change of size, as a fraction."""
    clip: float | None = None
    """Largest norm of the gradient."""
    precision: Literal["auto", "fp32", "bf16"] | None = None
    """auto is bf16 where the hardware multiplies it."""
    device: str | None = None
    """auto, cpu, cuda, cuda:1, ..."""
    seed: int | None = None
    """Of weights, order, augmentation and split."""
    checkpoint_every: int | None = None
    """Steps between checkpoints."""


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
        resume: Continue the run in --output (by default the newest of this name).
        threads: Processor threads; by default torch's choice.
        keep_memory: Whether freed memory is kept for reuse instead of returned to the system (glibc only).
        json: Print the evaluation as JSON.
    """
    import torch

    from torchcaps import training

    config = _config(recipe_or_model, settings, option)
    folder = output if output is not None else _default_folder(config, recipe_or_model, resume)
    if resume and not (folder / "config.json").exists():
        note(f"{folder}: nothing to resume; starting")
        resume = False
    if threads is not None:
        torch.set_num_threads(threads)
    if keep_memory == "yes":
        training.keep_memory()
    if resume:
        _check_unchanged(training.RunFolder.open(folder), settings)
    status = _train(config, folder, resume)
    if status:
        return status
    return _finish(training.RunFolder.open(folder), json)


def _config(recipe_or_model: str, settings: Settings, option: tuple[str, ...]) -> TrainConfig:
    """The recipe or model of this name, with the changes of the command line."""
    from torchcaps import models, training
    from torchcaps.errors import UnknownNameError

    if recipe_or_model in models.list_models():
        config = training.TrainConfig(model=recipe_or_model)
    elif recipe_or_model in training.list_recipes() or recipe_or_model.endswith(".toml"):
        config = training.load_recipe(recipe_or_model).config
    else:
        known = [*models.list_models(), *training.list_recipes()]
        raise UnknownNameError("recipe or model", recipe_or_model, known)
    chosen = dict(_option(text) for text in option)
    return config.updated(**vars(settings), model_options=config.model_options | chosen)


def _option(text: str) -> tuple[str, Any]:
    """("iterations", 2) from "iterations=2"; a value that is no JSON is a string."""
    import json

    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"option: expected name=value, got {text!r}")
    try:
        return name, json.loads(value.lower() if value in ("True", "False") else value)
    except json.JSONDecodeError:
        return name, value


def _default_folder(config: TrainConfig, recipe_or_model: str, resume: bool) -> Path:
    """runs/NAME, or runs/NAME-2, ...: the newest that exists when resuming, else the first free one."""
    stem = Path(recipe_or_model).stem
    data = Path(config.data).name.split(".")[0]
    name = stem if data in stem or stem.endswith(data.split("-")[0]) else f"{stem}-{data}"
    taken, number = Path("runs") / name, 2
    folder = taken
    while folder.exists():
        taken, folder, number = folder, Path("runs") / f"{name}-{number}", number + 1
    return taken if resume else folder


def _check_unchanged(run: RunFolder, settings: Settings) -> None:
    """A resumed run keeps its configuration: refuse flags that say otherwise."""
    kept = run.config()
    for name, value in vars(settings).items():
        if value is not None and name not in ("device", "root") and getattr(kept, name) != value:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag}: expected {getattr(kept, name)}, as the run in {run.path} was started, got {value}")


def _train(config: TrainConfig, folder: Path, resume: bool) -> int:
    """Train with a bar and a line per epoch; 130 or 143 when a signal stopped it."""
    from torchcaps import training

    with progress_bar("training") as bar, _signals() as caught:
        task = bar.add_task("", total=None)

        def listener(row: dict[str, Any]) -> None:
            if row["kind"] == "tick":
                bar.update(task, completed=row["step"], total=row["steps"], description=f"loss {row['loss']:.4f}")
            elif row["kind"] == "epoch":
                bar.console.print(_epoch_line(row), highlight=False, soft_wrap=True)

        try:
            training.train(config, folder, resume=resume, listener=listener, should_stop=lambda: bool(caught))
        except training.Interrupted as stop:
            note(f"{stop}; continue with: torchcaps train {config.model} --output {folder} --resume")
            return 128 + caught[0]
    return 0


def _epoch_line(row: dict[str, Any]) -> str:
    line = (
        f"epoch {row['epoch']}/{row['epochs']}  loss {row['train_loss']:.4f}  accuracy {row['train_accuracy']:.2%}  "
        f"validation: loss {row['val_loss']:.4f}  accuracy {row['val_accuracy']:.2%}  {row['images_per_second']:.0f} images/s"
    )
    return "\n".join([line, *(f"warning: {text}" for text in row["warnings"])])


@contextmanager
def _signals() -> Iterator[list[int]]:
    """While open, the first SIGINT or SIGTERM is noted, for the loop to stop at the next step; a second one acts at once."""
    caught: list[int] = []

    def note_signal(number: int, frame: FrameType | None) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        note("stopping after this step; the state will be saved")

    before = {number: signal.signal(number, note_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _finish(run: RunFolder, json: bool) -> int:
    """Evaluate on the test images, once; write figures and plots; print the table."""
    from torchcaps import report

    evaluation = report.finish_run(run)
    if json:
        print_json(evaluation.to_dict() | {"run": str(run.path)})
    else:
        print_table(evaluation.table())
        print(f"\nrun folder: {run.path}")
    return 0
