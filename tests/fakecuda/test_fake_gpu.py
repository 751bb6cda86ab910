"""The tests of `on_device`, in a process whose torch has a GPU of host memory.

`make test-fake-gpu` runs all of them; those marked slow take minutes.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fakecuda.build import SOURCE, missing_tool

TESTS = Path(__file__).parents[1]
CHECKS = Path(__file__).with_name("on_device")


def run_python(*words):
    """Run this Python with the checkout on its path; its exit status and output."""
    paths = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS), str(TESTS.parent)])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, *words],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        cwd=TESTS.parent,
    )
    return process.returncode, process.stdout + process.stderr


@pytest.fixture(scope="module")
def fake_gpu():
    """The built device; it takes 20 seconds once."""
    reason = missing_tool()
    if torch.version.cuda or torch.version.hip:
        reason = "it needs a build of torch without kernels of a GPU"
    if reason:
        pytest.skip(reason)
    folder = SOURCE.parent / "build"
    folder.mkdir(exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status, output = run_python("-m", "fakecuda.build")
    assert status == 0, output


@pytest.mark.timeout(600)
def test_a_gpu_of_host_memory_runs_the_library(fake_gpu):
    options = ["-p", "fakecuda.gpu", "-p", "no:cacheprovider", "-o", "python_files=check_*.py"]
    status, output = run_python("-m", "pytest", *options, str(CHECKS))
    assert status == 0, output
