"""Memory at hand."""

import math
import re
from contextlib import suppress
from pathlib import Path

import torch

MEMORY_FILE = Path("/proc/meminfo")
GROUP_FILE = Path("/sys/fs/cgroup/memory.max")  # the limit of a control group of version 2


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
    with suppress(OSError, ValueError):
        (kibibytes,) = re.findall(r"MemAvailable:\s*(\d+)", MEMORY_FILE.read_text())
        limits.append(int(kibibytes) << 10)
    with suppress(OSError, ValueError):  # "max" is no limit
        limits.append(int(GROUP_FILE.read_text()))
    return min(limits)
