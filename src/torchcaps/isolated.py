"""A function in a process of its own, for readers that a forged file makes crash, hang or take all memory.

Limits of memory hold where the system has them (Linux); a limit of time holds everywhere.
"""

import json
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MIB = 1 << 20
# The child's own code: limits first, then the function; what comes of it goes to a file.
CHILD = """
import importlib, json, os, pickle, sys
about = json.loads(sys.argv[1])
sys.path[:] = about["path"]
os.putenv("OPENBLAS_NUM_THREADS", "1")
try:
    import resource
    resource.setrlimit(resource.RLIMIT_DATA, (about["memory"], about["memory"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ImportError, ValueError, OSError):
    pass
try:
    module, function = about["function"].split(":")
    answer = (True, getattr(importlib.import_module(module), function)(*about["arguments"], **about["options"]))
except MemoryError:
    answer = (False, None)
except BaseException as error:
    answer = (False, f"{type(error).__name__}: {error}")
with open(about["output"], "wb") as file:
    pickle.dump(answer, file, protocol=5)
"""


class IsolatedError(Exception):
    """What went wrong in the other process, as a part of a sentence."""


def call_isolated(
    function: str, *arguments: Any, max_bytes: int, timeout: float, **options: Any
) -> Any:
    """The result of `module:function` called with plain arguments in a process of its own.

    Args:
        function: where it is found; its result must be one that can be pickled.
        arguments: what JSON can hold, as the options, which are keywords.
        max_bytes: memory that the process may take.
        timeout: seconds after which it is ended.

    Raises:
        IsolatedError: it raised an exception, took too much memory or time, or ended early.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "answer"
        about = {
            "path": sys.path,
            "memory": max_bytes,
            "function": function,
            "arguments": arguments,
            "options": options,
            "output": str(output),
        }
        too_large = f"it takes more than {max_bytes / MIB:,.0f} MiB of memory"
        try:
            child = subprocess.run(
                [sys.executable, "-c", CHILD, json.dumps(about)],
                check=False,
                timeout=timeout,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        except subprocess.TimeoutExpired:
            raise IsolatedError(f"it takes more than {timeout:.0f} seconds") from None
        if child.returncode or not output.exists():
            is_memory = b"bad_alloc" in child.stderr or b"MemoryError" in child.stderr
            ended = f"the process that read it ended with status {child.returncode}"
            raise IsolatedError(too_large if is_memory else ended)
        with open(output, "rb") as file:
            is_done, answer = pickle.load(file)
    if not is_done:
        is_memory = answer is None or "can't allocate memory" in answer
        raise IsolatedError(too_large if is_memory else answer)
    return answer
