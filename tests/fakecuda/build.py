"""Builds the fake device, once for each torch and source: about 20 seconds.

    python -m fakecuda.build

It prints the path of the library, which is in an ignored folder.
"""

import hashlib
import shutil
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("device.cpp")
SOURCES = (SOURCE, SOURCE.with_name("graph.hpp"))
NAME = "fakecuda_device"


def missing_tool() -> str:
    """Why it cannot be built here, a sentence; empty if it can."""
    if sys.platform != "linux":
        return "the fake GPU is built on Linux only"
    for tool in ("g++", "ninja"):
        if shutil.which(tool) is None:
            return f"the fake GPU needs {tool}, which is not installed"
    return ""


def library_path(version: str) -> Path:
    """Where the library for a version of torch is, whether it is built or not."""
    content = b"".join(source.read_bytes() for source in SOURCES)
    content += version.encode() + sys.version.encode()
    digest = hashlib.blake2b(content, digest_size=6).hexdigest()
    return SOURCE.parent / "build" / digest / f"{NAME}.so"


def build() -> Path:
    """Build the library unless it is there; return its path."""
    import torch
    from torch.utils import cpp_extension

    path = library_path(torch.__version__)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        cpp_extension.CUDA_HOME = None
        cpp_extension.load(
            NAME,
            [str(SOURCE)],
            extra_cflags=["-O1", "-w"],
            build_directory=str(path.parent),
            is_python_module=False,
            is_standalone=False,
        )
    return path


if __name__ == "__main__":
    print(build())
