"""Groups of settings: frozen dataclasses whose values are checked against types and ranges.

@dataclass(frozen=True)
class NoiseSettings(SettingsGroup):
    noise: float = setting(0.0, "standard deviation of the noise", low=0)
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
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
    of: str | None = None,
    valid: tuple[Callable[[float], bool], str] | None = None,
) -> Any:
    """A field of a group of settings.

    Args:
        default: its default value.
        about: its meaning, in one line, for help.
        low: smallest number that is allowed.
        high: largest number that is allowed.
        name: its name outside its group, that of its flag; by default the field's own.
        of: name of the setting, such as "optimizer", whose choices declare whether they read this
            one; None for a setting that is always read.
        valid: a further test of a number, and its expectation in words.
    """
    metadata = {"about": about, "low": low, "high": high, "name": name, "of": of, "valid": valid}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class SettingsGroup:
    """Settings that belong together. Each value is checked against its type and range.

    Raises:
        ArgumentError: a value of another type or out of range.
    """

    def __post_init__(self) -> None:
        for key, hint in field_types(type(self)).items():
            column = self.__dataclass_fields__[key]
            value = getattr(self, key)
            if value is column.default:
                continue
            metadata = column.metadata
            name = metadata["name"] or key
            checked = _check(name, value, hint)
            object.__setattr__(self, key, checked)
            if isinstance(checked, int | float) and not isinstance(checked, bool):
                check_range(name, checked, metadata["low"], metadata["high"])
                if metadata["valid"] and not metadata["valid"][0](checked):
                    raise ArgumentError(name, f"expected {metadata['valid'][1]}, got {checked}")


field_types: Callable[[Any], dict[str, Any]] = cache(get_type_hints)
"""The types of the fields of a group of settings, resolved once."""


def _check(name: str, value: Any, hint: Any) -> Any:
    """The value as its type hint has it: None, one of its words, or the one other type."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words: list[Any] = []
    others: list[Any] = []
    for kind in kinds:
        if get_origin(kind) is Literal:
            words += get_args(kind)
        elif kind is not NoneType:
            others.append(kind)
    if (value is None and NoneType in kinds) or value in words:
        return value
    if not others:
        raise UnknownNameError(name, str(value), words)
    kind = get_origin(others[0]) or others[0]
    if kind is tuple:
        return _check_tuple(name, value, get_args(others[0]))
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


def _check_tuple(name: str, value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    """Names or whole numbers above zero: any number of them, or a pair (one stands for both)."""
    is_pair = ... not in kinds
    items = (value, value) if is_pair and isinstance(value, int) else value
    expected = "names" if str in kinds else "epochs"
    if is_pair:
        expected = "height and width in pixels"
    fits = isinstance(items, list | tuple) and set(map(type, items)) <= {kinds[0]}
    if not fits or (is_pair and len(items) != 2) or (int in kinds and min(items, default=1) < 1):
        raise ArgumentError(name, f"expected {expected}, got {value!r}")
    return tuple(items)
