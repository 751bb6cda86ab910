"""A function in a process of its own, for readers that a forged file makes crash or hang.

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
# The code of the child: limits first, then the function, whose result goes to a file.
CHILD = """
import importlib, json, os, pickle, sys
request = json.loads(sys.argv[1])
sys.path[:] = request["path"]
os.putenv("OPENBLAS_NUM_THREADS", "1")
try:
    import resource
    resource.setrlimit(resource.RLIMIT_DATA, (request["memory"], request["memory"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ImportError, ValueError, OSError):
    pass
try:
    module, name = request["function"].split(":")
    function = getattr(importlib.import_module(module), name)
    answer = (True, function(*request["arguments"], **request["options"]))
except MemoryError:
    answer = (False, None)
except BaseException as error:
    answer = (False, f"{type(error).__name__}: {error}")
with open(request["output"], "wb") as file:
    pickle.dump(answer, file, protocol=5)
"""


class IsolatedError(Exception):
    """The failure of the other process, as a part of a sentence."""


def call_isolated(
    function: str,
    *arguments: Any,
    max_bytes: int,
    timeout: float,
    **options: Any,
) -> Any:
    """Call a function in a process of its own.

    Args:
        function: `module:function`; its result must be one that can be pickled.
        arguments: positional ones; JSON must be able to hold them and the options.
        max_bytes: memory that the process may take.
        timeout: seconds after which it is ended.
        options: keyword arguments.

    Returns:
        The result of the function.

    Raises:
        IsolatedError: it raised an exception, took too much memory or time, or ended early.
    """
    too_large = f"it takes more than {max_bytes / MIB:,.0f} MiB of memory"
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "answer"
        request = {
            "path": sys.path,
            "memory": max_bytes,
            "function": function,
            "arguments": arguments,
            "options": options,
            "output": str(output),
        }
        try:
            child = subprocess.run(
                [sys.executable, "-c", CHILD, json.dumps(request)],
                check=False,
                timeout=timeout,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        except subprocess.TimeoutExpired:
            raise IsolatedError(f"it takes more than {timeout:.0f} seconds") from None
        if child.returncode or not output.exists():
            if b"bad_alloc" in child.stderr or b"MemoryError" in child.stderr:
                raise IsolatedError(too_large)
            raise IsolatedError(f"the process that read it ended with status {child.returncode}")
        is_done, answer = pickle.loads(output.read_bytes())
    if is_done:
        return answer
    is_memory_error = answer is None or "can't allocate memory" in answer
    raise IsolatedError(too_large if is_memory_error else answer)
