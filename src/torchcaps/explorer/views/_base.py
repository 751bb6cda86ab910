"""Views: functions of a model and of what a request holds; and their registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from torchcaps.errors import ArgumentError
from torchcaps.explorer.session import Session
from torchcaps.registry import Registry

Arguments = dict[str, Any]
Answer = dict[str, Any]
F = TypeVar("F", bound=Callable[..., Answer])


class View(NamedTuple):
    """One thing that the page shows of a model; requests to `/api/NAME` are its own.

    A view with a `title` has a tab on the page, which the script NAME.js beside its file fills: it
    exports `setUp(panel)` and `update(inference, label, uniform)`.

    Attributes:
        name: of the view, and of its path below `/api/`.
        function: from a session, and the values of a request by their names, to the answer.
        title: of its tab; empty for none.
        order: of its tab, from the left.
        missing: why the view is not for a model, by what task and model declare; empty if it is.
        describe: what the page needs to know, ready for JSON. It is asked once, before requests.
        batch: answers several requests of the same couplings in one pass of the model.
    """

    name: str
    function: Callable[..., Answer]
    title: str = ""
    order: int = 0
    missing: Callable[[Session], str] = lambda _: ""
    describe: Callable[[Session], dict[str, Any]] = lambda _: {}
    batch: Callable[[Session, Sequence[Arguments]], list[Answer]] | None = None

    def answer(self, session: Session, requests: Sequence[Arguments]) -> list[Answer]:
        """The answers to several requests; ArgumentError for a model that it is not for."""
        if reason := self.missing(session):
            raise ArgumentError(self.name, reason)
        if self.batch is not None:
            return self.batch(session, requests)
        return [self.function(session, **arguments) for arguments in requests]


VIEWS: Registry[View] = Registry("view")


def open_views(session: Session) -> dict[str, View]:
    """The views that are for a model, by name, in the order of their tabs."""
    views = sorted(VIEWS.values(), key=attrgetter("order"))
    return {view.name: view for view in views if not view.missing(session)}


def register_view(name: str, *, replace: bool = False, **about: Any) -> Callable[[F], F]:
    """Decorator that registers a function as a view.

    The function takes a `Session`, and from a request what its other parameters name, such as
    `image`, `label` and `uniform`; those with a default may be absent. It returns a dictionary of
    tensors, numbers and texts. "image" and "drawn" are pictures.

    Args:
        name: of the view, and of its path below `/api/`.
        replace: whether it may take the place of a view of this name.
        about: further attributes of the `View`, such as `title`, `missing` and `batch`.

    Raises:
        ValueError: for a taken name, unless `replace`.
    """

    def register(function: F) -> F:
        VIEWS.add(name, View(name, function, **about), replace=replace)
        return function

    return register
