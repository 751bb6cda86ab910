"""What this project depends on, from pyproject.toml and the packages installed here.

    python tools/make_dependencies.py

writes constraints.txt (the versions that are tested), constraints-lowest.txt (the lowest versions allowed) and
docs/dependencies.md (the licenses). Run it in an environment of `make engines`, which has all extras.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions, metadata, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "torchcaps"
# Whoever brings a torch keeps it, and a torch for GPUs names the one Triton that it works with: neither has a pin.
FREE = ("torch", "triton", "setuptools")  # torch chooses the others
RUNTIME = "run time"
TESTED_HEAD = """# The tested versions of every dependency but torch, and Triton and setuptools, which torch chooses:
# pip install -c constraints.txt -e ".[dev]". Made by: python tools/make_dependencies.py
"""
LOWEST_HEAD = """# The lower bounds of pyproject.toml, which `make test-lowest` tests.
# Made by: python tools/make_dependencies.py
"""
DOCUMENT_HEAD = """# Dependencies and their licenses

Made by `python tools/make_dependencies.py`, from the metadata of the installed packages. "Extra" is
the word in `pip install 'torchcaps[plots]'`. The development tools (extra `dev`) are not part of
what users install, and are not listed; nor are the packages that torch itself needs.

`constraints.txt` has the tested versions, which `make install` takes. `constraints-lowest.txt` has
the lowest versions that `pyproject.toml` allows, which `make test-lowest` tests. Neither `torch`
nor the Triton that a torch for GPUs requires has a tested pin: an installed torch is kept.
"""


def declared() -> dict[str, list[Requirement]]:
    """What pyproject.toml asks for, by extra; `RUNTIME` are those that are always installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {RUNTIME: project["dependencies"], **project["optional-dependencies"]}
    return {
        name: [one for one in map(Requirement, texts) if canonicalize_name(one.name) != PROJECT]
        for name, texts in groups.items()
    }


def lower_bound(requirement: Requirement) -> str:
    """The lowest version that is allowed."""
    return next(one.version for one in requirement.specifier if one.operator == ">=")


def is_installed(name: str) -> bool:
    """Whether a package is here; some extras are not in every environment."""
    return any(distributions(name=name))


def needed(requirements: list[Requirement]) -> Iterator[str]:
    """Names of what these need here, and of what that needs; what torch needs is torch's to say."""
    visited, pending = set(), list(requirements)
    while pending:
        one = pending.pop()
        name = canonicalize_name(one.name)
        if name in visited or (
            one.marker and not any(one.marker.evaluate({"extra": e}) for e in {"", *one.extras})
        ):
            continue
        visited.add(name)
        yield name
        if name not in FREE and is_installed(name):
            for dependency in map(Requirement, requires(name) or []):
                marker, dependency.marker = dependency.marker, None
                if not marker or any(marker.evaluate({"extra": e}) for e in ("", *one.extras)):
                    pending.append(dependency)


def tested() -> str:
    """constraints.txt."""
    names = {name for group in declared().values() for name in needed(group)} - set(FREE)
    return TESTED_HEAD + "".join(f"{name}=={version(name)}\n" for name in sorted(names))


def lowest() -> str:
    """constraints-lowest.txt."""
    pins = {
        f"{canonicalize_name(one.name)}=={lower_bound(one)}"
        for group in declared().values()
        for one in group
    }
    return LOWEST_HEAD + "".join(f"{pin}\n" for pin in sorted(pins))


def license(name: str) -> str:
    """What a package says of its own license."""
    package_metadata = metadata(name)
    if package_metadata["License-Expression"]:
        return str(package_metadata["License-Expression"])
    classes = [
        one.rpartition(" :: ")[2]
        for one in package_metadata.get_all("Classifier") or []
        if one.startswith("License ::")
    ]
    return ", ".join(classes) or " ".join((package_metadata["License"] or "not said").split())[:80]


def rows() -> dict[str, str]:
    """Lines of docs/dependencies.md, by package: those declared, and what they bring."""
    groups = {extra: group for extra, group in declared().items() if extra != "dev"}
    bounds = {
        str(canonicalize_name(requirement.name)): (extra, requirement)
        for extra, group in groups.items()
        for requirement in group
        if is_installed(requirement.name)
    }
    lines_by_package: dict[str, str] = {}
    for name, (extra, requirement) in bounds.items():
        versions = ", ".join(sorted(map(str, requirement.specifier), reverse=True))
        lines_by_package[name] = f"| {name} | {versions} | {extra} | {license(name)} |"
    for extra, group in groups.items():
        for name in filter(is_installed, sorted(needed(group))):
            lines_by_package.setdefault(
                name, f"| {name} | | {extra}, indirectly | {license(name)} |"
            )
    return lines_by_package


def document() -> str:
    """docs/dependencies.md."""
    table = "\n".join(
        ["| package | versions | extra | license |", "|---|---|---|---|", *rows().values()]
    )
    return f"{DOCUMENT_HEAD}\n{table}\n"


def without_bringer(row: str) -> str:
    """A line of the table without the extra that brings a package: not all extras are installed everywhere."""
    return re.sub(r"\| [\w ]+, indirectly \|", "| indirectly |", row)


def pinned(text: str) -> dict[str, str]:
    """The versions of a constraints file, by name."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE))


def gaps() -> list[str]:
    """Where the files say something else than pyproject.toml and the packages here; other versions of packages than the
    tested ones may say other things, and are not asked.
    """
    advice = "run: python tools/make_dependencies.py"
    faults = []
    if (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8") != lowest():
        faults.append(f"constraints-lowest.txt: is not what pyproject.toml says; {advice}")
    pins = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    lines = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").splitlines()
    facts = set(map(without_bringer, lines))
    for name, row in rows().items():
        if pins.get(name) == version(name) and without_bringer(row) not in facts:
            faults.append(f"dependencies.md: the line of {name} is not current; {advice}")
    return faults


def main() -> int:
    """Write the three files."""
    for name, text in (
        ("constraints.txt", tested()),
        ("constraints-lowest.txt", lowest()),
        ("docs/dependencies.md", document()),
    ):
        (ROOT / name).write_text(text, encoding="utf-8")
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
