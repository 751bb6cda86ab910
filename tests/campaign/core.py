"""What a case is, which areas there are, and in which mix they are drawn.

A case is a small JSON object: area, test, seed, and what the area's `draw` adds. Everything follows from it. An area is
a module of `campaign.areas` with

    TESTS = {"bit flips": 900, ...}     cases of each test among 10,000; 0 for what runs only when it is asked for
    def draw(test, random) -> dict      what a case holds besides area, test and seed
    def check(case, folder)             raises AssertionError with a sentence; `folder` is empty and the current one

and, where they differ from the defaults below, MEMORY, SECONDS, WALL, and `prepare()` for what all cases share.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

from campaign import areas

Case = dict[str, Any]
MEMORY = 1 << 30  # bytes by which a case may make the process grow
SECONDS = 10.0  # of processor time that a case may take in the process
WALL = 90.0  # seconds after which a case hangs, on a machine that does other things too
FIXED = Path(__file__).with_name("cases")


def area_names() -> list[str]:
    """The areas; a name with an underscore before it is found by `area` alone."""
    return sorted(
        found.name
        for found in pkgutil.iter_modules(areas.__path__)
        if not found.name.startswith("_")
    )


def area(name: str) -> ModuleType:
    """The module of an area."""
    return importlib.import_module(f"campaign.areas.{name}")


def limit(name: str, which: str) -> Any:
    """MEMORY, SECONDS or WALL of an area."""
    return getattr(area(name), which, globals()[which])


def dice(case: Case) -> Random:
    """The random numbers of a case."""
    return Random(f"{case['area']}/{case['test']}/{case['seed']}")


def drawn(name: str, test: str, seed: int) -> Case:
    """The case of this seed."""
    case = {"area": name, "test": test, "seed": seed}
    return case | area(name).draw(test, dice(case))


def shares(only: Sequence[str] = ()) -> dict[tuple[str, str], int]:
    """Cases of each (area, test) among 10,000; `only` names areas, or tests as "area/test", which then all count."""
    tests = {
        (name, test): share for name in area_names() for test, share in area(name).TESTS.items()
    }
    if not only:
        return {key: share for key, share in tests.items() if share}
    chosen = {key: share for key, share in tests.items() if key[0] in only or "/".join(key) in only}
    asked = {key: share or ("/".join(key) in only) for key, share in chosen.items()}
    if not any(asked.values()):
        raise SystemExit(
            f"--only: nothing of {', '.join(only)} among {', '.join('/'.join(key) for key in tests)}"
        )
    return {key: int(share) for key, share in asked.items() if share}


def cases(seed: int, only: Sequence[str] = ()) -> Iterator[Case]:
    """Cases without end; at any moment the tests have had their shares of them."""
    wanted = shares(only)
    total, given = sum(wanted.values()), dict.fromkeys(wanted, 0)
    for number in range(1, 1 << 62):
        key = max(wanted, key=lambda k: wanted[k] * number / total - given[k])
        yield drawn(*key, seed * 1_000_000 + given[key])
        given[key] += 1


def fixed(only: Sequence[str] = ()) -> list[Case]:
    """The committed cases: what once went wrong."""
    found = [case for file in sorted(FIXED.glob("*.json")) for case in read_cases(file)]
    return [
        case
        for case in found
        if not only or case["area"] in only or f"{case['area']}/{case['test']}" in only
    ]


def read_cases(file: Path) -> list[Case]:
    """The cases in a file: one, or a list of them."""
    found = json.loads(file.read_text(encoding="utf-8"))
    listed = found if isinstance(found, list) else [found]
    return [{"area": file.stem, "seed": 0} | case for case in listed]


def title(case: Case) -> str:
    """A short name that is good for a file, too."""
    words = f"{case['area']} {case['test']} {case.get('name', case['seed'])}"
    return "".join(c if c.isalnum() else "-" for c in words)
