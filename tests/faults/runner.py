"""Put a fault into a copy of the checkout, and run the tests that should fail."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .records import ROOT, Fault

IGNORED = shutil.ignore_patterns(".?*", "runs", "*.egg-info")
TIMEOUT = 900.0  # seconds of one run of tests
PASSED = 0  # exit status of pytest
FAILED = (1, 2)  # 2: a file of tests cannot be imported


def judge(fault: Fault, root: Path = ROOT) -> str:
    """The verdict of a fault.

    "caught", "survived", "stale", or "unusable" where its tests fail without it, too.
    """
    if fault.stale(root):
        return "stale"
    with tempfile.TemporaryDirectory(prefix="fault-") as name:
        copy = Path(name, "checkout")
        shutil.copytree(root, copy, ignore=IGNORED)
        source = copy / fault.path
        text = source.read_text(encoding="utf-8")
        source.write_text(text.replace(fault.find, fault.replace), encoding="utf-8")
        status = run_tests(copy, *fault.tests)
        if status == PASSED:
            return "survived"

        # With its time of change, so that Python does not take the compiled fault for current.
        shutil.copy2(root / fault.path, source)
        repeated = run_tests(copy, "--last-failed", *fault.tests)
        return "caught" if status in FAILED and repeated == PASSED else "unusable"


def run_tests(checkout: Path, *words: str) -> int:
    """Run tests on the package of a checkout until one fails; pytest's exit status."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", *words]
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    try:
        process = subprocess.run(
            command,
            cwd=checkout,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return FAILED[0]
    return process.returncode
