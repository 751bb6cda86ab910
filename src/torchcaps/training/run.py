"""A training run on disk: all that is needed to repeat, resume and use it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps.errors import ArgumentError, RunError, TrainingError, read_text
from torchcaps.settings import TrainConfig
from torchcaps.templates import picture, render
from torchcaps.training.checkpoint import FORMAT, LAST_FILE, MODEL_FILE, PREVIOUS_FILE
from torchcaps.training.environment import check_threads, environment
from torchcaps.training.files import LOCK_FILE, atomic, exclusive, make_folder, write_json
from torchcaps.words import duration, format_metric, in_words, numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIG_FILE = "config.json"
ENVIRONMENT_FILE = "environment.json"
METRICS_FILE = "metrics.jsonl"
EVALUATION_FILE = "evaluation.json"
MAX_METRICS = 3  # in the line on the test images
# Settings that may be given anew when a run is resumed.
RESUME_OVERRIDES = ("device", "root", "max_bytes")


class Run:
    """The folder of a training run. Nothing is read or made before it is asked for.

    Args:
        path: the folder.

    Attributes:
        model_path: the model of the best epoch by validation, ready for `torchcaps.load`.
        checkpoint_path, previous_checkpoint_path: newest state of the training, and the one
            before it, for when the newest is damaged.
        metrics_path: one JSON object a line.

    Example:
        >>> run = Run("runs/capsnet-digits")
        >>> run.config.training.epochs, run.is_finished
        (10, True)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.model_path = self.path / MODEL_FILE
        self.checkpoint_path = self.path / "checkpoints" / LAST_FILE
        self.previous_checkpoint_path = self.checkpoint_path.with_name(PREVIOUS_FILE)
        self.metrics_path = self.path / METRICS_FILE

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """An existing run. Raises RunError if there is none."""
        run = cls(path)
        if not run.exists():
            raise RunError(f"{run.path}: no run folder, or none with a {CONFIG_FILE}")
        return run

    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return (self.path / CONFIG_FILE).exists()

    def epoch_model_path(self, epoch: int) -> Path:
        """The model of an epoch, counted from 1, where the run keeps them (`keep_epochs`)."""
        return self.checkpoint_path.with_name(f"epoch-{epoch:04d}.safetensors")

    @property
    def config(self) -> TrainConfig:
        """The resolved configuration. Raises RunError if it is damaged or of another format."""
        file = self.path / CONFIG_FILE
        try:
            content = json.loads(read_text(file))
            version = content.pop("format", None) if isinstance(content, dict) else FORMAT
            if version != FORMAT:
                raise ValueError(f"expected format {FORMAT}, got {version}")
            return TrainConfig.from_dict(content)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise RunError(f"{file}: is no readable configuration ({error})") from error

    @property
    def environment(self) -> dict[str, Any]:
        """Versions and hardware of the machine that started the run; empty if they are lost."""
        try:
            content = json.loads(read_text(self.path / ENVIRONMENT_FILE))
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}

    @property
    def threads(self) -> int | None:
        """Processor threads that the run was started with; None if that is lost.

        Raises RunError if it is no number of threads.
        """
        threads = self.environment.get("threads")
        try:
            return None if threads is None else check_threads("threads", threads)
        except ValueError as error:
            raise RunError(f"{self.path / ENVIRONMENT_FILE}: {error}") from error

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All whole rows of the metrics, by "kind" and "step".

        A last line that a crash cut short is left out. Raises RunError if another is damaged.
        """
        return _read_rows(self.metrics_path)

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """The metrics of the epochs done so far. Errors as `rows`."""
        return [row for row in self.rows if row["kind"] == "epoch"]

    @property
    def notes(self) -> list[str]:
        """What happened beside the epochs, such as a second start, one sentence each."""
        return [str(row.get("text")) for row in self.rows if row["kind"] == "note"]

    @property
    def is_finished(self) -> bool:
        """Whether all epochs are done, or the score that ends the training was reached."""
        settings, epochs = self.config.training, self.epochs
        if not epochs:
            return False
        best_score = max(row[f"val_{row['score']}"] for row in epochs)
        reached = settings.stop_at is not None and best_score >= settings.stop_at
        return reached or epochs[-1]["epoch"] >= settings.epochs

    @property
    def score(self) -> str:
        """Name of the metric that the epoch is chosen by; empty before the first epoch."""
        return str(self.epochs[-1]["score"]) if self.epochs else ""

    @property
    def best_epoch(self) -> int | None:
        """Whose model is kept, counted from 1; None before the first epoch."""
        best = [int(row["epoch"]) for row in self.epochs if row["best"]]
        return best[-1] if best else None

    @property
    def seconds(self) -> float | None:
        """Time in training steps; None before the first epoch, or where it was not measured."""
        epochs = self.epochs
        if not epochs or not all(row["images_per_second"] for row in epochs):
            return None
        return sum(row["images"] / row["images_per_second"] for row in epochs)

    @property
    def figures(self) -> dict[str, Any] | None:
        """What evaluation.json says of the test images; None before they were evaluated.

        Raises RunError if it is damaged.
        """
        file = self.path / EVALUATION_FILE
        if not file.exists():
            return None
        try:
            content = json.loads(read_text(file))
            if not isinstance(content, dict):
                raise ValueError("it is no JSON object")
            return content
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(
                f"{file}: is no readable evaluation ({error}); "
                f"write it anew with: torchcaps evaluate {self.path}"
            ) from error

    def __repr__(self) -> str:
        facts = ", ".join(self._facts().values()) if self.exists() else "no run"
        return f"Run({str(self.path)!r}: {facts})"

    def _repr_html_(self) -> str:
        facts = {"folder": str(self.path), **self._facts()}
        drawing = None
        if self.epochs and find_spec("matplotlib"):
            alt = f"Curves of loss and {in_words(self.score)} over {len(self.epochs)} epochs."
            drawing = picture(self.curves(), alt)
        return render(
            "torchcaps.models",
            "card.html",
            title=self.path.resolve().name,
            facts=facts.items(),
            picture=drawing,
        )

    def curves(self) -> Figure:
        """Loss and score over epochs; parts of the loss that validation does not measure are left
        out. Needs matplotlib."""
        from torchcaps import viz

        loss = self.config.task.loss
        rows = [
            {**row, "train_loss": row.get(f"train_{loss}", row["train_loss"])}
            for row in self.epochs
        ]
        return viz.curves(rows, loss=loss, score=self.score)

    def _facts(self) -> dict[str, str]:
        """What was trained, how far it is, and what came out, in words."""
        config, epochs = self.config, self.epochs
        total = config.training.epochs
        facts = {"model": f"{config.model.name} on {config.data.name}"}
        state = f"epoch {epochs[-1]['epoch']} of {total}" if epochs else f"no epoch of {total}"
        if self.is_finished:
            state = f"finished after {state}"
        if self.seconds is not None:
            state = f"{state} in {duration(self.seconds)}"
        facts["training"] = state
        if epochs:
            key = f"val_{self.score}"
            best = format_metric(key, max(row[key] for row in epochs))
            facts["validation"] = f"{in_words(self.score)} {best} at epoch {self.best_epoch}"
        if figures := self.figures:
            metrics = [*numbers(figures).items()][:MAX_METRICS]
            summary = ", ".join(f"{name} {format_metric(name, value)}" for name, value in metrics)
            facts["test"] = f"{summary} of {figures.get('num_samples', 0):,} test images"
        return facts

    def check_new(self) -> None:
        """Raise RunError if there is a run already, or a file that a run would replace."""
        if self.exists():
            with exclusive(self.path):  # names the process that is training here
                pass
        self._check_empty()

    @contextmanager
    def create(self, config: TrainConfig) -> Iterator[None]:
        """Hold the folder as that of a new run; after an error without a checkpoint it is removed.

        Raises RunError if there is a run already, or the folder cannot be made; TrainingError if
        it cannot be written to.
        """
        with exclusive(self.path):
            self._check_empty()
            try:
                make_folder(self.checkpoint_path.parent)
                write_json(self.path / ENVIRONMENT_FILE, environment())
                # The configuration comes last: it makes the folder a run.
                write_json(self.path / CONFIG_FILE, {"format": FORMAT} | config.to_dict())
                yield
            except Exception:
                self._discard_empty()
                raise

    @contextmanager
    def resume(self) -> Iterator[None]:
        """Hold the folder of a run that goes on; a lost environment is written anew.

        Raises RunError if another process holds it, TrainingError if it cannot be written to.
        """
        with exclusive(self.path):
            make_folder(self.checkpoint_path.parent)  # copying may leave out empty folders
            if self.environment.get("threads") is None:
                write_json(self.path / ENVIRONMENT_FILE, environment() | self.environment)
            yield

    def fingerprint(self, config: TrainConfig) -> dict[str, Any]:
        """What must be the same when the run is resumed: settings by name, and threads."""
        settings = {
            name: value for name, value in config.flat().items() if name not in RESUME_OVERRIDES
        }
        return {"settings": settings, "threads": self.threads}

    def append(self, row: dict[str, Any]) -> None:
        """Add a row to the metrics in a single write; one that does not fit is taken back.

        Raises TrainingError when it cannot be written.
        """
        line = (json.dumps(row) + "\n").encode()
        try:
            with open(self.metrics_path, "ab", buffering=0) as file:
                size = file.tell()
                if file.write(line) != len(line):
                    file.truncate(size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise TrainingError(
                f"{self.metrics_path}: cannot be written ({error.strerror})"
            ) from error

    def truncate(self, step: int) -> None:
        """Forget metrics after `step`, and what killed writes left: training continues from there.

        Raises RunError or TrainingError if the metrics cannot be read or written.
        """
        rows = [row for row in self.rows if row["step"] <= step]
        own_files = (CONFIG_FILE, ENVIRONMENT_FILE, METRICS_FILE, MODEL_FILE)
        leftovers = list(self.checkpoint_path.parent.glob(".*.partial"))
        for name in own_files:  # other files may be in the work of another process, as a report
            leftovers += self.path.glob(f".{name}.*partial")
        for leftover in leftovers:
            with suppress(OSError):
                leftover.unlink()
        with atomic(self.metrics_path) as partial:
            partial.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def _check_empty(self) -> None:
        if self.exists():
            raise RunError(
                f"{self.path}: there is a run here already; "
                "continue it with --resume, or name another --output"
            )
        obstacles = [file for file in (self.metrics_path, self.model_path) if file.exists()]
        obstacles += sorted(self.checkpoint_path.parent.glob("*.safetensors"))
        environment_file = self.path / ENVIRONMENT_FILE
        if environment_file.exists() and "torchcaps" not in self.environment:
            obstacles.append(environment_file)  # else it is of a start that was killed
        for file in obstacles:
            raise RunError(f"{file}: is in the way, and no part of a run; name another --output")

    def _discard_empty(self) -> None:
        """Remove what a run without model and checkpoint wrote; other files stay, and the folder."""
        checkpoints = (self.model_path, self.checkpoint_path, self.previous_checkpoint_path)
        if any(file.exists() for file in checkpoints):
            return
        with suppress(OSError):  # such as a folder that holds something else
            for name in (CONFIG_FILE, ENVIRONMENT_FILE, METRICS_FILE):
                (self.path / name).unlink(missing_ok=True)
            self.checkpoint_path.parent.rmdir()
            (self.path / LOCK_FILE).unlink(missing_ok=True)
            self.path.rmdir()


def _read_rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        *lines, _ = read_text(path).split("\n")
        rows = [json.loads(line) for line in lines]
        for row in rows:
            if not (isinstance(row, dict) and "kind" in row and type(row.get("step")) is int):
                raise ValueError("a row without kind, or without a whole number as step")
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: is not readable as one JSON object a line ({error})") from error
    return rows


def check_unchanged(saved: TrainConfig, settings: dict[str, Any]) -> None:
    """Raise ArgumentError for the first setting that is not the one a run was started with."""
    before = saved.flat()
    for name, value in saved.updated(**settings).flat().items():
        if name not in RESUME_OVERRIDES and value != before[name]:
            raise ArgumentError(
                name, f"expected {before[name]}, as the run was started, got {value}"
            )
