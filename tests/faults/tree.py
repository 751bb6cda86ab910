"""A copy of the checkout in which a file may be wrong."""

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("src", "tests", "recipes", "tools", "docs", "benchmarks", "claims")
IGNORED = shutil.ignore_patterns(".*", "runs", "*.egg-info")
TIMEOUT = 900.0  # seconds of one run of tests
PASSED = 0  # exit status of pytest
FAILED = 1
# The last line of a failing test in pytest's short summary.
FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What the tests said.

    Attributes:
        status: "passed", "failed", "timeout", or "unusable" where pytest could not run them.
        test: the first failing test, or what pytest printed last.
        seconds: wall time.
    """

    status: str
    test: str
    seconds: float


class Tree:
    """A copy of the checkout at `path`, whose tests import the package from the copy."""

    def __init__(self, path: Path, root: Path = ROOT) -> None:
        self.path = path
        for part in PARTS:
            if (root / part).is_dir():
                shutil.copytree(root / part, path / part, ignore=IGNORED)
        for file in root.iterdir():
            if file.is_file():
                shutil.copy2(file, path / file.name)
        # Python takes a compiled file for current if time and size of its source fit.
        self._clock = int(time.time()) + 1

    def write(self, file: str, text: str) -> None:
        """Replace one file, whose time of change becomes a new one."""
        path = self.path / file
        path.write_text(text, encoding="utf-8")
        self._clock += 1
        os.utime(path, (self._clock, self._clock))

    def run(self, tests: list[str], timeout: float = TIMEOUT) -> Outcome:
        """Run these tests until the first one fails."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
        environment = os.environ | {
            "PYTHONPATH": str(self.path / "src"),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "500",
        }
        start = time.monotonic()
        try:
            process = subprocess.run(
                [*command, *tests],
                cwd=self.path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome("timeout", "", time.monotonic() - start)
        seconds = time.monotonic() - start
        output = process.stdout + process.stderr
        failing = FAILURE.search(output)
        if process.returncode == PASSED:
            return Outcome("passed", "", seconds)
        if failing is not None:
            return Outcome("failed", failing[1], seconds)
        status = "failed" if process.returncode == FAILED else "unusable"
        last_line = output.rstrip().rpartition("\n")[2]
        return Outcome(status, last_line, seconds)
