"""The run folder: all that is needed to repeat, resume and use a training run."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from torchcaps.errors import RunError, TrainingError, read_text
from torchcaps.training.checkpoint import LAST_FILE, MODEL_FILE, atomic, write_json
from torchcaps.training.config import TrainConfig
from torchcaps.training.environment import environment

CONFIG, ENVIRONMENT, METRICS = "config.json", "environment.json", "metrics.jsonl"


class RunFolder:
    """Paths and small files of one run.

    Attributes:
        path: the folder.
        model: the best model by validation, ready for `torchcaps.load`.
        last: the newest state of the training, for `resume`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.model = self.path / MODEL_FILE
        self.last = self.path / "checkpoints" / LAST_FILE
        self.metrics = self.path / METRICS

    def epoch_model(self, epoch: int) -> Path:
        """The model of an epoch, counted from 1, where the run keeps them (`keep_epochs`)."""
        return self.last.with_name(f"epoch-{epoch:04d}.safetensors")

    @classmethod
    def fresh(cls, path: str | Path) -> RunFolder:
        """A folder for a new run; nothing is made yet.

        Raises:
            RunError: if there is a run already, or a file that a run would replace.
        """
        run = cls(path)
        if (run.path / CONFIG).exists():
            raise RunError(
                f"{run.path}: there is a run here already; continue it with --resume, or name another --output"
            )
        for file in (run.path / ENVIRONMENT, run.metrics, run.model, run.last):
            if file.exists():
                raise RunError(f"{file}: is in the way, and no part of a run; name another --output")
        return run

    def start(self, config: TrainConfig) -> None:
        """Make the folder and write the configuration, which makes it a run, and the environment.

        Raises:
            RunError: if the folder cannot be made. TrainingError: if it cannot be written to.
        """
        try:
            self.last.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{self.path}: the run folder cannot be made ({error.strerror})") from error
        write_json(self.path / CONFIG, config.to_dict())
        write_json(self.path / ENVIRONMENT, environment())

    def discard_empty(self) -> None:
        """Remove what a run wrote that has neither model nor checkpoint, so that the next one can start here.

        Files of other kinds stay, and so then does the folder.
        """
        if self.model.exists() or self.last.exists():
            return
        with suppress(OSError):  # such as a folder that holds something else
            for name in (CONFIG, ENVIRONMENT, METRICS):
                (self.path / name).unlink(missing_ok=True)
            self.last.parent.rmdir()
            self.path.rmdir()

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An existing run folder.

        Raises:
            RunError: if there is no run.
        """
        run = cls(path)
        if not (run.path / CONFIG).exists():
            raise RunError(f"{run.path}: no run folder, or none with a {CONFIG}")
        return run

    def config(self) -> TrainConfig:
        """The resolved configuration of the run.

        Raises:
            RunError: if it is damaged.
        """
        file = self.path / CONFIG
        try:
            return TrainConfig.from_dict(json.loads(read_text(file)))
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{file}: is no readable configuration ({error})") from error

    def environment(self) -> dict[str, Any]:
        """Versions and hardware of the machine that started the run; empty if that was not recorded."""
        try:
            found = json.loads(read_text(self.path / ENVIRONMENT))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def append(self, row: dict[str, Any]) -> None:
        """Add one line to the metrics, in a single write; a line that does not fit is taken back.

        Raises:
            TrainingError: when it cannot be written.
        """
        line = (json.dumps(row) + "\n").encode()
        try:
            handle = os.open(self.metrics, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                before = os.fstat(handle).st_size
                written = os.write(handle, line)
                if written != len(line):
                    os.ftruncate(handle, before)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(handle)
        except OSError as error:
            raise TrainingError(f"{self.metrics}: cannot be written ({error.strerror})") from error

    def rows(self) -> list[dict[str, Any]]:
        """All whole lines of the metrics, by "kind" and "step"; a last line that a crash cut short is left out.

        Raises:
            RunError: if another line is damaged.
        """
        if not self.metrics.exists():
            return []
        try:
            *lines, _ = read_text(self.metrics).split("\n")
            rows = [json.loads(line) for line in lines]
            if not all(isinstance(row, dict) and {"kind", "step"} <= row.keys() for row in rows):
                raise ValueError("a line without kind and step")
        except (OSError, ValueError) as error:
            raise RunError(f"{self.metrics}: is not readable as one JSON object a line ({error})") from error
        return rows

    def rewind(self, step: int) -> None:
        """Forget metrics of steps after `step`, and partial files: training continues from there.

        Raises:
            RunError, TrainingError: if the metrics cannot be read or written.
        """
        rows = [row for row in self.rows() if row["step"] <= step]
        for leftover in (*self.path.glob(".*.partial"), *self.last.parent.glob(".*.partial")):
            leftover.unlink(missing_ok=True)
        with atomic(self.metrics) as partial:
            partial.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
