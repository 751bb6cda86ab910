"""Files and folders of a run: a file is written whole or not at all."""

import itertools
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from torchcaps.errors import RunError, TrainingError

CONFIG_FILE = "config.json"  # makes a folder a run
LOCK_FILE = ".lock"
_counter = itertools.count()


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, where they are missing; RunError if that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: the folder cannot be made ({error.strerror})") from error


@contextmanager
def atomic(path: Path, previous: Path | None = None) -> Iterator[Path]:
    """A temporary path beside `path` that replaces it when the block ends well, else is removed.

    The file that is replaced goes to `previous`, if one is named: at every moment one of the two
    is there and whole. Raises TrainingError when the file cannot be written.
    """
    # The name is of this process and this call alone: two writers of one file do not mix.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{next(_counter)}.partial")
    try:
        yield partial
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            os.replace(path, previous)
        move(partial, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TrainingError(
            f"{path}: cannot be written ({reason}); what was there before is unchanged"
        ) from error
    finally:
        with suppress(OSError):  # moved already, or never made
            partial.unlink()


def move(source: Path, target: Path) -> None:
    """Rename a file within its folder, for good.

    A power cut after it does not undo it.
    """
    os.replace(source, target)
    with suppress(OSError):  # not every system opens folders, or synchronizes them
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically."""
    with atomic(path) as partial:
        partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold `folder`, which is made where it is missing, for this process alone.

    The system releases the lock of a process that dies. Raises RunError when another process holds
    the folder, TrainingError when it cannot be written to.
    """
    path = folder / LOCK_FILE
    make_folder(folder)
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise RunError(
            f"{folder}: {_holder(path)} is training here; wait for its end or stop it, "
            "or name another --output"
        ) from error
    except OSError as error:
        with suppress(OSError):  # not empty: it was there before
            folder.rmdir()
        raise TrainingError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        with suppress(OSError):  # Windows does not write to a locked file
            path.write_text(str(os.getpid()), encoding="ascii")
        yield
    finally:
        lock.release()  # the file stays: removing it would let two processes hold it


def _holder(lock_file: Path) -> str:
    """The process that holds a lock, in words."""
    try:
        return f"process {int(lock_file.read_text(encoding='ascii'))}"
    except (OSError, ValueError):
        return "another process"
