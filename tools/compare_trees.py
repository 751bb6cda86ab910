"""Prove that a redesign changes no number: run the same cases in two checkouts, compare all bits.

    python tools/compare_trees.py BASE NEW [--only GLOB] [--jobs 1] [--steps 20] [--json FILE]

The cases stand in `tree_probe/`: models, routers, trainings of every task, data sets. They run
on the CPU with one thread, each tree in processes of its own. What an unchanged base gave is kept
by its commit in the folder `--cache`, so that it runs once; the new tree always runs.

Names that a redesign changes go into one file, `tree_probe/adapter.py`.

Exit status: 0 everything is equal, 1 something differs, fails or runs in one tree alone,
2 the command line was wrong.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

PROBE = Path(__file__).resolve().with_name("tree_probe")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
MAX_QUANTITIES = 4  # of a case in the text; the JSON has all
SUMMARY_QUANTITIES = 8  # quantities that differ in most cases
TRACEBACK_LINES = 3  # lines


@dataclass(frozen=True)
class Tree:
    """A checkout, and the folder that has what its cases gave."""

    path: Path
    title: str  # "base" or "new"
    folder: Path


@dataclass
class Difference:
    """A quantity that differs, in words, and by how much."""

    quantity: str
    reason: str
    largest: float | None = None

    def __str__(self) -> str:
        size = "" if self.largest is None else f", largest difference {self.largest:.3g}"
        return f"{self.quantity}: {self.reason}{size}"


@dataclass
class Verdict:
    """What became of a case."""

    name: str
    status: str  # "equal", "different", "base only", "new only", "fails"
    message: str = ""
    differences: list[Difference] = field(default_factory=list)
    num_quantities: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


# ---------------------------------------------------------------------------------------------
# Running the cases of a tree.


def commit_of(path: Path) -> str | None:
    """The commit of a checkout without changes; None for any other folder."""
    git = ["git", "-C", str(path)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    status = subprocess.run(
        [*git, "status", "--porcelain", "--ignore-submodules"],
        capture_output=True,
        text=True,
        check=False,
    )
    is_unchanged = head.returncode == 0 and status.returncode == 0 and not status.stdout.strip()
    return head.stdout.strip() if is_unchanged else None


def cache_key(commit: str, steps: int) -> str:
    """Whatever decides the numbers of an unchanged checkout on this machine."""
    parts = [commit, str(steps), sys.version]
    parts += [file.read_text(encoding="utf-8") for file in sorted(PROBE.glob("*.py"))]
    parts += [version(package) for package in ("torch", "numpy", "scipy")]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=10).hexdigest()


def base_folder(path: Path, steps: int, cache: Path) -> Path | None:
    """Where the cases of an unchanged base are kept; None for a base with changes."""
    commit = commit_of(path)
    return None if commit is None else cache / cache_key(commit, steps)


def open_tree(path: Path, title: str, cache_folder: Path | None, stack: ExitStack) -> Tree:
    """A tree with a folder that is kept, or else removed when the stack closes."""
    folder = cache_folder
    if folder is None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{title}-")))
    folder.mkdir(parents=True, exist_ok=True)
    return Tree(path, title, folder)


def environment(tree: Tree, bytecode: Path) -> dict[str, str]:
    """One thread, no GPU, this tree's package, and nothing written into the tree."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    return {
        **inherited,
        **dict.fromkeys(THREADS, "1"),
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": str(tree.path / "src"),
        "PYTHONPYCACHEPREFIX": str(bytecode),
    }


def forget_failures(tree: Tree) -> None:
    """Remove cases that failed or were cut short, so that they run again."""
    for file in tree.folder.glob("*.running"):
        file.unlink()
    for file in tree.folder.glob("*.json"):
        if "error" in json.loads(file.read_text(encoding="utf-8")):
            file.unlink()


def run_shard(tree: Tree, shard: str, pattern: str, steps: int, bytecode: Path) -> str | None:
    """Run a part of the cases of a tree. A process that dies costs the case that it ran.

    Returns the reason in words where no process can run any case.
    """
    command = [sys.executable, str(PROBE), str(tree.folder), "--tree", str(tree.path)]
    command += ["--only", pattern, "--steps", str(steps), "--shard", shard]
    while True:
        with tempfile.TemporaryDirectory(prefix="probe-") as scratch:
            process = subprocess.Popen(
                command,
                cwd=scratch,
                env=environment(tree, bytecode),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                _, errors = process.communicate()
            except BaseException:
                process.kill()
                raise
        if process.returncode == 0:
            return None
        last_lines = " | ".join(errors.strip().splitlines()[-TRACEBACK_LINES:])
        reason = f"the process ended with status {process.returncode}: {last_lines}"
        if not mark_crash(tree, process.pid, reason):
            return reason


def mark_crash(tree: Tree, process_id: int, reason: str) -> bool:
    """Note the case that a dead process was running; False if there is none."""
    for file in tree.folder.glob("*.running"):
        name, _, owner = file.read_text(encoding="utf-8").rpartition("\n")
        if owner == str(process_id):
            entry = {"name": name, "error": reason, "seconds": 0.0}
            file.with_suffix(".json").write_text(json.dumps(entry), encoding="utf-8")
            file.unlink()
            return True
    return False


def run_trees(trees: Iterable[Tree], pattern: str, steps: int, jobs: int, bytecode: Path) -> None:
    """Run all cases that no folder has yet, in so many processes at a time."""
    shards_of_each = max(1, jobs // 2)
    tasks = []
    with ThreadPoolExecutor(jobs) as pool:
        for tree in trees:
            forget_failures(tree)
            for index in range(shards_of_each):
                shard = f"{index}/{shards_of_each}"
                task = pool.submit(run_shard, tree, shard, pattern, steps, bytecode)
                tasks.append((tree, task))
    for tree, task in tasks:
        reason = task.result()
        if reason is not None:
            raise SystemExit(f"{tree.path}: no case can run; {reason}")


# ---------------------------------------------------------------------------------------------
# Comparing what two trees gave.


def load_entries(tree: Tree, pattern: str) -> dict[str, dict[str, Any]]:
    """Digests, or an error, of every case by its name."""
    entries = {}
    for file in tree.folder.glob("*.json"):
        entry = json.loads(file.read_text(encoding="utf-8"))
        matches_pattern = entry["name"].startswith("list/") or fnmatch.fnmatchcase(
            entry["name"], pattern
        )
        if matches_pattern and "not_applicable" not in entry:
            entries[entry["name"]] = {**entry, "file": file.with_suffix(".pt")}
    return dict(sorted(entries.items()))


def compare_all(base: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Verdict]:
    for name in sorted({*base, *new}):
        verdict = compare_case(name, base.get(name), new.get(name))
        sides = {"base": base.get(name), "new": new.get(name)}
        verdict.seconds = {side: entry["seconds"] for side, entry in sides.items() if entry}
        yield verdict


def compare_case(
    name: str,
    base: Mapping[str, Any] | None,
    new: Mapping[str, Any] | None,
) -> Verdict:
    missing = {"error": "there is no such case"}
    base = missing if base is None else base
    new = missing if new is None else new
    base_error = base.get("error")
    new_error = new.get("error")
    if base_error and new_error:
        return Verdict(name, "fails", f"base: {base_error}; new: {new_error}")
    if base_error:
        return Verdict(name, "new only", f"base: {base_error}")
    if new_error:
        return Verdict(name, "base only", f"new: {new_error}")

    differences = [
        *compare_tensors(base, new),
        *compare_groups(base, new),
    ]
    status = "different" if differences else "equal"
    num_quantities = len(base["tensors"]) + len(base["groups"])
    return Verdict(name, status, differences=differences, num_quantities=num_quantities)


def compare_tensors(base: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    base_digests = base["tensors"]
    new_digests = new["tensors"]
    for quantity in base_digests | new_digests:
        if quantity not in new_digests:
            yield Difference(quantity, "only in base")
        elif quantity not in base_digests:
            yield Difference(quantity, "only in new")
        elif base_digests[quantity] != new_digests[quantity]:
            base_tensor = stored(base)["tensors"][quantity]
            new_tensor = stored(new)["tensors"][quantity]
            yield tensor_difference(quantity, base_tensor, new_tensor)


def compare_groups(base: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    """Weights and gradients, by order and by name."""
    for quantity in base["groups"] | new["groups"]:
        if quantity not in new["groups"]:
            yield Difference(quantity, "only in base")
        elif quantity not in base["groups"]:
            yield Difference(quantity, "only in new")
        elif base["groups"][quantity] != new["groups"][quantity]:
            base_group = stored(base)["groups"][quantity]
            new_group = stored(new)["groups"][quantity]
            yield group_difference(
                quantity,
                base["groups"][quantity],
                new["groups"][quantity],
                dict(base_group),
                dict(new_group),
            )


def stored(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a case."""
    import torch

    return torch.load(entry["file"], weights_only=True)


def tensor_difference(quantity: str, base: Any, new: Any) -> Difference:
    """Shape, type, or the largest difference and where the first one is."""
    import torch

    if base.shape != new.shape:
        return Difference(quantity, f"shape {list(base.shape)} in base, {list(new.shape)} in new")
    if base.dtype != new.dtype:
        return Difference(quantity, f"{base.dtype} in base, {new.dtype} in new")
    base_numbers = base.double().reshape(-1)
    new_numbers = new.double().reshape(-1)
    differs = (base_numbers != new_numbers) & ~(base_numbers.isnan() & new_numbers.isnan())
    num_different = int(differs.sum())
    if num_different == 0:
        return Difference(quantity, "bits differ where numbers are equal (signs of zero, NaN)", 0.0)
    first = int(differs.nonzero()[0])
    place = [int(index) for index in torch.unravel_index(torch.tensor(first), base.shape)]
    distance = (base_numbers - new_numbers).abs()[differs]
    reason = f"{num_different} of {base.numel()} numbers differ, the first at {place}"
    return Difference(quantity, reason, float(distance.nan_to_num(nan=float("inf")).max()))


def group_difference(
    quantity: str,
    base_digests: list[list[str]],
    new_digests: list[list[str]],
    base_tensors: Mapping[str, Any],
    new_tensors: Mapping[str, Any],
) -> Difference:
    """How groups of named tensors differ: by order and by name."""
    base_names = [name for name, _ in base_digests]
    new_names = [name for name, _ in new_digests]
    same_in_order = [digest for _, digest in base_digests] == [digest for _, digest in new_digests]
    same_by_name = dict(base_digests) == dict(new_digests)
    reasons = [
        "equal in order" if same_in_order else "not equal in order",
        "equal by name" if same_by_name else "not equal by name",
    ]
    renamed = [pair for pair in zip(base_names, new_names, strict=False) if pair[0] != pair[1]]
    if len(base_names) != len(new_names):
        reasons.append(f"{len(base_names)} tensors in base, {len(new_names)} in new")
    if renamed:
        old_name, new_name = renamed[0]
        reasons.append(f"{len(renamed)} names differ in order, first {old_name!r}, {new_name!r}")

    shared = [name for name in base_names if name in new_tensors]
    new_by_name = dict(new_digests)
    changed = [name for name, digest in base_digests if new_by_name.get(name, digest) != digest]
    largest = None
    if changed:
        parts = [tensor_difference(n, base_tensors[n], new_tensors[n]) for n in changed]
        sizes = [part.largest for part in parts if part.largest is not None]
        largest = max(sizes, default=None)
        reasons.append(f"{len(changed)} of {len(shared)} tensors differ, first {parts[0]}")
    return Difference(quantity, "; ".join(reasons), largest)


# ---------------------------------------------------------------------------------------------
# Telling.


def print_verdict(verdict: Verdict) -> None:
    message = f": {verdict.message}" if verdict.message else ""
    print(f"{verdict.status.upper()} {verdict.name}{message}")
    for difference in verdict.differences[:MAX_QUANTITIES]:
        print(f"    {difference}")
    rest = len(verdict.differences) - MAX_QUANTITIES
    if rest > 0:
        print(f"    and {rest} more")


def summary(verdicts: list[Verdict]) -> str:
    counts: dict[str, int] = {}
    for verdict in verdicts:
        counts[verdict.status] = counts.get(verdict.status, 0) + 1
    words = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    num_quantities = sum(verdict.num_quantities for verdict in verdicts)
    return f"{len(verdicts)} cases, {num_quantities} quantities: {words or 'none'}"


def print_quantities(verdicts: Iterable[Verdict]) -> None:
    """Which quantities differ in most cases, and by how much at most."""
    cases_of: dict[str, list[float]] = {}
    for verdict in verdicts:
        for difference in verdict.differences:
            cases_of.setdefault(difference.quantity, []).append(difference.largest or 0.0)
    by_count = sorted(cases_of.items(), key=lambda item: -len(item[1]))
    for quantity, sizes in by_count[:SUMMARY_QUANTITIES]:
        print(f"    {len(sizes)} cases differ in {quantity}, by up to {max(sizes):.3g}")


def as_json(trees: Iterable[Tree], verdicts: Iterable[Verdict]) -> str:
    document = {
        "trees": {tree.title: {"path": str(tree.path)} for tree in trees},
        "cases": {
            verdict.name: {
                "status": verdict.status,
                "message": verdict.message,
                "seconds": verdict.seconds,
                "differences": [vars(difference) for difference in verdict.differences],
            }
            for verdict in verdicts
        },
    }
    return json.dumps(document, indent=1)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("base", type=Path, help="the checkout whose numbers are right")
    parser.add_argument("new", type=Path, help="the checkout to compare with it")
    parser.add_argument("--only", default="*", metavar="GLOB", help="cases, such as 'task/*'")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--steps", type=int, default=20, help="steps of each training")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where verdicts are written")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(tempfile.gettempdir()) / "torchcaps-compare-trees",
        help="folder that keeps what unchanged checkouts gave",
    )
    arguments = parser.parse_args()
    for path in (arguments.base, arguments.new):
        if not (path / "src" / "torchcaps" / "__init__.py").is_file():
            parser.error(f"{path}: expected a checkout with src/torchcaps")
    for name in ("jobs", "steps"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name}: expected at least 1")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    pattern = arguments.only
    steps = arguments.steps
    cache = arguments.cache.resolve()
    with ExitStack() as stack:
        base_path = arguments.base.resolve()
        base = open_tree(base_path, "base", base_folder(base_path, steps, cache), stack)
        new = open_tree(arguments.new.resolve(), "new", None, stack)
        run_trees((base, new), pattern, steps, arguments.jobs, cache / "bytecode")
        verdicts = list(compare_all(load_entries(base, pattern), load_entries(new, pattern)))
        for verdict in verdicts:
            if verdict.status != "equal":
                print_verdict(verdict)
        print_quantities(verdicts)
        print(summary(verdicts))
        if arguments.json is not None:
            arguments.json.write_text(as_json((base, new), verdicts), encoding="utf-8")
    is_equal = bool(verdicts) and all(verdict.status == "equal" for verdict in verdicts)
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
