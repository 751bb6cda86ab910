"""Fast paths by operation: each registers itself in its own file, with a function that says what it can take."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

Run = TypeVar("Run", bound=Callable[..., Any])


class Support(NamedTuple):
    """Whether an implementation can run, in words why (not), and whether "auto" should take it."""

    usable: bool
    reason: str
    worth_it: bool = True


class FastPath(NamedTuple):
    """An implementation, such as "numba", of an operation.

    `run` takes what the operation takes, `supports` its operands (the votes; the tensors of a convolution), and says
    whether it can run. "auto" asks those of lower rank first.
    """

    impl: str
    run: Callable[..., Any]
    supports: Callable[..., Support]
    rank: int


PATHS: dict[str, list[FastPath]] = {}  # of each operation, best first


def fast_path(
    operation: str, impl: str, supports: Callable[..., Support], *, rank: int
) -> Callable[[Run], Run]:
    """Decorator: makes a function known as the implementation `impl` of an operation."""

    def register(run: Run) -> Run:
        others = [path for path in PATHS.get(operation, []) if path.impl != impl]
        path = FastPath(impl, run, supports, rank)
        PATHS[operation] = sorted([*others, path], key=lambda path: path.rank)
        return run

    return register
