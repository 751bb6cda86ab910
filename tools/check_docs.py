"""Check the documents: links, examples, commands, recipes, spelling and licenses. Faults: status 1.

python tools/check_docs.py [docs/PAGE.md ...]      these pages, by default all and what belongs to none
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from inspect import isclass, isfunction, ismodule
from pathlib import Path
from types import ModuleType

import make_citation
import make_dependencies
import make_results
from check_commands import FENCE, unmentioned, wrong_commands, wrong_recipes

WIDTH = 100  # of a line, in characters
ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
] + sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("tutorials/*.md")])
HISTORY = ("CHANGELOG.md", "decisions.md")  # which name what is gone
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FORBIDDEN = re.compile(r"/(?:work|root|tmp|home)/|files\.pythonhosted|registry\.npmjs")
# British spellings, words that a spelling script made, and words that only insiders understand.
SPELLING = re.compile(
    r"\b(?:\w*(?:optimis|normalis|initialis|generalis|factoris|recognis|centerd|colour|favour)\w*"
    r"|licences?|behaviours?|neighbours?|label(?:led|ling)|aria-labeledby|passports?|the house)\b",
    re.IGNORECASE,
)


def anchor(heading: str) -> str:
    """The anchor that a heading gets in rendered Markdown."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def broken_links(path: Path, text: str) -> Iterator[str]:
    for target in LINK.findall(re.sub(FENCE, "", text)):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, fragment = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        if not place.exists():
            yield f"the link {target} leads nowhere"
        elif fragment and place.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", place.read_text(encoding="utf-8"), re.MULTILINE)
            if fragment not in map(anchor, headings):
                yield f"{target} names no heading"


def broken_python(path: Path, text: str) -> Iterator[str]:
    """Python blocks of a document run one after another, as a reader would type them.

    Blocks that begin with `# not run`, and those in the language `py`, are only read: what they
    import of the package, and what they ask of its modules, must be there.
    """
    module = ModuleType("documents")
    # Classes of an example can be pickled, as those of a reader's file.
    sys.modules[module.__name__] = module
    for language, block in FENCE.findall(text):
        if language not in ("python", "py"):
            continue
        if language == "py" or block.startswith("# not run"):
            yield from _missing_names(block)
            continue
        try:
            exec(compile(block, str(path), "exec"), vars(module))
        except Exception as error:
            yield f"a Python example fails: {type(error).__name__}: {error}"


def _missing_names(block: str) -> Iterator[str]:
    try:
        tree = ast.parse(block)
    except SyntaxError as error:
        yield f"a Python example is none: {error}"
        return
    modules = {"tc": importlib.import_module("torchcaps")}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchcaps"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                value = getattr(module, alias.name, None)
                if value is None:
                    yield f"there is no {node.module}.{alias.name}"
                elif ismodule(value):
                    modules[alias.asname or alias.name] = value
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield from _missing_attribute(node, modules)


def _missing_attribute(node: ast.Attribute, modules: dict[str, ModuleType]) -> Iterator[str]:
    names = ast.unparse(node).split(".")
    if not all(map(str.isidentifier, names)):
        return
    value: object = modules.get(names[0])
    for name in names[1:]:
        if not (ismodule(value) or isclass(value)):
            return
        if not hasattr(value, name):
            yield f"there is no {ast.unparse(node)}"
            return
        value = getattr(value, name)


def stale_names(text: str) -> Iterator[str]:
    """Dotted names in the lines of a document, such as `evaluation.compare`, that are not there."""
    package = importlib.import_module("torchcaps")
    for span in re.findall(r"`([A-Za-z_][\w.]*)[^`\n]*`", FENCE.sub("", text)):
        names = span.removesuffix(".").split(".")
        value = package if names[0] in ("tc", "torchcaps") else getattr(package, names[0], None)
        if names[-1] in ("json", "md", "toml", "py", "plugins"):  # files; the entry point group
            continue
        for name in names[1:] if ismodule(value) else ():
            if not (ismodule(value) or isclass(value)):
                break
            if ismodule(value) and not hasattr(value, name):
                _import(f"{value.__name__}.{name}")
            if not hasattr(value, name) and name not in getattr(value, "__annotations__", {}):
                yield f"there is no {span}"
                break
            value = getattr(value, name, None)


def _import(name: str) -> None:
    with suppress(ImportError):
        importlib.import_module(name)


def long_lines(text: str) -> Iterator[str]:
    """Lines that are too long, but for rows of tables."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > WIDTH and line[0] != "|":
            yield f"line {number} has over {WIDTH} characters"


def gallery_gaps() -> Iterator[str]:
    """Public functions of `torchcaps.viz` without an entry in the gallery, and the reverse."""
    from torchcaps import viz

    functions = {name for name in vars(viz)["__all__"] if isfunction(getattr(viz, name))}
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    entries = set(re.findall(r"^### `(\w+)`$", text, re.MULTILINE))
    pictured = set(re.findall(r"^!\[[^\]]+\]\(images/gallery/(\w+)\.png\)$", text, re.MULTILINE))
    advice = "add an Entry to tools/make_gallery.py and run: make gallery"
    for name in sorted(functions - entries):
        yield f"torchcaps.viz.{name} has no entry; {advice}"
    for name in sorted(entries - functions):
        yield f"there is no torchcaps.viz.{name}"
    for name in sorted(entries ^ pictured):
        yield f"{name} has an entry or a picture, not both"


def misspelled_sources() -> Iterator[str]:
    """Words of the sources that are spelled otherwise than in the rest."""
    for folder, ending in (
        ("src", "*.py"),
        ("src", "*.html"),
        ("src", "*.js"),
        ("recipes", "*.toml"),
    ):
        for path in sorted((ROOT / folder).rglob(ending)):
            for word in sorted(set(SPELLING.findall(path.read_text(encoding="utf-8")))):
                yield f"{path.relative_to(ROOT)}: {word}"


def check(path: Path, text: str) -> Iterator[str]:
    """All faults of one document."""
    yield from broken_links(path, text)
    yield from broken_python(path, text)
    yield from wrong_commands(text)
    yield from wrong_recipes(text)
    yield from long_lines(text)
    yield from (f"names a path of one machine: {place}" for place in FORBIDDEN.findall(text))
    if path.name not in HISTORY:
        yield from stale_names(text)
        yield from (f"the word {word}" for word in SPELLING.findall(text))


def main(names: list[str]) -> int:
    """Check documents; print the faults."""
    paths = [ROOT / name for name in names] or DOCUMENTS
    texts = {path.name: path.read_text(encoding="utf-8") for path in paths}
    faults = [f"{path.name}: {fault}" for path in paths for fault in check(path, texts[path.name])]
    if not names:
        faults += [f"gallery.md: {fault}" for fault in gallery_gaps()]
        faults += make_dependencies.gaps() + make_citation.gaps() + make_results.gaps()
        faults += [*unmentioned(texts), *misspelled_sources()]
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(paths)} documents, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
