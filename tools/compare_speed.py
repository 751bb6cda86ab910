"""Is a redesign as fast? Time the same steps in two checkouts, one after the other.

    python tools/compare_speed.py BASE NEW [--only GLOB] [--pairs 30] [--threads 1] [--json FILE]

Each tree has a process of its own, and only one of them works at a time: a pair is one training
step in the one tree and one in the other, in an order that alternates. A busy machine then slows
both alike. The figure of a case is the median over pairs of the ratio new / base, with a 95 %
interval by bootstrap.

Exit status: 0 every interval lies below --limit, 1 one does not or a step fails, 2 the command
line was wrong. More pairs make the intervals narrower.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

PROBE = Path(__file__).resolve().with_name("tree_probe")
# Model, its options, batch size and implementation.
CASES: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "capsnet_small blocked": ("capsnet_small", {}, 32, "blocked"),
    "capsnet_small reference": ("capsnet_small", {}, 32, "reference"),
    "capsnet auto": ("capsnet", {}, 32, "auto"),
    "matrix_caps_small auto": ("matrix_caps_small", {}, 32, "auto"),
    "matrix_caps_small blocked": ("matrix_caps_small", {}, 8, "blocked"),
    "efficient_capsnet": ("efficient_capsnet", {}, 64, "auto"),
    "vb_caps": ("vb_caps_small", {}, 16, "auto"),
    "heinsen": ("heinsen", {}, 16, "auto"),
    "sr_capsnet": ("sr_capsnet", {}, 8, "auto"),
    "segcaps": ("segcaps_r1", {"img_size": 32}, 2, "auto"),
}
WARM_UP = 3  # steps that are not counted: compilation, caches


class Tree:
    """A checkout whose process takes steps when asked."""

    def __init__(
        self, path: Path, case: tuple[str, dict[str, Any], int, str], threads: int
    ) -> None:
        environment = dict(os.environ, PYTHONPATH=f"{path / 'src'}{os.pathsep}{PROBE.parent}")
        environment["OMP_NUM_THREADS"] = str(threads)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tree_probe.step", json.dumps(case), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def seconds(self) -> float:
        """Take one step; its time in seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with status {self.process.wait()}")
        return float(line)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(
    base: Path, new: Path, case: tuple[str, dict[str, Any], int, str], pairs: int, threads: int
) -> dict[str, float]:
    """Medians in ms, the median ratio new / base, and its 95 % interval."""
    trees = [Tree(base, case, threads), Tree(new, case, threads)]
    try:
        for _ in range(WARM_UP):
            for tree in trees:
                tree.seconds()
        times = np.empty((pairs, 2))
        for pair in range(pairs):
            order = (0, 1) if pair % 2 == 0 else (1, 0)
            for index in order:
                times[pair, index] = trees[index].seconds()
    finally:
        for tree in trees:
            tree.close()

    ratios = times[:, 1] / times[:, 0]
    draws = np.random.default_rng(0).integers(0, pairs, size=(10_000, pairs))
    medians = np.median(ratios[draws], axis=1)
    lower, upper = np.quantile(medians, (0.025, 0.975))
    base_ms, new_ms = 1000 * np.median(times, axis=0)
    return {
        "base ms": float(base_ms),
        "new ms": float(new_ms),
        "ratio": float(np.median(ratios)),
        "lower": float(lower),
        "upper": float(upper),
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", default="*", help="names of cases, with * and ?")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1.03, help="of the ratio new / base")
    parser.add_argument("--json", type=Path, help="write the figures into this file")
    options = parser.parse_args(arguments)
    cases = {name: case for name, case in CASES.items() if fnmatch.fnmatch(name, options.only)}
    if not cases:
        print(f"--only {options.only}: no case has such a name", file=sys.stderr)
        return 2

    figures: dict[str, dict[str, float]] = {}
    failed = False
    for name, case in cases.items():
        try:
            row = measure(options.base, options.new, case, options.pairs, options.threads)
        except RuntimeError as error:
            print(f"{name:26} fails: {error}")
            failed = True
            continue
        figures[name] = row
        failed = failed or row["upper"] > options.limit
        verdict = ""
        if row["lower"] > options.limit:
            verdict = "  SLOWER"
        elif row["upper"] > options.limit:
            verdict = "  undecided"
        print(
            f"{name:26} {row['base ms']:9.1f} -> {row['new ms']:9.1f} ms, "
            f"ratio {row['ratio']:.3f} [{row['lower']:.3f}, {row['upper']:.3f}]{verdict}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
