"""How much memory a device has available."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch

try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def available_memory(
    device: torch.device, proc: Path = PROC, cgroups: Path = CGROUPS
) -> int | None:
    """Bytes that this process can still allocate on a device.

    On the CPU that is the least of what the machine has available, of what the control groups of
    the process leave it, and of its limit of address space.

    Args:
        device: a CPU or a GPU.
        proc: where Linux tells of the machine and the process.
        cgroups: where it tells of control groups.

    Returns:
        The bytes; None where the system does not tell.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    limits = [*_machine_memory(proc), *_group_memory(proc, cgroups), *_address_space(proc)]
    return min(limits, default=None)


def _machine_memory(proc: Path) -> Iterator[int]:
    """What the machine has available, or has at all if it tells no more."""
    try:
        text = (proc / "meminfo").read_text()
    except OSError:
        text = ""
    match = re.search(r"^MemAvailable:\s*(\d+) kB", text, re.MULTILINE)
    if match:
        yield int(match[1]) << 10
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _group_memory(proc: Path, cgroups: Path) -> Iterator[int]:
    """What each control group of this process leaves, of version 2 or 1."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            folder = cgroups
            names = ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            folder = cgroups / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        group = Path(path.lstrip("/"))
        for ancestor in (group, *group.parents):
            yield from _read_group(folder / ancestor, *names)


def _read_group(folder: Path, limit_name: str, usage_name: str) -> Iterator[int]:
    """What a control group leaves; pages of files that it can drop are free."""
    try:
        limit = (folder / limit_name).read_text().strip()
        usage = int((folder / usage_name).read_text())
        statistics = (folder / "memory.stat").read_text()
    except (OSError, ValueError):
        return
    if limit.isdigit():  # "max" is no limit
        match = re.search(r"^(?:total_)?inactive_file (\d+)", statistics, re.MULTILINE)
        droppable = int(match[1]) if match else 0
        yield max(0, int(limit) - usage + droppable)


def _address_space(proc: Path) -> Iterator[int]:
    """What a limit of the process's address space (`ulimit -v`) leaves."""
    if resource is None:
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    try:
        num_pages = int((proc / "self" / "statm").read_text().split()[0])
    except OSError:
        num_pages = 0
    yield max(0, limit - num_pages * os.sysconf("SC_PAGE_SIZE"))
