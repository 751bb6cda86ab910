"""What the compiler makes of the GPU kernels, without a GPU.

    python tools/compile_kernels.py [--shapes matter|grid|all]

Triton compiles for a named GPU, and its `ptxas` tells registers, spills and shared memory; tensor-core instructions are
counted in the PTX. The batch and the number of parents are arguments of a compiled kernel, no part of it. A compilation
takes a second or two: 220 for the shapes that matter, 412 for the grid, 900 for all. The rows go to
benchmarks/results/gpu_offline.json; status 1 where a kernel takes more than it may.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.report import RESULTS, machine, print_table  # noqa: E402

from torchcaps.kernels.dynamic import _triton_passes  # noqa: E402
from torchcaps.kernels.dynamic.triton import choose_tile  # noqa: E402

RESULT = RESULTS / "gpu_offline.json"
TARGETS = (80, 90)
# Types of poses and weights, and how matrices are multiplied.
PRECISIONS = {
    "fp32": ("*fp32", "*fp32", "ieee"),
    "tf32": ("*fp32", "*fp32", "tf32"),
    "bf16": ("*bf16", "*bf16", "bf16"),
    "fp16": ("*fp16", "*fp16", "tf32"),
    "bf16, fp32 weights": ("*bf16", "*fp32", "bf16"),
}
FACTORS = {"uniform": 0, "couplings": 1, "gradients": 2}
KERNELS: dict[str, dict[str, Any]] = {
    "agreements": {"LEAKY": False, "BACKWARD": False, "OUTER": False},
    "agreements, backward": {"LEAKY": True, "BACKWARD": True, "OUTER": True},
    **{f"sums, {name}": {"FACTOR": factor} for name, factor in FACTORS.items()},
    **{f"pose_gradient, {name}": {"FACTOR": factor} for name, factor in FACTORS.items()},
    **{f"weight_gradient, {name}": {"FACTOR": factor} for name, factor in FACTORS.items()},
}
# They multiply no matrices, and are compiled for float32, in which all sums are.
SQUASHES: dict[str, dict[str, Any]] = {"squash": {}, "squash_gradient": {"HAS_LENGTH": True}}
# (dim, in_dim). The shapes that matter are 10, 17, 43 and 100 parents of 16 from 8, and 10 of 16 from 32. Other shapes
# are compiled without what has loads of other types or does a part of another kernel's work.
MATTER = [(16, 8), (16, 32)]
SHAPES = {
    "matter": MATTER,
    "grid": [*MATTER, *product((4, 32), (4, 32, 128)), (16, 128), (24, 48)],
    "all": [
        *MATTER,
        *product((4, 8, 32), (4, 8, 16, 32, 64, 128)),
        *product((16,), (4, 16, 64, 128)),
        (3, 5),
        (24, 48),
    ],
}
LARGEST = [
    "agreements, backward",
    *(f"{name}, gradients" for name in ("sums", "pose_gradient", "weight_gradient")),
]
MAIN = ["fp32", "tf32", "bf16"]
MAX_SHARED, MAX_SPILLED = 160 << 10, 256  # bytes


def figures(kernel: str, dim: int, in_dim: int, precision: str, target: int) -> dict[str, Any]:
    """One row: a kernel in the tile that is chosen for this shape, compiled for a GPU (80 is sm_80)."""
    tile = choose_tile(dim, in_dim)
    source, options = _source(kernel, dim, in_dim, precision)
    compiled = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
    ptx = compiled.asm["ptx"]
    log = _assemble(ptx, target)
    return {
        "kernel": kernel,
        "dim": dim,
        "in_dim": in_dim,
        "precision": precision,
        "gpu": f"sm_{target}",
        "samples": tile.BLOCK_B,
        "children": tile.BLOCK_I,
        "warps": tile.options["num_warps"],
        "stages": tile.options["num_stages"],
        "registers": int(_first_match(r"Used (\d+) registers", log)),
        "spilled B": int(_first_match(r"(\d+) bytes spill stores", log)),
        "shared B": compiled.metadata.shared,
        "tensor-core": len(re.findall(r"\bmma\.sync|\bwgmma\.mma_async", ptx)),
    }


def _source(kernel: str, dim: int, in_dim: int, precision: str) -> tuple[ASTSource, dict[str, Any]]:
    """What is compiled, as a launch with aligned tensors and 16 n children would have it, and Triton's options."""
    function = getattr(_triton_passes, kernel.partition(",")[0])
    pose, weight, mode = PRECISIONS[precision]
    tile = choose_tile(dim, in_dim)
    constants = {"TILE": tile, "MODE": mode, **(KERNELS | SQUASHES)[kernel]}
    constants = {name: constants[name] for name in function.arg_names if name in constants}
    numbers = {
        "batch": "i32",
        "children": "i32",
        "parents": "i32",
        "per_split": "i32",
        "uniform": "fp32",
    }
    types = numbers | {"pose": pose, "weight": weight} | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "*fp32") for name in function.arg_names}
    aligned = [
        n
        for n, (name, kind) in enumerate(signature.items())
        if kind[0] == "*" or name in ("children", "per_split")
    ]
    attributes = {(n,): [["tt.divisibility", 16]] for n in aligned}
    return ASTSource(function, signature, constants, attributes), tile.options


def _assemble(ptx: str, target: int) -> str:
    """What ptxas says of it."""
    arch = _first_match(r"\.target (\w+)", ptx)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx, encoding="utf-8")
        command = [
            get_ptxas(target).path,
            "-v",
            f"--gpu-name={arch}",
            "-o",
            str(path.with_suffix(".cubin")),
            str(path),
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def _first_match(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise RuntimeError(f"ptxas: expected {pattern!r} in what it says, got {text[:200]!r}")
    return match.group(1)


def rows(shapes: Iterable[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """A row for each kernel, shape, precision and GPU."""
    for shape in shapes:
        precisions, kernels = (PRECISIONS, KERNELS) if shape in MATTER else (MAIN, LARGEST)
        for precision, target, kernel in product(precisions, TARGETS, kernels):
            yield figures(kernel, *shape, precision, target)
        for target, kernel in product(TARGETS, SQUASHES):
            yield figures(kernel, *shape, "fp32", target)


def worst(figure_rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each shape, precision and GPU: the largest figures of all kernels, the fewest tensor-core instructions."""
    groups: dict[tuple[object, ...], dict[str, Any]] = {}
    for row in figure_rows:
        case = {name: row[name] for name in list(row)[1:9]}
        group = groups.setdefault(
            tuple(case.values()), case | {name: row[name] for name in list(row)[9:]}
        )
        for name in ("registers", "spilled B", "shared B"):
            group[name] = max(group[name], row[name])
        group["tensor-core"] = min(group["tensor-core"], row["tensor-core"])
    return list(groups.values())


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", choices=SHAPES, default="grid")
    shapes = parser.parse_args().shapes
    figure_rows: list[dict[str, Any]] = []
    for row in rows(SHAPES[shapes]):
        if not figure_rows:
            print(*row, sep=", ")
        figure_rows.append(row)
        print(*row.values(), sep="  ", flush=True)
    print("\nWorst of all kernels:")
    print_table(worst(figure_rows))
    heavy = [
        row for row in figure_rows if row["shared B"] > MAX_SHARED or row["spilled B"] > MAX_SPILLED
    ]
    head = {
        "command": f"python tools/compile_kernels.py --shapes {shapes}",
        "triton": triton.__version__,
        "machine": machine(),
        "columns": list(figure_rows[0]),
    }
    lines = ",\n".join("    " + json.dumps(list(row.values())) for row in figure_rows)
    RESULT.write_text(
        json.dumps(head, indent=2)[:-2] + f',\n  "rows": [\n{lines}\n  ]\n}}\n', encoding="utf-8"
    )
    print(
        f"written to {RESULT}; {len(heavy)} of {len(figure_rows)} take more than "
        f"{MAX_SHARED} B shared or spill more than {MAX_SPILLED} B"
    )
    return 1 if heavy else 0


if __name__ == "__main__":
    sys.exit(main())
