"""Docstrings of the public names say what each parameter, return value and exception is."""

import ast
import inspect
import json
import textwrap
from importlib import import_module
from pathlib import Path

import pytest
from docstring_parser.google import parse

SURFACE = json.loads(Path(__file__).with_name("api_surface.json").read_text(encoding="utf-8"))

# Exceptions that a context manager turns into others.
CONVERTED = {"read_mat": {"ValueError"}}


def public_members():
    """Functions and classes on the list of public names, by their full names."""
    members = {}
    for module, names in SURFACE.items():
        for name in names:
            member = getattr(import_module(module), name)
            is_ours = getattr(member, "__module__", "").startswith("torchcaps")
            if is_ours and (inspect.isfunction(member) or inspect.isclass(member)):
                members[f"{member.__module__}.{name}"] = member
    return members


MEMBERS = public_members()
CLASSES = {name: member for name, member in MEMBERS.items() if inspect.isclass(member)}


def public_methods(cls):
    """Names and methods that a class defines itself; others inherit their docstring."""
    for name in vars(cls):
        method = getattr(cls, name)
        is_method = inspect.isfunction(method) or inspect.ismethod(method)
        # scikit-learn makes methods of estimators.
        is_ours = getattr(method, "__module__", "").startswith("torchcaps")
        if is_method and is_ours and not name.startswith("_") and method.__doc__:
            yield name, method


def public_functions():
    """Functions, and methods of classes, by their full names."""
    functions = {name: member for name, member in MEMBERS.items() if name not in CLASSES}
    for class_name, cls in CLASSES.items():
        for name, method in public_methods(cls):
            functions[f"{class_name}.{name}"] = method
    return functions


def described_names(parsed):
    """Names under Args and Attributes; an entry `height, width` describes two."""
    names = set()
    for parameter in parsed.params:
        names.update(name.strip(" *") for name in parameter.arg_name.split(","))
    return names


def raised_names(function):
    """Exceptions that the body of a function raises by name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            names.add(ast.unparse(node.exc.func))
    return {name for name in names if name.endswith("Error")}


def missing_sections(function):
    """Parameters, exceptions and the return value that a function's docstring leaves out."""
    docstring = inspect.getdoc(function)
    parsed = parse(docstring)
    signature = inspect.signature(function)
    missing = set(signature.parameters) - {"self"} - described_names(parsed)
    exceptions = {entry.type_name for entry in parsed.raises}
    missing |= raised_names(function) - exceptions - CONVERTED.get(function.__name__, set())
    returns_something = signature.return_annotation not in (None, "None")
    if returns_something and "\n" in docstring and parsed.returns is None:
        missing.add("Returns")
    return missing


def missing_parameters(cls):
    """Parameters of a class that its docstring leaves out; torch's own `__init__` has none."""
    parameters = inspect.signature(cls, follow_wrapped=False).parameters
    return set(parameters) - {"args", "kwargs"} - described_names(parse(inspect.getdoc(cls)))


def test_docstrings_of_functions_and_methods_are_complete():
    incomplete = {name: missing_sections(member) for name, member in public_functions().items()}
    assert len(incomplete) > 300
    assert not {name: missing for name, missing in incomplete.items() if missing}


def test_docstrings_of_classes_describe_their_parameters():
    plain = {name: cls for name, cls in CLASSES.items() if not issubclass(cls, dict | Exception)}
    incomplete = {name: missing_parameters(cls) for name, cls in plain.items()}
    assert len(incomplete) > 80
    assert not {name: missing for name, missing in incomplete.items() if missing}


@pytest.mark.parametrize(
    ("section", "missing"),
    [
        ("", {"size", "ValueError", "Returns"}),
        ("Args:\n    size: of x.\n\nReturns:\n    x.", {"ValueError"}),
        ("Args:\n    size: of x.\n\nReturns:\n    x.\n\nRaises:\n    ValueError: no size.", set()),
    ],
)
def test_missing_sections_are_found(section, missing):
    def function(size: int) -> int:
        if size < 1:
            raise ValueError("size")
        return size

    function.__doc__ = f"Do something.\n\nTwice.\n\n{section}"
    assert missing_sections(function) == missing
