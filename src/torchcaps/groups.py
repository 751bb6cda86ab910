"""Groups of settings: frozen dataclasses whose values are checked against their types and ranges.

@dataclass(frozen=True)
class NoiseSettings:
    noise: float = setting(0.0, "standard deviation of the noise", low=0)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from torchcaps.errors import ArgumentError, UnknownNameError, check_range

_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "options by name",
}


def setting(
    default: Any,
    about: str,
    *,
    low: float | None = None,
    high: float | None = None,
    name: str | None = None,
    valid: tuple[Callable[[float], bool], str] = (lambda _: True, ""),
) -> Any:
    """A field of a group of settings.

    Args:
        default: its value where none is given.
        about: what it is, in one line, for help.
        low: smallest number allowed.
        high: largest number allowed.
        name: its name outside its group, that of its flag; by default the field's own.
        valid: a further test of a number, and in words what it expects.
    """
    metadata = {"about": about, "low": low, "high": high, "name": name, "valid": valid}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class SettingsGroup:
    """Settings that belong together. Each value is checked against its type and range."""

    def __post_init__(self) -> None:
        hints = field_types(type(self))
        for f in fields(self):
            flat = f.metadata["name"] or f.name
            value = _checked(flat, getattr(self, f.name), hints[f.name])
            object.__setattr__(self, f.name, value)
            if isinstance(value, int | float) and not isinstance(value, bool):
                check_range(flat, value, f.metadata["low"], f.metadata["high"])
                test, expected = f.metadata["valid"]
                if not test(value):
                    raise ArgumentError(flat, f"expected {expected}, got {value}")


field_types: Callable[[Any], dict[str, Any]] = cache(get_type_hints)
"""The types of the fields of a group of settings, resolved once."""


def _checked(name: str, value: Any, hint: Any) -> Any:
    """The value as its type hint asks for it: None, one of its words, or the one type beside them."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if (value is None and NoneType in kinds) or value in words:
        return value
    rest = [kind for kind in kinds if kind is not NoneType and get_origin(kind) is not Literal]
    if not rest:
        raise UnknownNameError(name, str(value), words)
    kind = get_origin(rest[0]) or rest[0]
    if kind is tuple:
        if str in get_args(rest[0]):
            return _names(name, value)
        return _numbers(name, value, pair=Ellipsis not in get_args(rest[0]))
    if isinstance(value, Path) and kind is str:
        return str(value)
    allowed = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise ArgumentError(name, f"expected {_WORDS[kind]}, got {value!r}")
    if kind is float and not math.isfinite(value):
        raise ArgumentError(name, f"expected a finite number, got {value}")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:  # of a dictionary
        raise ArgumentError(name, f"expected plain values that a file can hold ({error})") from None
    return value


def _names(name: str, value: Any) -> tuple[str, ...]:
    """Any number of names."""
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ArgumentError(name, f"expected names, got {value!r}")
    return tuple(value)


def _numbers(name: str, value: Any, pair: bool) -> tuple[int, ...]:
    """Whole numbers above zero: a pair (or one for both), or any count."""
    sides = (value, value) if pair and isinstance(value, int) else value
    good = isinstance(sides, list | tuple) and all(type(side) is int and side > 0 for side in sides)
    if not good or (pair and len(sides) != 2):
        raise ArgumentError(
            name, f"expected {'height and width in pixels' if pair else 'epochs'}, got {value!r}"
        )
    return tuple(sides)
