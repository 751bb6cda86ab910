from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from torchcaps.training import allocator

FAULTS = """
import runpy, resource
allocator = runpy.run_path({file!r})
if {keep}:
    assert allocator["keep_memory"]()
import numpy
def use():
    numpy.ones(50 << 17)  # 50 MiB, every page of it touched
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(keep):
    code = FAULTS.format(file=allocator.__file__, keep=keep)
    return int(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
    )


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
def test_kept_memory_is_not_mapped_anew():
    assert page_faults(keep=True) < 100 < page_faults(keep=False)


def test_another_allocator_is_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(allocator.ctypes, "CDLL", None)
    assert allocator.keep_memory() is False
