"""Limits of size: files, classes and functions that a person can read as a whole."""

import ast
from pathlib import Path

import pytest

import torchcaps

SOURCE = Path(torchcaps.__file__).parent
MAX_FILE_LINES = 600
MAX_CLASS_LINES = 200
MAX_PUBLIC_METHODS = 12
MAX_ARGUMENTS = 10  # without self
MAX_BODY_LINES = 50  # without the docstring

# Classes above the limits, each with its reason.
EXCEPTIONS: dict[str, str] = {}


def count_lines(nodes):
    return nodes[-1].end_lineno - nodes[0].lineno + 1 if nodes else 0


def is_kernel(function):
    """Whether triton compiles a function: its arguments are pointers, strides and sizes."""
    return any("triton.jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def find_large_class(node):
    methods = [child for child in node.body if isinstance(child, ast.FunctionDef)]
    num_public = sum(not method.name.startswith("_") for method in methods)
    if count_lines([node]) > MAX_CLASS_LINES:
        yield f"class {node.name} has {count_lines([node])} lines"
    if num_public > MAX_PUBLIC_METHODS:
        yield f"class {node.name} has {num_public} public methods"


def find_large_function(node):
    arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
    num_arguments = sum(argument.arg not in ("self", "cls") for argument in arguments)
    if num_arguments > MAX_ARGUMENTS and not is_kernel(node):
        yield f"{node.name} has {num_arguments} arguments"
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if count_lines(body) > MAX_BODY_LINES:
        yield f"{node.name} has {count_lines(body)} lines"


def find_large_parts(text):
    """Sentences about the parts of a file that are above the limits."""
    num_lines = len(text.splitlines())
    if num_lines > MAX_FILE_LINES:
        yield f"the file has {num_lines} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and node.name not in EXCEPTIONS:
            yield from find_large_class(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from find_large_function(node)


def test_every_part_of_the_library_is_within_the_limits():
    large_parts = {}
    for path in SOURCE.rglob("*.py"):
        sentences = list(find_large_parts(path.read_text(encoding="utf-8")))
        if sentences:
            large_parts[str(path.relative_to(SOURCE))] = sentences
    assert not large_parts


def test_at_most_two_classes_are_exceptions():
    assert len(EXCEPTIONS) <= 2


ARGUMENTS = ", ".join(f"a{k}" for k in range(11))
STATEMENT = "    x = 1\n"
METHODS = "".join(f"    def m{k}(self): ...\n" for k in range(13))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1\n" * 601, "the file has 601 lines"),
        (f"class Large:\n{STATEMENT * 200}", "class Large has 201 lines"),
        (f"class Large:\n{METHODS}", "class Large has 13 public methods"),
        (f"def large({ARGUMENTS}): ...", "large has 11 arguments"),
        (f"def large():\n{STATEMENT * 51}", "large has 51 lines"),
    ],
)
def test_parts_above_the_limits_are_found(text, sentence):
    assert list(find_large_parts(text)) == [sentence]


@pytest.mark.parametrize(
    "text",
    [
        f"@triton.jit\ndef kernel({ARGUMENTS}): ...",
        f"def method(self, {ARGUMENTS.removesuffix(', a10')}): ...",
        f'def small():\n    """Docstring."""\n{STATEMENT * 50}',
    ],
)
def test_parts_within_the_limits_are_not(text):
    assert not list(find_large_parts(text))
