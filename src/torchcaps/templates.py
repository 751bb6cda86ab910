"""HTML from templates, where every value is escaped unless it is `markupsafe.Markup`.

Also figures in it.
"""

from __future__ import annotations

import base64
import io
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # characters no HTML document may hold
PIXELS_PER_INCH = 96  # of CSS
MAX_MARKS = 2500  # of a vector drawing; a matrix of fifty classes has as many
DPI = 120  # of pictures made of pixels
QUALITY = 85  # of these in WebP; PNG takes five times as much


def render(package: str, template: str, **values: Any) -> str:
    """Render a template of a package.

    Control characters become U+FFFD, and what UTF-8 cannot encode becomes a question mark.

    Args:
        package: the package whose folder `templates` has the file.
        template: name of the file.
        values: variables of the template, by name.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    html = environment.get_template(template).render(values)
    html = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", html)
    return html.encode("utf-8", errors="replace").decode("utf-8")


class Picture(NamedTuple):
    """An image within a page."""

    source: str  # a data URL
    alt: str  # a description of the image
    width: int  # in CSS pixels
    height: int


def picture(figure: Figure, alt: str) -> Picture:
    """A figure as SVG, or as pixels if it has very many marks."""
    from matplotlib import rc_context

    num_marks = 0
    for axes in figure.axes:
        num_marks += sum(np.asarray(image.get_array()).size for image in axes.images)
        num_marks += sum(len(np.asarray(dots.get_offsets())) for dots in axes.collections)

    stream = io.BytesIO()
    # With a fixed salt and no date, the same figure is the same page, byte for byte.
    with rc_context({"svg.hashsalt": "torchcaps"}):
        if num_marks <= MAX_MARKS:
            mime = "image/svg+xml"
            figure.savefig(stream, format="svg", metadata={"Date": None})
        else:
            mime = "image/webp"
            figure.savefig(stream, format="webp", dpi=DPI, pil_kwargs={"quality": QUALITY})
    content = base64.b64encode(stream.getvalue()).decode("ascii")
    width, height = figure.get_size_inches() * PIXELS_PER_INCH
    return Picture(f"data:{mime};base64,{content}", alt, round(width), round(height))
