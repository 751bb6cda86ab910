"""Every system on the fake GPU; a line of JSON for each.

    PYTHONPATH=src:tests python -m fakecuda.systems capsnet resnet20 --precision bf16

See `fakecuda.runs`. Launches and host waits are those of a step. `--write` makes them the budgets,
which tests compare.
"""

from fakecuda import gpu  # isort: skip

import argparse
import json
import shutil
import tempfile
import warnings
from pathlib import Path

import torch

from fakecuda.runs import list_systems, run_system

BUDGETS = Path(__file__).with_name("budgets.json")


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--write", action="store_true", help="write the budgets")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in options.names or list_systems():
        folder = Path(tempfile.mkdtemp(prefix="fake-gpu-"))
        row = run_system(name, options.precision, folder / "run", gpu.counted)
        shutil.rmtree(folder)
        print(json.dumps(row), flush=True)
        if options.write and not row["fault"]:
            write_budget(row)


def write_budget(row):
    """Make the launches and waits of a row the budget of its system."""
    budgets = json.loads(BUDGETS.read_text()) if BUDGETS.exists() else {}
    budgets[row["name"]] = {"launches": row["launches"], "waits": row["waits"]}
    BUDGETS.write_text(json.dumps(dict(sorted(budgets.items())), indent=2) + "\n")


if __name__ == "__main__":
    main()
