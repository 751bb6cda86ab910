"""What a process does to files and processes, by Python's audit events; and harm at such events."""

import errno
import os
import signal
import stat
import sys
from contextlib import contextmanager
from pathlib import Path

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.truncate",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.chown",
    "os.utime",
    "os.setxattr",
    "shutil.move",
    "shutil.copyfile",
    "tempfile.mkstemp",
    "tempfile.mkdtemp",
}
EXECUTIONS = {
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.forkpty",
    "pty.spawn",
    "socket.connect",
    "socket.bind",
    "pickle.find_class",
    "ctypes.dlopen",
    "webbrowser.open",
    "os.kill",
}
_listeners = []
_forever = []


def _hook(event, arguments):
    for listener in tuple(_listeners):
        listener(event, arguments)


@contextmanager
def _listening(listener):
    if not getattr(sys, "_campaign_hook", False):
        sys.addaudithook(_hook)  # for as long as the process lives: hooks cannot be taken back
        sys._campaign_hook = True
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def is_change(event, arguments):
    """Whether an event is a change of files."""
    if event == "open":
        _, mode, flags = arguments
        return bool(set(mode or "") & set("wax+")) or bool((flags or 0) & WRITING)
    return event in CHANGES


def by_isolated_reader():
    """Whether the library starts its process for readers that may crash, or fetches its answer."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "call_isolated":
            return True
        frame = frame.f_back
    return False


@contextmanager
def no_side_effects(folder):
    """Fails when what happens inside executes something, or changes a file here or anywhere.

    The process of a reader that may crash, and the temporary folder of its answer, do not count.
    """
    effects = []

    def note(event, arguments):
        if (event in EXECUTIONS or is_change(event, arguments)) and not by_isolated_reader():
            effects.append(f"{event} {str(arguments[:1])[:200]}")

    before = listing(folder)
    with _listening(note):
        yield
    assert not effects, (
        f"something was executed or written: {effects[0]} (and {len(effects) - 1} more)"
    )
    assert listing(folder) == before, "the folder is not as it was before"


def listing(folder):
    """Type, size and time of every file below a folder."""
    entries = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size  # that of a folder may change
        entries[str(path.relative_to(folder))] = (status.st_mode, size, status.st_mtime_ns)
    return entries


@contextmanager
def at_change(number, act, below, once=True):
    """Act before a change of files below a folder, by its number from 0.

    Unless `once`, act at all later changes too.
    """
    remaining = number

    def listener(event, arguments):
        nonlocal remaining
        if not is_change(event, arguments) or not isinstance(
            arguments[0], str | bytes | os.PathLike
        ):
            return
        if Path(os.path.abspath(os.fsdecode(arguments[0]))).is_relative_to(below):
            remaining -= 1
            if remaining == -1 or (remaining < -1 and not once):
                act(event)

    with _listening(listener):
        yield


def kill(event):
    """What `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at(number):
    """From here on, this process kills itself before the change of this number to a run's files."""
    _forever.append(at_change(number, kill, Path("run").absolute()))
    _forever[0].__enter__()


def full(event):
    """What a full disk does to all but removals."""
    if event not in ("os.remove", "os.rmdir"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
