"""Faults written by hand: `*.toml` files beside this one, a table `[NAME]` for each.

A path counts from src/torchcaps; in `claims.toml` from the root of the checkout.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from .tree import ROOT

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Fault:
    """A place in the sources, and how it becomes wrong.

    Attributes:
        name: `FILE/NAME` of the record.
        path: of the source file, from the root of the checkout.
        find: text that stands there exactly once.
        replace: text in its place.
        tests: files, or single tests, that should fail; from the root of the checkout.
        why: what a user would meet, one sentence.
    """

    name: str
    path: str
    find: str
    replace: str
    tests: tuple[str, ...]
    why: str

    def inject(self, source: str) -> str | None:
        """The source with the fault; None for a stale record, whose text is not there exactly once."""
        if source.count(self.find) != 1:
            return None
        return source.replace(self.find, self.replace)

    def stale(self, root: Path = ROOT) -> str:
        """Why the record no longer fits the checkout, or nothing."""
        source = root / self.path
        if not source.is_file():
            return f"there is no {self.path}"
        if self.inject(source.read_text(encoding="utf-8")) is None:
            return f"its text does not stand exactly once in {self.path}"
        for test in self.tests:
            if not (root / test.partition("::")[0]).exists():
                return f"there is no {test}"
        return ""


def load(folder: Path = FOLDER) -> list[Fault]:
    """All records, by name.

    Raises ValueError for one without a test or a sentence, or that changes nothing.
    """
    faults = []
    for file in sorted(folder.glob("*.toml")):
        for name, record in tomllib.loads(file.read_text(encoding="utf-8")).items():
            tests = tuple(map("tests/{}".format, record.pop("tests")))
            path = record.pop("path")
            if file.stem != "claims":
                path = f"src/torchcaps/{path}"
            fault = Fault(f"{file.stem}/{name}", path, tests=tests, **record)
            if not fault.tests or not fault.why or fault.find == fault.replace:
                raise ValueError(f"{fault.name}: expected tests, a sentence and a change")
            faults.append(fault)
    return faults
