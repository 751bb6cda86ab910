"""Fast paths by operation.

Each registers itself in its own file, with a function that says which operands it can take.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

Run = TypeVar("Run", bound=Callable[..., Any])


class Support(NamedTuple):
    """Whether an implementation can run on some operands.

    Attributes:
        usable: whether it can run.
        reason: why, or why not, in words.
        worth_it: whether "auto" should take it.
    """

    usable: bool
    reason: str
    worth_it: bool = True


class FastPath(NamedTuple):
    """An implementation of an operation.

    Attributes:
        impl: its name, such as "numba".
        run: takes what the operation takes.
        supports: takes the operands (votes, or the tensors of a convolution) and says whether the
            implementation can run on them.
        rank: "auto" asks implementations of lower rank first.
    """

    impl: str
    run: Callable[..., Any]
    supports: Callable[..., Support]
    rank: int


# Fast paths of each operation, by rank.
PATHS: dict[str, list[FastPath]] = {}


def fast_path(
    operation: str,
    impl: str,
    supports: Callable[..., Support],
    *,
    rank: int,
) -> Callable[[Run], Run]:
    """Decorator that registers a function as the implementation `impl` of an operation.

    Args:
        operation: its name in `torchcaps.ops`.
        impl: name of the implementation; one of that name is replaced.
        supports: see `FastPath`.
        rank: see `FastPath`.
    """

    def register(run: Run) -> Run:
        others = [path for path in PATHS.get(operation, []) if path.impl != impl]
        path = FastPath(impl, run, supports, rank)
        PATHS[operation] = sorted([*others, path], key=lambda path: path.rank)
        return run

    return register
