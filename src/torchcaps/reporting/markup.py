"""Sections of an HTML page, and the page: templates make them HTML and escape every value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from torchcaps.templates import Picture, render


class Table(NamedTuple):
    """A table whose first column names its rows."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    kind: str  # "figures" sets all columns but the first to the right; "words" does not


Block = str | Table | Picture | list[Picture]
"""A paragraph (`Markup` stays as it is), a table, a picture, or a grid of pictures."""


@dataclass(frozen=True)
class Section:
    """A part of a page, under a heading of its own."""

    key: str  # letters, hyphens and underscores, the address within the page
    title: str
    blocks: Sequence[Block]

    @property
    def body(self) -> Markup:
        """The blocks as HTML."""
        return Markup(render("torchcaps.reporting", "section.html", blocks=self.blocks))


def name(value: object) -> Markup:
    """A name of unknown script: one that runs from right to left leaves its surroundings alone."""
    return Markup("<bdi>{}</bdi>").format(value)


def names(values: Sequence[object]) -> Markup:
    """Names after commas."""
    return Markup(", ").join(map(name, values))


def page(title: str, lead: str, sections: Sequence[Section], foot: str) -> str:
    """The whole document, with its contents: nothing in it is loaded from anywhere."""
    return render(
        "torchcaps.reporting", "page.html", title=title, lead=lead, sections=sections, foot=foot
    )
