"""pyproject.toml, the two files of constraints and the Makefile say the same."""

import re
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
dependencies = pytest.importorskip("make_dependencies", reason="needs a checkout")

DECLARED = []
for group in dependencies.declared().values():
    for requirement in group:
        DECLARED.append((canonicalize_name(requirement.name), requirement))
TESTED = dependencies.pinned((ROOT / "constraints.txt").read_text())
LOWEST = dependencies.pinned((ROOT / "constraints-lowest.txt").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(("name", "requirement"), DECLARED, ids=[name for name, _ in DECLARED])
def test_each_dependency_has_pins_within_its_bounds(name, requirement):
    assert requirement.specifier.contains(LOWEST[name])
    assert LOWEST[name] == dependencies.lower_bound(requirement)
    if name not in dependencies.FREE:
        assert requirement.specifier.contains(TESTED[name])


def test_the_lowest_versions_are_the_lower_bounds():
    assert (ROOT / "constraints-lowest.txt").read_text() == dependencies.lowest()


def test_the_tested_versions_leave_torch_alone():
    assert not set(dependencies.FREE) & TESTED.keys()
    assert dependencies.PROJECT not in TESTED | LOWEST


def test_the_makefile_installs_with_both():
    assert 'pip install -c constraints.txt -e ".[dev]"' in MAKEFILE
    assert 'pip install -c constraints-lowest.txt -e ".[dev]"' in MAKEFILE
    assert re.search(r"^\$\(INSTALLED\):.*\bconstraints\.txt\b", MAKEFILE, re.MULTILINE)
    torch = re.search(r"^TORCH \?= torch==(\S+)$", MAKEFILE, re.MULTILINE).group(1)
    assert dict(DECLARED)["torch"].specifier.contains(torch)


def test_every_dependency_of_users_has_its_license_in_the_documents():
    lines = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").splitlines()
    licenses = {}
    for line in lines:
        cells = line.split(" | ")
        if len(cells) > 1:
            licenses[cells[0].removeprefix("| ")] = cells[-1].removesuffix(" |")
    for extra, group in dependencies.declared().items():
        if extra != "dev":
            for requirement in group:
                assert canonicalize_name(requirement.name) in licenses
    assert "not said" not in licenses.values()
