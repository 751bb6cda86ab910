"""Errors a person can act on: the argument, what was expected, what came."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line reports errors without waiting for torch
    from numpy.typing import NDArray
    from torch import Tensor

LONGEST = 800  # characters of a message


class TorchcapsError(Exception):
    """An expected failure: its message is one sentence, on one line, for the person at the keyboard."""

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


class ArgumentError(TorchcapsError, ValueError):
    """An argument or setting that cannot be used. The message begins with its name.

    Attributes:
        argument: name of the argument.
    """

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(f"{argument}: {problem}")
        self.argument = argument

    def __reduce__(self) -> tuple[type[TorchcapsError], tuple[str, ...]]:
        """Pickle by the constructor's arguments."""
        return ArgumentError, (self.argument, str(self).removeprefix(f"{self.argument}: "))


class DataError(TorchcapsError):
    """A data set that is absent, damaged or unusable."""


class DatasetNotFoundError(DataError):
    """A named data set is in none of the places looked at."""


class RunError(TorchcapsError):
    """A run folder or checkpoint that is absent, damaged or does not fit."""


class TrainingError(TorchcapsError):
    """Training that cannot go on: a non-finite loss, or a write that failed."""


class AblationUnsupportedError(TorchcapsError, ValueError):
    """A router whose couplings cannot be fixed, because it makes them by itself."""


class UnknownNameError(ArgumentError):
    """A name that is not known.

    Args:
        kind: what has that name, in words; the error's `argument`.
        name: the name.
        known: the names that are known.
        note: what else may be the cause.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], note: str = "") -> None:
        names = sorted(known)
        hint = f"known: {', '.join(names) or 'none'}"
        if near := get_close_matches(name, names, n=3, cutoff=0.5):
            hint = f"did you mean {' or '.join(map(repr, near))}?"
        cause = f" ({note})" if note else ""
        TorchcapsError.__init__(self, f"unknown {kind} {name!r}; {hint}{cause}")
        self.argument = kind
        self.name = name

    def __reduce__(self) -> tuple[type[TorchcapsError], tuple[str]]:
        """Pickle by message: the constructor's arguments are not kept."""
        return TorchcapsError, (str(self),)


def named_shape(axes: Sequence[str], shape: Sequence[int]) -> str:
    """`[batch=32, children=1152]` for a shape that has these axes; bare numbers where the counts differ."""
    if len(axes) != len(shape):
        return f"[{', '.join(str(n) for n in shape)}]"
    return f"[{', '.join(f'{a}={n}' for a, n in zip(axes, shape, strict=True))}]"


def check_shape(
    argument: str, tensor: Tensor | NDArray[Any], axes: Sequence[str], **sizes: int
) -> None:
    """Raise ValueError unless `tensor` has these axes, with the sizes given for some of them; a first axis `"*batch"`
    stands for one or more."""
    shape, starred = tuple(tensor.shape), axes[0].startswith("*")
    named = axes[1:] if starred else axes
    good = len(shape) > len(named) if starred else len(shape) == len(named)
    last = shape[len(shape) - len(named) :]
    if not good or any(sizes.get(axis, n) != n for axis, n in zip(named, last, strict=True)):
        want = ", ".join(f"{a}={sizes[a]}" if a in sizes else a for a in axes)
        raise ArgumentError(argument, f"expected [{want}], got {named_shape(axes, shape)}")


def check_floating(**tensors: Tensor | None) -> None:
    """Raise ValueError unless each of these arguments is a tensor of floating point, or None."""
    for name, tensor in tensors.items():
        if tensor is not None and not tensor.is_floating_point():
            raise ArgumentError(name, f"expected floating point, got {tensor.dtype}")


def check_range(
    argument: str, value: float, low: float | None = None, high: float | None = None
) -> None:
    """Raise ValueError unless low <= value <= high; None leaves a side open."""
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        one_sided = f"at least {low}" if high is None else f"at most {high}"
        bounds = one_sided if None in (low, high) else f"between {low} and {high}"
        raise ArgumentError(argument, f"expected {bounds}, got {value}")


def check_positive(**numbers: float) -> None:
    """Raise ValueError unless each of these arguments is at least one."""
    for name, value in numbers.items():
        check_range(name, value, low=1)


def check_known(kind: str, name: str, known: Iterable[str]) -> None:
    """Raise UnknownNameError unless this is one of the names that are known."""
    names = tuple(known)
    if name not in names:
        raise UnknownNameError(kind, name, names)


def check_regular(path: Path) -> None:
    """Raise OSError for what is there and no file or folder: reading a FIFO or a device may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "expected a regular file, got a FIFO or a device", str(path))


def read_text(path: Path) -> str:
    """The text of a regular file in UTF-8. Raises OSError where it is none or cannot be read, UnicodeDecodeError."""
    check_regular(path)
    return path.read_text(encoding="utf-8")


def one_line(text: str) -> str:
    """A message as one printable line: white space drawn together, control characters escaped, the middle cut out."""
    words = " ".join(_shortened(text).split())
    return _shortened(
        "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)
    )


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 500]} … {text[-400:]}"
