"""Fast paths by operation.

Each registers itself in its own file, with a function that says what it cannot take, and why.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

Run = TypeVar("Run", bound=Callable[..., Any])
Objection = Callable[..., str | None]


class FastPath(NamedTuple):
    """An implementation of an operation.

    Attributes:
        impl: its name, such as "numba".
        run: takes what the operation takes.
        obstacle: takes the operands (votes, or the tensors of a convolution) and says in words why
            the implementation cannot run on them; None if it can.
        reason: what it does, in words.
        drawback: as `obstacle`; says why "auto" leaves an implementation that could run.
        rank: "auto" asks implementations of lower rank first.
    """

    impl: str
    run: Callable[..., Any]
    obstacle: Objection
    reason: str
    drawback: Objection
    rank: int


# Fast paths of each operation, by rank.
PATHS: dict[str, list[FastPath]] = {}


def fast_path(
    operation: str,
    impl: str,
    obstacle: Objection,
    *,
    rank: int,
    reason: str,
    drawback: Objection = lambda *_: None,
) -> Callable[[Run], Run]:
    """Decorator that registers a function as the implementation `impl` of an operation.

    Args:
        operation: its name in `torchcaps.ops`.
        impl: name of the implementation; one of that name is replaced.
        obstacle: see `FastPath`.
        rank: see `FastPath`.
        reason: see `FastPath`.
        drawback: see `FastPath`.
    """

    def register(run: Run) -> Run:
        paths = [path for path in PATHS.get(operation, []) if path.impl != impl]
        paths.append(FastPath(impl, run, obstacle, reason, drawback, rank))
        PATHS[operation] = sorted(paths, key=lambda path: path.rank)
        return run

    return register
