"""The run folder: all that is needed to repeat, resume and use a training run."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torchcaps.errors import RunError, TrainingError, read_text
from torchcaps.settings import TrainConfig
from torchcaps.training.checkpoint import (
    LAST_FILE,
    MODEL_FILE,
    PREVIOUS_FILE,
    atomic,
    load_tensors,
    write_json,
)
from torchcaps.training.environment import check_threads, environment
from torchcaps.training.lock import LOCK, exclusive, holder, in_use, is_alive, make_folder

CONFIG, ENVIRONMENT, METRICS = "config.json", "environment.json", "metrics.jsonl"
RESUME_OVERRIDES = (
    "device",
    "root",
    "max_bytes",
)  # settings that a run may be told anew when it goes on


class RunFolder:
    """Paths and small files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.model = (
            self.path / MODEL_FILE
        )  # the best one by validation, ready for `torchcaps.load`
        self.last = (
            self.path / "checkpoints" / LAST_FILE
        )  # the newest state of the training, for `resume`
        self.previous = self.last.with_name(
            PREVIOUS_FILE
        )  # the state before it, for when the newest is damaged
        self.metrics = self.path / METRICS

    def epoch_model(self, epoch: int) -> Path:
        """The model of an epoch, counted from 1, where the run keeps them (`keep_epochs`)."""
        return self.last.with_name(f"epoch-{epoch:04d}.safetensors")

    @classmethod
    def fresh(cls, path: str | Path) -> RunFolder:
        """A folder for a new run; nothing is made yet. Raises RunError if there is a run already, or a file that a run
        would replace."""
        run = cls(path)
        if (run.path / CONFIG).exists():
            if holder(run.path) not in (None, os.getpid()):
                raise in_use(run.path)
            how = "continue it with --resume, or name another --output"
            raise RunError(f"{run.path}: there is a run here already; {how}")
        in_the_way = [file for file in (run.metrics, run.model) if file.exists()]
        in_the_way += sorted(run.last.parent.glob("*.safetensors"))
        if (run.path / ENVIRONMENT).exists() and "torchcaps" not in run.environment():
            in_the_way.append(run.path / ENVIRONMENT)  # with it, it is of a start that was killed
        for file in in_the_way:
            raise RunError(f"{file}: is in the way, and no part of a run; name another --output")
        return run

    @contextmanager
    def begun(self, config: TrainConfig) -> Iterator[None]:
        """Hold the folder as that of a new run; what an error leaves without a checkpoint is removed. Raises RunError
        if there is a run already, or no folder can be made; TrainingError if it cannot be written to."""
        with exclusive(self.path):
            self.fresh(self.path)  # another may have begun since it was asked
            try:
                self.start(config)
                yield
            except Exception:
                self.discard_empty()
                raise

    @contextmanager
    def continued(self) -> Iterator[None]:
        """Hold the folder of a run that goes on; an environment that was lost is written anew. Raises RunError if
        another process holds it; TrainingError if it cannot be written to."""
        with exclusive(self.path):
            make_folder(self.last.parent)  # what copies folders may leave out empty ones
            before = self.environment()
            if before.get("threads") is None:
                threads = self.threads()
                known = before if threads is None else before | {"threads": threads}
                write_json(self.path / ENVIRONMENT, environment() | known)
            yield

    def start(self, config: TrainConfig) -> None:
        """Make the folder and write the environment and the configuration, which makes it a run. Raises RunError if the
        folder cannot be made; TrainingError if it cannot be written to."""
        make_folder(self.path)
        make_folder(self.last.parent)
        write_json(self.path / ENVIRONMENT, environment())
        write_json(self.path / CONFIG, config.to_dict())

    def discard_empty(self) -> None:
        """Remove what a run wrote that has neither model nor checkpoint, so that the next one can start here. Files of
        other kinds stay, and so then does the folder."""
        if self.model.exists() or self.last.exists() or self.previous.exists():
            return
        with suppress(OSError):  # such as a folder that holds something else
            for name in (CONFIG, ENVIRONMENT, METRICS):
                (self.path / name).unlink(missing_ok=True)
            self.last.parent.rmdir()
            (self.path / LOCK).unlink(missing_ok=True)
            self.path.rmdir()

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An existing run folder. Raises RunError if there is no run."""
        run = cls(path)
        if not (run.path / CONFIG).exists():
            raise RunError(f"{run.path}: no run folder, or none with a {CONFIG}")
        return run

    def config(self) -> TrainConfig:
        """The resolved configuration of the run. Raises RunError if it is damaged."""
        file = self.path / CONFIG
        try:
            return TrainConfig.from_dict(json.loads(read_text(file)))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise RunError(f"{file}: is no readable configuration ({error})") from error

    def environment(self) -> dict[str, Any]:
        """Versions and hardware of the machine that started the run; empty if that was not recorded."""
        try:
            found = json.loads(read_text(self.path / ENVIRONMENT))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def threads(self) -> int | None:
        """Processor threads that the run was started with, by its environment or else its checkpoints; None: unknown.
        Raises RunError if that is no number of threads."""
        facts = self.environment()
        for checkpoint in (self.last, self.previous):
            if facts.get("threads") is None and checkpoint.exists():
                with suppress(RunError):  # of damage is told when it is read to continue
                    facts = load_tensors(checkpoint)[1]
        if facts.get("threads") is None:
            return None
        try:
            return check_threads("threads", facts["threads"])
        except ValueError as error:
            raise RunError(f"{self.path / ENVIRONMENT}: {error}") from error

    def unchanging(self, config: TrainConfig) -> dict[str, Any]:
        """What a checkpoint of this run keeps of its configuration and environment, to compare with when it goes on."""
        settings = {
            name: value for name, value in config.flat().items() if name not in RESUME_OVERRIDES
        }
        threads = self.threads()
        return {"settings": settings} | ({} if threads is None else {"threads": threads})

    def append(self, row: dict[str, Any]) -> None:
        """Add one line to the metrics, in a single write; a line that does not fit is taken back. Raises TrainingError
        when it cannot be written."""
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
        """All whole lines of the metrics, by "kind" and "step"; a last line that a crash cut short is left out. Raises
        RunError if another line is damaged."""
        if not self.metrics.exists():
            return []
        try:
            *lines, _ = read_text(self.metrics).split("\n")
            rows = [json.loads(line) for line in lines]
            if not all(
                isinstance(row, dict) and "kind" in row and type(row.get("step")) is int
                for row in rows
            ):
                raise ValueError("a line without kind, or without a step that is a whole number")
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(
                f"{self.metrics}: is not readable as one JSON object a line ({error})"
            ) from error
        return rows

    def rewind(self, step: int) -> None:
        """Forget metrics of steps after `step`, and what writes left that were killed: training continues from there.
        Raises RunError or TrainingError if the metrics cannot be read or written."""
        rows = [row for row in self.rows() if row["step"] <= step]
        with suppress(OSError):
            for partial in self.path.rglob(".*.partial"):
                writer = re.search(r"\.(\d+)-\d+\.partial$", partial.name)
                if not (writer and is_alive(int(writer[1]))):
                    partial.unlink(missing_ok=True)
        with atomic(self.metrics) as partial:
            partial.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
