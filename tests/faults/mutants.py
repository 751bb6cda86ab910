"""Faults made by rule: one operator, constant, condition, argument or statement changed."""

import ast
import hashlib
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path

from .records import Fault
from .tree import ROOT

SOURCES = Path("src/torchcaps")
TESTS = Path("tests")
COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
OPERATIONS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*")}
WORDS = {ast.And: ("and", "or"), ast.Or: ("or", "and")}
REMOVABLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.Raise)
# Folders whose tests use a package too.
FURTHER = {
    "functional": ("ops", "nn", "properties", "published"),
    "kernels": ("ops",),
    "nn": ("properties", "published", "models"),
    "models": ("properties", "published"),
    "tasks": ("training",),
    "viz": ("reporting",),
}
# Parts of the names of functions that only write messages.
SPEECH = ("Error", "warn", "print", "say", "emit")
# Fields of a node that do not run.
SILENT = ("annotation", "returns", "decorator_list", "type_params")

# Start and end in the text, the replacement, the rule.
Change = tuple[int, int, str, str]


def mutants(path: Path, root: Path = ROOT) -> list[Fault]:
    """Every mutant of one file of the package, `path` from the root."""
    text = (root / path).read_text(encoding="utf-8")
    tests = mirrored(path, root)
    return [_fault(path, text, change, tests) for change in _changes(text)]


def sample(packages: Sequence[str], count: int, seed: int = 0, root: Path = ROOT) -> list[Fault]:
    """Mutants of these packages, and of all rules, in turn.

    A larger count keeps those of a smaller one.
    """
    shuffled = []
    for package in packages:
        folder = root / SOURCES / package
        files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
        if not files or not files[0].is_file():
            raise ValueError(f"packages: there is no {package!r}")
        faults: list[Fault] = []
        for file in files:
            faults += mutants(file.relative_to(root), root)
        random.Random(f"{seed}/{package}").shuffle(faults)
        by_rule = defaultdict(list)
        for fault in faults:
            by_rule[fault.why.split(": ")[1]].append(fault)
        shuffled.append(_in_turn(list(map(by_rule.get, sorted(by_rule)))))
    return _in_turn(shuffled)[:count]


def _in_turn(groups: Sequence[Sequence[Fault]]) -> list[Fault]:
    """The first of each group, then the second of each, and so on."""
    rounds = chain.from_iterable(zip_longest(*groups))
    return list(filter(None, rounds))


def mirrored(path: Path, root: Path = ROOT) -> tuple[str, ...]:
    """The tests of a source file: those of its name, or else all of its package."""
    source = path.relative_to(SOURCES)
    for parent in source.parents:
        if parent == Path() and len(source.parts) > 1:
            break
        files = sorted((root / TESTS / parent).glob(f"test_{source.stem.strip('_')}*.py"))
        if files:
            return _relative(files, root)
    return package_tests(path, root)


def package_tests(path: Path, root: Path = ROOT) -> tuple[str, ...]:
    """All tests of a file's package, and of the packages that use it; of a module all at the top."""
    package = path.relative_to(SOURCES).parts[0]
    tests = root / TESTS
    folders = map(tests.joinpath, (package, *FURTHER.get(package, ())))
    return _relative(filter(Path.is_dir, folders), root) or _relative(
        sorted(tests.glob("test_*.py")), root
    )


def _relative(paths: Iterable[Path], root: Path) -> tuple[str, ...]:
    return tuple(str(path.relative_to(root)) for path in paths)


def _fault(path: Path, text: str, change: Change, tests: tuple[str, ...]) -> Fault:
    """The change as a record: whole lines, and as many around them as make them unique."""
    start, end, replacement, rule = change
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    last = len(text) if last < 0 else last
    line = text.count("\n", 0, start) + 1
    while text.count(text[first:last]) > 1:
        first = text.rfind("\n", 0, max(0, first - 1)) + 1
        following = text.find("\n", last + 1)
        last = len(text) if following < 0 else following
    find = text[first:last]
    replace = text[first:start] + replacement + text[end:last]
    digest = hashlib.sha256(f"{path}\0{find}\0{replace}".encode()).hexdigest()[:12]
    reason = f"{path}:{line}: {rule}: {_short(text[start:end])} -> {_short(replacement)}"
    return Fault(digest, str(path), find, replace, tests, reason)


def _short(code: str) -> str:
    line = " ".join(code.split())
    return line if len(line) <= 60 else line[:57] + "..."


def _changes(text: str) -> Iterator[Change]:
    """All changes of a file, in the order of its nodes."""
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)

    def place(line: int, column: int) -> int:
        """From ast's line, and column in bytes, to a place in the text."""
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def span(node: ast.AST) -> tuple[int, int]:
        return place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)

    def between(
        first: ast.AST, second: ast.AST, words: tuple[str, str], rule: str
    ) -> Iterator[Change]:
        start = span(first)[1]
        end = span(second)[0]
        if text[start:end].count(words[0]) == 1:
            at = start + text[start:end].index(words[0])
            yield at, at + len(words[0]), words[1], rule

    for node, in_body in _nodes(ast.parse(text)):
        match node:
            case ast.Compare(left=first, ops=[operator], comparators=[second]):
                yield from between(first, second, COMPARISONS[type(operator)], "comparison")
            case ast.BinOp(left=first, op=operator, right=second) if type(operator) in OPERATIONS:
                yield from between(first, second, OPERATIONS[type(operator)], "operation")
            case ast.BoolOp(op=operator, values=[first, second, *_]):
                yield from between(first, second, WORDS[type(operator)], "condition")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield (*span(node), f"({text[slice(*span(operand))]})", "not removed")
            case ast.Constant(value=bool() as value):
                yield (*span(node), str(not value), "constant")
            case ast.Constant(value=(int() | float()) as value):
                yield (*span(node), "1" if value == 0 else "0", "constant")
            case ast.Call(args=[first, second, *_]):
                start, comma = span(first)
                second_start, end = span(second)
                swapped = text[second_start:end] + text[comma:second_start] + text[start:comma]
                if swapped != text[start:end] and "*" not in (text[start], text[second_start]):
                    yield start, end, swapped, "arguments swapped"
        if in_body and isinstance(node, REMOVABLE) and not _is_needed(node):
            yield (*span(node), "pass", "statement removed")


def _nodes(tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """Nodes of code that runs, and whether each is inside a function.

    Annotations, imports and words of errors are left out.
    """
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, in_body = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr) or _speaks(node):
            continue
        yield node, in_body
        inside = in_body or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for name, value in ast.iter_fields(node):
            if name not in SILENT:
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        waiting.append((child, inside))


def _speaks(node: ast.AST) -> bool:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return True
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    return re.search("|".join(SPEECH), name) is not None


def _is_needed(statement: ast.stmt) -> bool:
    """Whether it is a docstring, or makes a name without which nothing runs; not `x = f(x)`."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if not isinstance(statement, ast.Assign):
        return False
    targets: set[str] = set()
    for target in statement.targets:
        if isinstance(target, ast.Attribute | ast.Subscript):
            return False
        targets |= _variables(target)
    return targets.isdisjoint(_variables(statement.value))


def _variables(tree: ast.AST) -> set[str]:
    """Names of the variables in an expression."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
