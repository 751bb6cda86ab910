"""Pieces of an HTML page: everything that is not `Html` already is escaped on its way in."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Html(str):
    """Text that is part of a page as it is."""


PIXELS_PER_INCH = 96  # of CSS
PHONE = 500  # CSS pixels of a picture that is still read when it is made as narrow as a phone
MOST_MARKS = 2500  # of a drawing; a matrix of fifty classes has as many
DPI, QUALITY = 120, 85  # of pictures made of pixels; PNG takes five times as much
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # no HTML document may hold these


class Section(NamedTuple):
    """A part of a page, under a heading of its own."""

    key: str  # letters and hyphens, the address within the page
    title: str
    body: Html


def text(value: object) -> Html:
    """Any text, escaped for use between tags and in attributes; what is `Html` already stays."""
    if isinstance(value, Html):
        return value
    return Html(escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(value)), quote=True))


def name(value: object) -> Html:
    """A name of unknown script: one that runs from right to left leaves its surroundings alone."""
    return Html(f"<bdi>{text(value)}</bdi>")


def join(*parts: Html) -> Html:
    """One after the other."""
    return Html("\n".join(parts))


def paragraph(content: str) -> Html:
    """A paragraph."""
    return Html(f"<p>{text(content)}</p>")


def table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, kind: str = ""
) -> Html:
    """A table whose first column names its rows; of the kind "figures", all other columns are set to the right."""
    top = "".join(f'<th scope="col">{text(head)}</th>' for head in heads)
    body = "\n".join(
        f'<tr><th scope="row">{text(first)}</th>{"".join(f"<td>{text(cell)}</td>" for cell in cells)}</tr>'
        for first, *cells in rows
    )
    return Html(
        f'<div class="wide" tabindex="0" role="region" aria-label="{text(caption)}"><table class="{text(kind)}">\n'
        f"<caption>{text(caption)}</caption>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody>\n"
        "</table></div>"
    )


def picture(figure: Figure, alt: str) -> Html:
    """A matplotlib figure on a white card: drawn again at any size, or as pixels where it has very many marks."""
    from matplotlib import rc_context

    marks = [np.asarray(image.get_array()).size for axes in figure.axes for image in axes.images]
    marks += [
        len(np.asarray(points.get_offsets())) for axes in figure.axes for points in axes.collections
    ]
    stream, mime = io.BytesIO(), "image/svg+xml" if sum(marks) <= MOST_MARKS else "image/webp"
    with rc_context(
        {"svg.hashsalt": "torchcaps"}
    ):  # the same figure is the same page, byte for byte
        if mime == "image/svg+xml":
            figure.savefig(stream, format="svg", metadata={"Date": None})
        else:
            figure.savefig(stream, format="webp", dpi=DPI, pil_kwargs={"quality": QUALITY})
    width, height = (round(PIXELS_PER_INCH * side) for side in figure.get_size_inches())
    kinds, content = (
        "card broad" if width > PHONE else "card",
        base64.b64encode(stream.getvalue()).decode("ascii"),
    )
    return Html(
        f'<figure class="{kinds}"><img src="data:{mime};base64,{content}" alt="{text(alt)}" width="{width}" '
        f'height="{height}" style="--natural:{width}px"></figure>'
    )


def page(title: str, lead: Html, sections: Sequence[Section], foot: str) -> str:
    """The whole document, with its contents: nothing in it is loaded from anywhere. Title and foot are plain text."""
    template = Template(
        files("torchcaps.reporting").joinpath("page.html").read_text(encoding="utf-8")
    )
    contents = "\n".join(
        f'<li><a href="#{text(one.key)}">{text(one.title)}</a></li>' for one in sections
    )
    body = "\n".join(
        f'<section aria-labeledby="{text(one.key)}">\n<h2 id="{text(one.key)}">{text(one.title)}</h2>\n{one.body}\n'
        "</section>"
        for one in sections
    )
    return template.substitute(
        title=text(title), lead=lead, contents=contents, body=body, foot=text(foot)
    )
