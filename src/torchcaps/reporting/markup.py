"""Sections of an HTML page, and the page: templates make them HTML and escape every value."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from markupsafe import Markup

from torchcaps.templates import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PIXELS_PER_INCH = 96  # of CSS
MAX_MARKS = 2500  # of a vector drawing; a matrix of fifty classes has as many
DPI, QUALITY = 120, 85  # of pictures made of pixels; PNG takes five times as much


class Table(NamedTuple):
    """A table whose first column names its rows."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    kind: str  # "figures" sets all columns but the first to the right; "words" does not


class Picture(NamedTuple):
    """An image within the page."""

    source: str  # a data URL
    alt: str  # what it shows, for those who do not see it
    width: int  # in CSS pixels
    height: int


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


def picture(figure: Figure, alt: str) -> Picture:
    """A matplotlib figure as SVG, or as pixels where it has very many marks."""
    from matplotlib import rc_context

    marks = [np.asarray(image.get_array()).size for axes in figure.axes for image in axes.images]
    marks += [
        len(np.asarray(points.get_offsets())) for axes in figure.axes for points in axes.collections
    ]
    stream = io.BytesIO()
    # With a fixed salt and no date, the same figure is the same page, byte for byte.
    with rc_context({"svg.hashsalt": "torchcaps"}):
        if sum(marks) <= MAX_MARKS:
            mime = "image/svg+xml"
            figure.savefig(stream, format="svg", metadata={"Date": None})
        else:
            mime = "image/webp"
            figure.savefig(stream, format="webp", dpi=DPI, pil_kwargs={"quality": QUALITY})
    content = base64.b64encode(stream.getvalue()).decode("ascii")
    width, height = (round(PIXELS_PER_INCH * side) for side in figure.get_size_inches())
    return Picture(f"data:{mime};base64,{content}", alt, width, height)


def page(title: str, lead: str, sections: Sequence[Section], foot: str) -> str:
    """The whole document, with its contents: nothing in it is loaded from anywhere."""
    return render(
        "torchcaps.reporting", "page.html", title=title, lead=lead, sections=sections, foot=foot
    )
