"""Every system on the fake GPU; a line of JSON for each.

    PYTHONPATH=src:tests python -m fakecuda.systems capsnet resnet20 --precision bf16

See `fakecuda.runs`. Launches and host waits are those of a step, with the kernels of Triton, unless
the name ends in "without Triton". `--write` makes them the budgets, which tests compare.
"""

from fakecuda import gpu  # isort: skip

import argparse
import json
import shutil
import tempfile
import warnings
from pathlib import Path
from unittest import mock

import torch

from fakecuda.kernels import stand_ins
from fakecuda.runs import list_systems, run_system
from torchcaps.kernels.dynamic import triton

BUDGETS = Path(__file__).with_name("budgets.json")
WITHOUT_TRITON = " without Triton"  # the end of a name
ALL = [*list_systems(), "capsnet" + WITHOUT_TRITON]


def run(name, precision, folder):
    """The row of a system, whose name may say that it runs without Triton."""
    system = name.removesuffix(WITHOUT_TRITON)
    without = mock.patch.object(triton, "HAS_TRITON", False)
    kernels = stand_ins() if system == name else without
    with kernels:
        return run_system(system, precision, folder, gpu.counted) | {"name": name}


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--write", action="store_true", help="write the budgets")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in options.names or ALL:
        folder = Path(tempfile.mkdtemp(prefix="fake-gpu-"))
        row = run(name, options.precision, folder / "run")
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
