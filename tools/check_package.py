"""Run the commands of README.md as typed, and its Python, with the torchcaps that is installed.

    python tools/check_package.py      with the Python of an environment where a wheel is installed

`make package` builds, installs and calls this. Faults: status 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from check_commands import FENCE, SHELLS, shell_commands

ROOT = Path(__file__).resolve().parents[1]


def readme_commands() -> list[list[str]]:
    """The words of each command of README.md that a user of a wheel types, and of its Python."""
    commands = []
    for language, block in FENCE.findall((ROOT / "README.md").read_text(encoding="utf-8")):
        if language in SHELLS:
            # Those of make are for a checkout.
            commands += [words for words in shell_commands(block) if words[0] == "torchcaps"]
        elif language == "python":
            commands.append([sys.executable, "-c", block])
    return commands


def main() -> int:
    """Run all commands in an empty folder, until one fails."""
    package = find_spec("torchcaps")
    if (
        package is None
        or package.origin is None
        or Path(package.origin).is_relative_to(ROOT / "src")
    ):
        print(f"expected an installed torchcaps, got {package}", file=sys.stderr)
        return 1
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    commands = readme_commands()
    with tempfile.TemporaryDirectory() as folder:
        for words in commands:
            print("$", *words, flush=True)
            status = subprocess.run(words, cwd=folder, env=environment, check=False).returncode
            if status:
                print(f"status {status}", file=sys.stderr)
                return 1
    print(f"{len(commands)} commands of README.md run with {package.origin}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
