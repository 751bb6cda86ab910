"""Check the documents: links, examples, commands, figures and licenses. Faults: status 1."""

from __future__ import annotations

import re
import sys
from inspect import isfunction
from pathlib import Path
from types import ModuleType

import make_dependencies

WIDTH = 120  # of a line, in characters
ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
] + sorted((ROOT / "docs").rglob("*.md"))
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FORBIDDEN = re.compile(r"/(?:work|root|tmp|home)/|files\.pythonhosted|registry\.npmjs")


def anchor(heading: str) -> str:
    """The anchor that a heading gets in rendered Markdown."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def broken_links(path: Path, text: str) -> list[str]:
    faults = []
    for target in LINK.findall(re.sub(FENCE, "", text)):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, fragment = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        if not place.exists():
            faults.append(f"{path.name}: the link {target} leads nowhere")
        elif fragment and place.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", place.read_text(encoding="utf-8"), re.MULTILINE)
            if fragment not in map(anchor, headings):
                faults.append(f"{path.name}: {target} names no heading")
    return faults


def broken_python(path: Path, text: str) -> list[str]:
    """Python blocks of one document are run one after another, as a reader would type them; `# not run` opts out."""
    faults, module = [], ModuleType("documents")
    sys.modules[module.__name__] = (
        module  # classes of an example can be pickled, as those of a reader's file
    )
    names = vars(module)
    for language, block in FENCE.findall(text):
        if language != "python" or block.startswith("# not run"):
            continue
        try:
            exec(compile(block, str(path), "exec"), names)
        except Exception as error:
            faults.append(f"{path.name}: a Python example fails: {type(error).__name__}: {error}")
    return faults


def unknown_commands(path: Path, text: str) -> list[str]:
    """Commands in shell blocks whose name or flags the command line does not know."""
    from torchcaps.cli.main import COMMANDS

    faults = []
    for language, block in FENCE.findall(text):
        if language not in ("sh", "bash", "shell"):
            continue
        for command in re.findall(r"^(?:\$ )?torchcaps (\S+)", block, re.MULTILINE):
            if command not in COMMANDS and not command.startswith("-"):
                faults.append(f"{path.name}: `torchcaps {command}` is no command")
    return faults


def long_lines(path: Path, text: str) -> list[str]:
    """Lines of over 120 characters, but for rows of tables."""
    lines = enumerate(text.splitlines(), 1)
    return [
        f"{path.name}:{n}: over {WIDTH} characters"
        for n, line in lines
        if len(line) > WIDTH and line[0] != "|"
    ]


def gallery_gaps() -> list[str]:
    """Public functions of `torchcaps.viz` without an entry in the gallery; entries without a function or picture."""
    from torchcaps import viz

    functions = {name for name, value in vars(viz).items() if isfunction(value)}
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    entries = set(re.findall(r"^### `(\w+)`$", text, re.MULTILINE))
    shown = set(re.findall(r"^!\[[^\]]+\]\(images/gallery/(\w+)\.png\)$", text, re.MULTILINE))
    again = "add an Entry to tools/make_gallery.py and run: make gallery"
    faults = [
        f"gallery.md: torchcaps.viz.{name} has no entry; {again}"
        for name in sorted(functions - entries)
    ]
    faults += [
        f"gallery.md: there is no torchcaps.viz.{name}" for name in sorted(entries - functions)
    ]
    return faults + [
        f"gallery.md: {name} has an entry or a picture, not both"
        for name in sorted(entries ^ shown)
    ]


def main() -> int:
    """Check every document; print the faults."""
    faults = []
    for path in DOCUMENTS:
        if not path.exists():
            faults.append(f"{path.relative_to(ROOT)} is missing")
            continue
        text = path.read_text(encoding="utf-8")
        faults += (
            broken_links(path, text) + broken_python(path, text) + unknown_commands(path, text)
        )
        faults += long_lines(path, text)
        faults += [
            f"{path.name}: names a path of one machine: {found}"
            for found in FORBIDDEN.findall(text)
        ]
    faults += gallery_gaps() + make_dependencies.gaps()
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(DOCUMENTS)} documents, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
