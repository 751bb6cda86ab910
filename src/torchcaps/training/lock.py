"""One process at a time in a run folder: a lock that the system takes away when its process dies."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchcaps.errors import RunError, TrainingError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LOCK = ".lock"


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold `folder`, which is made where it is not there, for this process alone; RunError when another one does."""
    path = folder / LOCK
    make_folder(folder)
    try:
        handle = _acquire(path)
    except OSError as error:
        with suppress(OSError):  # not empty: it was there before, or is another's
            folder.rmdir()
        raise TrainingError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        yield
    finally:
        with suppress(OSError):
            if _is(
                handle, path
            ):  # while it is locked: who opened it meanwhile sees that the next is another
                path.unlink()
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, where they are not there; RunError if that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: the folder cannot be made ({error.strerror})") from error


def holder(folder: Path) -> int | None:
    """The process that says it holds `folder`, if it is alive, by its id."""
    try:
        process = int((folder / LOCK).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return process if is_alive(process) else None


def is_alive(process: int) -> bool:
    """Whether a process of this id runs; False where the system has no harmless way to ask."""
    if os.name != "posix" or process < 1:
        return False
    try:
        os.kill(process, 0)
    except PermissionError:
        return True  # it is another user's
    except (ProcessLookupError, OverflowError):
        return False
    return True


def in_use(folder: Path) -> RunError:
    """What is said of a folder that another process holds."""
    for _ in range(20):
        if process := holder(folder):
            break
        time.sleep(0.01)  # it has the lock, and writes its id in this moment
    who = f"process {process}" if process else "another process"
    return RunError(
        f"{folder}: {who} is training here; wait for its end or stop it, or name another --output"
    )


def _acquire(path: Path) -> int:
    """A handle of the locked file, which names this process."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(handle, path)
            taken = _is(handle, path)  # else its holder removed the file after it was opened here
            if taken:
                os.ftruncate(handle, 0)
                os.write(handle, str(os.getpid()).encode())
        except BaseException:
            os.close(handle)
            raise
        if taken:
            return handle
        os.close(handle)


def _lock(handle: int, path: Path) -> None:
    try:
        if sys.platform == "win32":
            os.lseek(
                handle, 2**20, os.SEEK_SET
            )  # beyond the text, which others must be able to read
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            os.lseek(handle, 0, os.SEEK_SET)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        raise in_use(path.parent) from error


def _is(handle: int, path: Path) -> bool:
    """Whether the open file is the one of this name."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
