"""Errors a person can act on: the argument, what was expected, what came."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line reports errors without waiting for torch
    from torch import Tensor


class TorchcapsError(Exception):
    """An expected failure: its message is one sentence for the person at the keyboard."""


class DataError(TorchcapsError):
    """A data set that is absent, damaged or unusable."""


class RunError(TorchcapsError):
    """A run folder or checkpoint that is absent, damaged or does not fit."""


class TrainingError(TorchcapsError):
    """Training that cannot go on: a non-finite loss, or a write that failed."""


class UnknownNameError(TorchcapsError, ValueError):
    """A name that no registry holds."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else f"known: {', '.join(names) or 'none'}"
        super().__init__(f"unknown {kind} {name!r}; {hint}")
        self.name = name

    def __reduce__(self) -> tuple[type[TorchcapsError], tuple[str]]:
        """Pickle by message: the constructor's arguments are not kept."""
        return TorchcapsError, (str(self),)


def named_shape(axes: Sequence[str], shape: Sequence[int]) -> str:
    """`[batch=32, children=1152]` for a shape that has these axes; bare numbers where the counts differ."""
    if len(axes) != len(shape):
        return f"[{', '.join(str(n) for n in shape)}]"
    return f"[{', '.join(f'{a}={n}' for a, n in zip(axes, shape, strict=True))}]"


def check_shape(argument: str, tensor: Tensor, axes: Sequence[str], **sizes: int) -> None:
    """Raise ValueError unless `tensor` has these axes, with the sizes given for some of them.

    A first axis of `"*batch"` stands for one or more leading axes.
    """
    shape = tuple(tensor.shape)
    if axes[0].startswith("*"):
        rest = tuple(axes[1:])
        good = len(shape) > len(rest)
        tail = shape[len(shape) - len(rest) :]
    else:
        rest, tail = tuple(axes), shape
        good = len(shape) == len(axes)
    if good:
        good = all(sizes.get(axis, n) == n for axis, n in zip(rest, tail, strict=True))
    if not good:
        want = ", ".join(f"{a}={sizes[a]}" if a in sizes else a for a in axes)
        raise ValueError(f"{argument}: expected [{want}], got {named_shape(axes, shape)}")


def check_floating(**tensors: Tensor | None) -> None:
    """Raise ValueError unless each of these arguments is a tensor of floating point, or None."""
    for name, tensor in tensors.items():
        if tensor is not None and not tensor.is_floating_point():
            raise ValueError(f"{name}: expected floating point, got {tensor.dtype}")


def check_range(argument: str, value: float, low: float | None = None, high: float | None = None) -> None:
    """Raise ValueError unless low <= value <= high; None leaves a side open."""
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        bounds = (
            f"between {low} and {high}"
            if low is not None and high is not None
            else (f"at least {low}" if low is not None else f"at most {high}")
        )
        raise ValueError(f"{argument}: expected {bounds}, got {value}")


def check_exists(path: Path, what: str) -> Path:
    """Return `path`, or raise RunError naming `what` is missing there."""
    if not path.exists():
        raise RunError(f"{what}: nothing found at {path}")
    return path
