"""Functions of a user that build a model, and their names in model files.

A file may name a function, but never causes an import or a call by itself: whoever loads the file
passes the function, or has imported its module by `--import`.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from torchcaps import plugins
from torchcaps.errors import ArgumentError, RunError

Builder = Callable[..., nn.Module]
SEPARATOR = ":"  # between a module and what it defines; no name of a registered model has it


def builder_name(builder: Builder) -> str:
    """The name of a function or class that another process can import: `package.module:name`.

    Raises:
        ArgumentError: it has none, as a lambda or a function within another one.
    """
    module = getattr(builder, "__module__", None)
    name = getattr(builder, "__qualname__", None)
    if module and name and _find(module, name) == builder:
        return f"{module}{SEPARATOR}{name}"
    raise ArgumentError(
        "builder",
        "expected a function or class at the top level of a module, which another process can "
        f"import, got {name or type(builder).__name__}",
    )


def find_builder(path: Path, name: str) -> Builder:
    """The builder that a file names, if its module was imported by `--import`.

    Only what the module itself defines is taken, never what it has imported from elsewhere.

    Args:
        path: of the file, for the error.
        name: as `builder_name` gives it.

    Raises:
        RunError: its module was not imported so, or does not define it.
    """
    module, _, function = name.partition(SEPARATOR)
    is_private = any(part.startswith("_") for part in function.split("."))
    if module in _imported_modules() and not is_private:
        builder = _find(module, function)
        if callable(builder) and getattr(builder, "__module__", None) == module:
            return builder
    raise RunError(
        f"{path}: was built by {name}, and a file never runs code by itself; if you trust it, pass "
        f"that function to load(..., builder=...), or import its module with --import {module}"
    )


def build_by(builder: Builder, options: Mapping[str, Any]) -> nn.Module:
    """What a builder makes of these options; TypeError unless it is a module."""
    model = builder(**options)
    if not isinstance(model, nn.Module):
        raise TypeError(f"the builder returned a {type(model).__name__}, expected an nn.Module")
    return model


def _imported_modules() -> set[str]:
    """Names of the modules of `--import`, which takes modules and files."""
    names = plugins.imported()
    return {Path(name).stem if name.endswith(".py") else name for name in names}


def _find(module: str, name: str) -> Any:
    """What a module that is imported already holds under a dotted name; None for nothing."""
    member: Any = sys.modules.get(module)
    for part in name.split("."):
        member = getattr(member, part, None)
    return member
