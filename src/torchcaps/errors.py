"""Errors that a person can act on: the argument, what was expected, what was got."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, get_args

if TYPE_CHECKING:  # the command line reports errors without waiting for torch
    from numpy.typing import NDArray
    from torch import Tensor

LONGEST = 800  # characters of a message
MOST_NAMES = 30  # that an error lists


class TorchcapsError(Exception):
    """An expected failure: its message is one sentence, on one line, for the user."""

    longest: ClassVar[int] = LONGEST  # characters of the message

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message, self.longest))


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
    """A named data set is in none of the places that were searched."""


class MissingSplitError(DataError):
    """A data set that does not have the split which is asked for."""


class DamagedImageError(DataError):
    """Image files that cannot be decoded; the message may name twenty of them."""

    longest = 5 * LONGEST


class RunError(TorchcapsError):
    """A run folder or checkpoint that is absent, damaged or does not fit."""


class TrainingError(TorchcapsError):
    """Training that cannot go on: a non-finite loss, or a write that failed."""


class ExportError(TorchcapsError):
    """A model that a format cannot hold, or a file that does not answer as its model does."""


class AblationUnsupportedError(TorchcapsError, ValueError):
    """A router whose couplings cannot be fixed, because it makes them by itself."""


class UnknownNameError(ArgumentError):
    """A name that is not known.

    Args:
        kind: of the thing with that name, in words; the error's `argument`.
        name: the name.
        known: the names that are known.
        note: another possible cause.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], note: str = "") -> None:
        names = sorted(known)
        more = f", and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        hint = f"known: {', '.join(names[:MOST_NAMES]) or 'none'}{more}"
        # The hyphens of flags say nothing.
        words = {option.lstrip("-"): option for option in names}
        matches = get_close_matches(name.lstrip("-"), words, cutoff=0.5)
        similar = [words[match] for match in matches]
        if not similar and name:  # the first word of a longer name
            similar = [each for each in names if each.startswith(name)][:3]
        if similar:
            hint = f"did you mean {' or '.join(map(repr, similar))}?"
        cause = f" ({note})" if note else ""
        TorchcapsError.__init__(self, f"unknown {kind} {name!r}; {hint}{cause}")
        self.argument = kind
        self.name = name

    def __reduce__(self) -> tuple[type[TorchcapsError], tuple[str]]:
        """Pickle by message: the constructor's arguments are not kept."""
        return TorchcapsError, (str(self),)


def named_shape(axes: Sequence[str], shape: Sequence[int]) -> str:
    """`[batch=32, children=1152]` for a shape with these axes.

    Bare numbers where the number of axes differs.
    """
    if len(axes) != len(shape):
        return f"[{', '.join(map(str, shape))}]"
    return f"[{', '.join(f'{axis}={size}' for axis, size in zip(axes, shape, strict=True))}]"


def check_shape(
    argument: str,
    tensor: Tensor | NDArray[Any],
    axes: Sequence[str],
    **sizes: int,
) -> None:
    """Check the shape of a tensor.

    Args:
        argument: name of the tensor.
        tensor: of any type with a shape.
        axes: names of its axes; a first one of `"*batch"` stands for one or more.
        sizes: of some of these axes.

    Raises:
        ArgumentError: the tensor has other axes or sizes.
    """
    shape = tuple(tensor.shape)
    is_starred = axes[0].startswith("*")
    named = axes[1:] if is_starred else axes
    fits = len(shape) > len(named) if is_starred else len(shape) == len(named)
    last = shape[len(shape) - len(named) :]
    if not fits or last != tuple(map(sizes.get, named, last)):
        expected = ", ".join(f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in axes)
        raise ArgumentError(argument, f"expected [{expected}], got {named_shape(axes, shape)}")


def check_floating(**tensors: Tensor | None) -> None:
    """Raise ArgumentError unless each of these arguments is of floating point, or None."""
    for name, tensor in tensors.items():
        if tensor is not None and not tensor.is_floating_point():
            raise ArgumentError(name, f"expected floating point, got {tensor.dtype}")


def check_range(
    argument: str,
    value: float,
    low: float | None = None,
    high: float | None = None,
) -> None:
    """Raise ArgumentError unless low <= value <= high; None leaves a side open."""
    if (low is None or value >= low) and (high is None or value <= high):
        return
    bounds = f"between {low} and {high}"
    if high is None:
        bounds = f"at least {low}"
    elif low is None:
        bounds = f"at most {high}"
    raise ArgumentError(argument, f"expected {bounds}, got {value}")


def check_packages(argument: str, extra: str, *packages: str) -> None:
    """Check that packages of an extra are installed.

    Raises:
        ArgumentError: one is not.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ArgumentError(
                argument, f"{package} is missing; install with: pip install 'torchcaps[{extra}]'"
            )


def check_positive(**numbers: float) -> None:
    """Raise ArgumentError unless each of these arguments is a whole number, at least one."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, SupportsIndex):
            raise ArgumentError(name, f"expected a whole number of at least 1, got {number!r}")
        check_range(name, number, low=1)


def check_known(kind: str, name: str, known: Any) -> None:
    """Raise UnknownNameError unless this is one of the known names, or of those of a Literal."""
    names = tuple(get_args(known) or known)
    if name not in names:
        raise UnknownNameError(kind, name, names)


def check_regular(path: Path) -> None:
    """Raise OSError for a FIFO or a device, whose reading may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "expected a regular file, got a FIFO or a device", str(path))


def read_text(path: Path) -> str:
    """The text of a regular file in UTF-8.

    Raises:
        OSError: it is absent, not a regular file or not readable.
        UnicodeDecodeError: it is not UTF-8.
    """
    check_regular(path)
    return path.read_text("utf-8")


def one_line(text: str, longest: int = LONGEST) -> str:
    """A message as one printable line.

    White space becomes single spaces, control characters are escaped, and the middle of a long
    message is cut out.

    Args:
        text: the message.
        longest: number of characters, more than 500.
    """
    return _shorten(printable(" ".join(_shorten(text, longest).split())), longest)


def counted(number: int, noun: str) -> str:
    """`1 epoch`, `2 epochs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def printable(text: str) -> str:
    """Text for a terminal: control characters, such as those of colors, are escaped, but "\\n"."""
    return "".join(
        character if character.isprintable() or character == "\n" else ascii(character)[1:-1]
        for character in text
    )


def _shorten(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 500]} … {text[-400:]}"
