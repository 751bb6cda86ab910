"""Versions and hardware: what a figure was measured with."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from torchcaps import plugins


def environment() -> dict[str, Any]:
    """Versions and hardware, for the record.

    Modules that a command was told to import (`--import`) are "imports".
    """
    modules = plugins.imported()
    facts = {
        "torchcaps": package_version("torchcaps"),
        "torch": torch.__version__,
        "numpy": package_version("numpy"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    if modules:
        facts["imports"] = modules
    return facts


def package_version(package: str) -> str:
    """The version of an installed package, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
