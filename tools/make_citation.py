"""CITATION.cff, from pyproject.toml and the version of the package.

python tools/make_citation.py                                 writes it
python tools/make_citation.py --tag v0.1.0 --repository URL   is this what is to be published?
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CITATION = ROOT / "CITATION.cff"
TEMPLATE = """\
# Made by: python tools/make_citation.py
cff-version: 1.2.0
message: >-
  If torchcaps helps your research, please cite it, and the paper of the routing algorithm you use.
title: "torchcaps: capsule networks in PyTorch"
abstract: >-
  {description}.
type: software
authors:
  - name: {author}
version: {version}
repository-code: {repository}
license: {license}
keywords:
{keywords}
"""


def project() -> dict:
    """The table `project` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def package_version() -> str:
    """The version, which `torchcaps/__init__.py` alone names."""
    text = (ROOT / "src" / "torchcaps" / "__init__.py").read_text(encoding="utf-8")
    [version] = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return version


def citation() -> str:
    """What CITATION.cff should say."""
    table = project()
    return TEMPLATE.format(
        description=table["description"],
        author=table["authors"][0]["name"],
        version=package_version(),
        repository=table["urls"]["Repository"],
        license=table["license"],
        keywords="\n".join(f"  - {keyword}" for keyword in table["keywords"]),
    )


def gaps() -> list[str]:
    """What is wrong with CITATION.cff."""
    if CITATION.read_text(encoding="utf-8") == citation():
        return []
    return ["CITATION.cff is old: run python tools/make_citation.py"]


def main() -> int:
    """Write the file, or compare a tag and a repository with what it is made from."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tag")
    parser.add_argument("--repository")
    arguments = parser.parse_args()
    if arguments.tag is None:
        CITATION.write_text(citation(), encoding="utf-8")
        return 0
    expected = (f"v{package_version()}", project()["urls"]["Repository"])
    actual = (arguments.tag, arguments.repository)
    if actual != expected:
        print(f"expected the tag and repository {expected}, got {actual}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
