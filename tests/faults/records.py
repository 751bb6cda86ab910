"""Faults: `*.toml` files beside this one, a table `[NAME]` for each."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


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

    def stale(self, root: Path = ROOT) -> str:
        """Why the record no longer fits the checkout, or nothing."""
        source = root / self.path
        if not source.is_file():
            return f"there is no {self.path}"
        if source.read_text(encoding="utf-8").count(self.find) != 1:
            return f"its text does not stand exactly once in {self.path}"
        for test in self.tests:
            if not (root / test.partition("::")[0]).exists():
                return f"there is no {test}"
        return ""


def load() -> list[Fault]:
    """All records, in the order of their files."""
    faults = []
    for file in sorted(FOLDER.glob("*.toml")):
        for name, record in tomllib.loads(file.read_text(encoding="utf-8")).items():
            tests = tuple(map("tests/{}".format, record.pop("tests")))
            path = record.pop("path")
            if not path.startswith("claims/"):
                path = f"src/torchcaps/{path}"
            faults.append(Fault(f"{file.stem}/{name}", path, tests=tests, **record))
    return faults
