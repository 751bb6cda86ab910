"""Sections of an HTML page, and the page: templates make them HTML and escape every value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from torchcaps.templates import Picture, render

PACKAGE = "torchcaps.reporting"  # whose templates are used


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
    """A part of a page, under a heading of its own.

    Attributes:
        key: address within the page, of letters, hyphens and underscores.
        title: the heading.
        blocks: what stands below it.
    """

    key: str
    title: str
    blocks: Sequence[Block]

    @property
    def body(self) -> Markup:
        """The blocks as HTML."""
        return Markup(render(PACKAGE, "section.html", blocks=self.blocks))


def name(text: object) -> Markup:
    """A name of any script; one that runs from right to left leaves the text around it alone."""
    return Markup("<bdi>{}</bdi>").format(text)


def names(texts: Sequence[object]) -> Markup:
    """Names with commas between them."""
    return Markup(", ").join(map(name, texts))


def page(title: str, lead: str, sections: Sequence[Section], foot: str) -> str:
    """The whole document, with a table of contents; it loads nothing from anywhere."""
    return render(PACKAGE, "page.html", title=title, lead=lead, sections=sections, foot=foot)
