"""The run folder: all that is needed to repeat, resume and use a training run."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from torchcaps.errors import RunError, TrainingError
from torchcaps.training.checkpoint import LAST_FILE, MODEL_FILE, atomic, write_json
from torchcaps.training.config import TrainConfig

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

    @classmethod
    def create(cls, path: str | Path, config: TrainConfig) -> RunFolder:
        """Make a new run folder and write its configuration and environment.

        Raises:
            RunError: if there is a run already, or the folder cannot be made.
        """
        run = cls(path)
        if (run.path / CONFIG).exists():
            raise RunError(f"{run.path}: there is a run here already; continue it with --resume, or name another --output")
        try:
            run.last.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{run.path}: the run folder cannot be made ({error.strerror})") from error
        write_json(run.path / ENVIRONMENT, environment())
        write_json(run.path / CONFIG, config.to_dict())
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An existing run folder.

        Raises:
            RunError: if there is no run.
        """
        run = cls(path)
        if not (run.path / CONFIG).exists():
            raise RunError(f"{run.path}: is no run folder (it has no {CONFIG})")
        return run

    def config(self) -> TrainConfig:
        """The resolved configuration of the run.

        Raises:
            RunError: if it is damaged.
        """
        try:
            return TrainConfig.from_dict(json.loads((self.path / CONFIG).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{self.path / CONFIG}: cannot be read ({error})") from error

    def append(self, row: dict[str, Any]) -> None:
        """Add one line to the metrics, in a single write.

        Raises:
            TrainingError: when it cannot be written.
        """
        line = (json.dumps(row) + "\n").encode()
        try:
            handle = os.open(self.metrics, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                written = os.write(handle, line)
            finally:
                os.close(handle)
        except OSError as error:
            raise TrainingError(f"{self.metrics}: cannot be written ({error.strerror})") from error
        if written != len(line):
            raise TrainingError(f"{self.metrics}: cannot be written (no space left)")

    def rows(self) -> list[dict[str, Any]]:
        """All whole lines of the metrics; a last line that a crash cut short is left out."""
        if not self.metrics.exists():
            return []
        lines = self.metrics.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n") and line.startswith("{")]

    def rewind(self, step: int) -> None:
        """Forget metrics of steps after `step`, and partial files: training continues from there."""
        rows = [row for row in self.rows() if row["step"] <= step]
        for leftover in (*self.path.glob(".*.partial"), *self.last.parent.glob(".*.partial")):
            leftover.unlink()
        with atomic(self.metrics) as partial:
            partial.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def environment() -> dict[str, Any]:
    """Versions and hardware, for the record."""
    return {
        "torchcaps": _version("torchcaps"),
        "torch": torch.__version__,
        "numpy": _version("numpy"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
