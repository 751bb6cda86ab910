"""The base class of views, and their registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

from torchcaps.errors import ArgumentError
from torchcaps.explorer.requests import Request
from torchcaps.explorer.session import Session
from torchcaps.registry import Registry

V = TypeVar("V", bound="type[View]")
VIEWS: Registry[type[View]] = Registry("view")


class View:
    """One thing that the page shows of a model; requests to `/api/NAME` are its own.

    A view with a `title` has a tab on the page, which the script NAME.js beside the class's file
    fills: it exports `setUp(panel)` and `update(inference, label, uniform)`.

    Args:
        session: the model. Raises ValueError for one that the view is not for.
    """

    name: ClassVar[str]  # set when it is registered
    title: ClassVar[str] = ""  # of its tab; empty for none
    order: ClassVar[int] = 0  # of its tab, from the left
    batched: ClassVar[bool] = False  # whether `answer_batch` takes one pass of the model

    def __init__(self, session: Session) -> None:
        if reason := self.missing(session):
            raise ArgumentError(self.name, reason)
        self.session = session

    @classmethod
    def missing(cls, session: Session) -> str:
        """Why the view is not for this model, by what task and model declare; empty if it is."""
        return ""

    def describe(self) -> dict[str, Any]:
        """What the page needs to know, ready for JSON."""
        return {"title": self.title}

    def answer(self, request: Request) -> dict[str, Any]:
        """The answer to a request, ready for JSON. Raises ValueError for values that do not fit."""
        return self.answer_batch([request])[0]

    def answer_batch(self, requests: Sequence[Request]) -> list[dict[str, Any]]:
        """The answers to several requests about this model, all of the same couplings."""
        return [self.answer(request) for request in requests]


def open_views(session: Session) -> dict[str, View]:
    """The views that are for a model, by name, in the order of their tabs."""
    views = {}
    for view in sorted(VIEWS.values(), key=attrgetter("order")):
        if not view.missing(session):
            views[view.name] = view(session)
    return views


def register_view(name: str, *, replace: bool = False) -> Callable[[V], V]:
    """Class decorator that registers a view.

    Args:
        name: of the view, and of its path below `/api/`.
        replace: whether it may take the place of a view of this name.

    Raises:
        ValueError: for a taken name, unless `replace`.
    """

    def register(cls: V) -> V:
        VIEWS.add(name, cls, replace=replace)
        cls.name = name
        return cls

    return register
