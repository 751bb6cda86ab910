"""Cases that `compare_trees.py` runs in a tree, whose torchcaps is the one that Python imports.

A case is a function that gives a record: tensors by quantity, and groups of named tensors such as
weights. Each case is stored in the folder as two files, its digests as JSON and its tensors.

    PYTHONPATH=TREE/src python tools/tree_probe FOLDER [--only GLOB] [--steps 20] [--shard 0/1]
"""

from __future__ import annotations

import argparse
import faulthandler
import fnmatch
import hashlib
import json
import os
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from image_cases import dataset_cases
from layer_cases import function_cases, router_cases
from model_cases import model_cases
from training_cases import setting_cases, task_cases

import torchcaps as tc
from records import NotApplicable, Record

FAMILIES = (
    function_cases,
    dataset_cases,
    router_cases,
    model_cases,
    task_cases,
    setting_cases,
)
CASE_SECONDS = 300  # after which a case counts as hanging, and the process ends


def all_cases(steps: int) -> dict[str, Callable[[], Record]]:
    """Cases by name. A family that fails to list its cases has one more, which fails."""
    cases: dict[str, Callable[[], Record]] = {}
    for family in FAMILIES:
        try:
            for name, probe in family(steps):
                if name in cases:
                    raise ValueError(f"two cases are called {name}")
                cases[name] = probe
        except Exception as error:
            cases[f"list/{family.__name__}"] = partial(fail, error)
    return cases


def fail(error: Exception) -> Record:
    raise error


def case_file(folder: Path, name: str, ending: str) -> Path:
    return folder / f"{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}{ending}"


def run_case(folder: Path, name: str, probe: Callable[[], Record]) -> None:
    """Run a case and store what it gives, or why it fails."""
    entry: dict[str, Any] = {"name": name}
    torch.manual_seed(0)
    started = time.perf_counter()
    try:
        record = probe()
    except NotApplicable as reason:
        entry["not_applicable"] = str(reason)
    except Exception as error:
        entry["error"] = f"{type(error).__name__}: {error}".split("\n")[0]
        entry["traceback"] = traceback.format_exc()
    else:
        entry |= record.digests()
        stored = {"tensors": record.tensors, "groups": record.groups}
        torch.save(stored, case_file(folder, name, ".pt"))
    entry["seconds"] = round(time.perf_counter() - started, 3)
    partial_file = case_file(folder, name, ".part")
    partial_file.write_text(json.dumps(entry), encoding="utf-8")
    partial_file.replace(case_file(folder, name, ".json"))


def matches_pattern(name: str, pattern: str) -> bool:
    """Whether a case runs; one that tells why cases are missing always does."""
    return name.startswith("list/") or fnmatch.fnmatchcase(name, pattern)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run cases in the tree on PYTHONPATH.")
    parser.add_argument("folder", type=Path, help="where the cases are stored")
    parser.add_argument("--tree", type=Path, help="the checkout that has to be imported")
    parser.add_argument("--only", default="*", help="wildcard of the names of cases")
    parser.add_argument("--steps", type=int, default=20, help="of each training")
    parser.add_argument("--shard", default="0/1", help="which part of the cases, of how many")
    arguments = parser.parse_args()
    source = Path(tc.__file__).resolve()
    if arguments.tree is not None and arguments.tree.resolve() not in source.parents:
        raise SystemExit(f"expected torchcaps of {arguments.tree}, got {source}")

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cases = all_cases(arguments.steps)
    index, count = map(int, arguments.shard.split("/"))
    names = [name for name in cases if matches_pattern(name, arguments.only)]
    for name in names[index::count]:
        if case_file(arguments.folder, name, ".json").exists():
            continue
        running = case_file(arguments.folder, name, ".running")
        running.write_text(f"{name}\n{os.getpid()}", encoding="utf-8")
        faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
        run_case(arguments.folder, name, cases[name])
        faulthandler.cancel_dump_traceback_later()
        running.unlink()


if __name__ == "__main__":
    main()
