"""Memory at hand."""

import math
import os
import re
from contextlib import suppress
from pathlib import Path

import torch

MEMORY_FILE = Path("/proc/meminfo")
GROUP_FILES = (  # limits of control groups, of version 2 and 1
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def available_memory(device: torch.device) -> float:
    """Bytes that a process can allocate on a device.

    Args:
        device: a GPU, or else the CPU.

    Returns:
        On the CPU, the least of what the machine has available and its control group's limit;
        infinity where the system does not tell.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limits = [math.inf]
    if hasattr(os, "sysconf"):  # not on Windows
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError):
        numbers = re.findall(r"MemAvailable:\s*(\d+) kB", MEMORY_FILE.read_text())
        limits += [int(number) << 10 for number in numbers]
    for file in GROUP_FILES:
        with suppress(OSError, ValueError):  # "max" is no limit
            limits.append(int(file.read_text()))
    return min(limits)
