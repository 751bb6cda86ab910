"""What a case is, which areas there are, and in which mix they are drawn.

A case is a small JSON object: area, test, seed, and what the area's `draw` adds. Everything follows
from it. An area is a module of `campaign.areas` with

    TESTS = {"bit flips": 900, ...}     cases of each test among 10,000; 0 for those on request
    def draw(test, random) -> dict      what a case holds besides area, test and seed
    def check(case, folder)             raises AssertionError with a sentence; `folder` is empty and
                                        the current one

and, where they differ from the defaults below, MEMORY, SECONDS, WALL, and `prepare()` for what all
cases share.
"""

import importlib
import json
import pkgutil
from operator import attrgetter
from pathlib import Path
from random import Random

from campaign import areas

MEMORY = 1 << 30  # bytes by which a case may make the process grow
SECONDS = 10.0  # of processor time that a case may take in the process
WALL = 90.0  # seconds after which a case hangs, on a machine that does other things too
FIXED = Path(__file__).with_name("cases")


def area_names():
    """The areas, without those whose names begin with an underscore."""
    names = map(attrgetter("name"), pkgutil.iter_modules(areas.__path__))
    return sorted(name for name in names if not name.startswith("_"))


def area(name):
    """The module of an area."""
    return importlib.import_module(f"campaign.areas.{name}")


def limit(name, setting):
    """MEMORY, SECONDS or WALL of an area."""
    return getattr(area(name), setting, globals()[setting])


def dice(case):
    """The random numbers of a case."""
    return Random(f"{case['area']}/{case['test']}/{case['seed']}")


def draw_case(name, test, seed):
    """The case of this seed."""
    case = {"area": name, "test": test, "seed": seed}
    return case | area(name).draw(test, dice(case))


def is_selected(name, test, selection):
    """Whether an area, or "area/test", is in a selection; an empty one has all."""
    return not selection or name in selection or f"{name}/{test}" in selection


def shares(selection=()):
    """Cases of each (area, test) among 10,000; tests that are selected by their own name count."""
    numbers = {}
    for name in area_names():
        for test, share in area(name).TESTS.items():
            number = share or int(f"{name}/{test}" in selection)
            if number and is_selected(name, test, selection):
                numbers[name, test] = number
    if not numbers:
        raise SystemExit(f"--only: there is no test {', '.join(selection)}")
    return numbers


def cases(seed, selection=()):
    """Cases without end; at any moment the tests have had their shares of them."""
    numbers = shares(selection)
    total = sum(numbers.values())
    counts = dict.fromkeys(numbers, 0)
    for number in range(1, 1 << 62):
        key = max(numbers, key=lambda key: numbers[key] * number / total - counts[key])
        yield draw_case(*key, seed * 1_000_000 + counts[key])
        counts[key] += 1


def fixed(selection=()):
    """The committed cases, which failed once."""
    committed = []
    for file in sorted(FIXED.glob("*.json")):
        committed += read_cases(file)
    return [case for case in committed if is_selected(case["area"], case["test"], selection)]


def read_cases(file):
    """The cases in a file: one, or a list of them."""
    content = json.loads(file.read_text(encoding="utf-8"))
    listed = content if isinstance(content, list) else [content]
    return [{"area": file.stem, "seed": 0} | case for case in listed]


def title(case):
    """A short name that is good for a file, too."""
    words = f"{case['area']} {case['test']} {case.get('name', case['seed'])}"
    return "".join(c if c.isalnum() else "-" for c in words)
