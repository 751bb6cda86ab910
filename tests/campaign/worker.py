"""A process that checks one case after another, and the side that watches it from outside.

A case that crashes, hangs or swells ends its process, not the campaign: that is a failure of the
case.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from campaign.core import area, limit

TESTS = Path(__file__).resolve().parents[1]
SPARE = 512 << 20  # above the memory of an area: here the process is ended, below it only blamed
KILOBYTE = 1024


class Verdict(NamedTuple):
    """What was wrong, or None; and how long it took."""

    failure: str | None
    seconds: float


class Worker:
    """The side outside: starts the process, and again whenever it is gone."""

    def __init__(self):
        self.process = None
        self.errors = None

    def check(self, case):
        """Check a case."""
        started = time.perf_counter()
        failure = self._checked(case)
        return Verdict(failure, time.perf_counter() - started)

    def _checked(self, case):
        process = self._running()
        wall = limit(case["area"], "WALL")
        memory = limit(case["area"], "MEMORY") + SPARE
        before = _status(process.pid, "VmRSS")
        deadline = time.monotonic() + wall
        try:
            process.stdin.write(json.dumps(case).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._describe_end()
        while not select.select([process.stdout], [], [], 0.03)[0]:
            if _status(process.pid, "VmRSS") - before > memory:
                self.close()
                return f"took more than {memory >> 20} MB and was ended"
            if time.monotonic() > deadline:
                self.close()
                return f"did not end within {wall:g} seconds"
        line = process.stdout.readline()
        return json.loads(line) if line else self._describe_end()

    def _running(self):
        if self.process is None:
            path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
            quiet = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
            self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "campaign.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                env=os.environ | quiet,
                start_new_session=True,
            )
            self.process.stdout.readline()  # it is there
        return self.process

    def _describe_end(self):
        status = self.process.wait()
        self.errors.seek(0)
        words = self.errors.read().decode(errors="replace").strip()
        self.close()
        return f"the process ended with status {status}: {words[-500:]}"

    def close(self):
        """End the process and those that it started."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout, self.errors):
                with suppress(BrokenPipeError):
                    stream.close()
            self.process = None


def _status(pid, key):
    """Bytes of a process by its status: VmRSS, VmHWM (the most there was)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    match = re.search(rf"{key}:\s+(\d+) kB", status)
    return int(match[1]) * KILOBYTE if match else 0


def verdict(case):
    """Check a case in this process; what was wrong, or None."""
    home = Path.cwd()
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    try:
        os.chdir(folder)
        module = area(case["area"])
        getattr(module, "prepare", lambda: None)()
        Path("/proc/self/clear_refs").write_text("5")  # the most memory is counted anew
        memory = _status("self", "VmRSS")
        start = time.process_time()
        module.check(case, folder)
        seconds = time.process_time() - start
        grown = _status("self", "VmHWM") - memory
        assert grown <= limit(case["area"], "MEMORY"), f"memory grew by {grown >> 20} MB"
        assert seconds <= limit(case["area"], "SECONDS"), (
            f"took {seconds:.1f} seconds of processor time"
        )
    except AssertionError as error:
        return str(error) or traceback.format_exc(limit=-1)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
    finally:
        os.chdir(home)
        shutil.rmtree(folder, ignore_errors=True)
    return None


def main():
    """Cases come in as lines, verdicts go out as lines."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed goes elsewhere
    sys.modules["matplotlib"] = None  # its plots would take most of the time of a tiny run
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(verdict(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
