"""Systems trained with and without a graph of their step; a line of JSON for each.

    PYTHONPATH=src:tests python -m fakecuda.graphs capsnet resnet20 --precision bf16

See `fakecuda.pairs`.
"""

from fakecuda import gpu  # noqa: F401  # isort: skip

import argparse
import json
import tempfile
import warnings

import torch

from fakecuda.kernels import stand_ins
from fakecuda.pairs import compare
from fakecuda.runs import list_systems


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--precision", default="bf16")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in options.names or list_systems():
        with tempfile.TemporaryDirectory(prefix="fake-gpu-") as folder, stand_ins():
            row = compare(name, options.precision, folder)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
