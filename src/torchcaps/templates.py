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
    from torch import Tensor

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # characters no HTML document may hold
PIXELS_PER_INCH = 96  # of CSS
MAX_MARKS = 2500  # of a vector drawing; a matrix of fifty classes has as many
DPI = 120  # of pictures made of pixels
DARK = "#15181c"  # ground and ink of a dark page
LIGHT = "#e6e8ea"
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
    dark: str = ""  # a data URL of the same on a dark page, where `source` does not adapt itself


# A drawing on a dark page: all colors are turned round, but for photographs in it.
ADAPT = (
    "<style>@media (prefers-color-scheme: dark) { svg, image "
    "{ filter: invert(0.9) hue-rotate(180deg) } }</style>"
)


def picture(figure: Figure, alt: str) -> Picture:
    """A figure as SVG, or as pixels if it has very many marks."""
    from matplotlib import rc_context

    num_marks = 0
    for axes in figure.axes:
        num_marks += sum(np.asarray(image.get_array()).size for image in axes.images)
        num_marks += sum(len(np.asarray(dots.get_offsets())) for dots in axes.collections)

    width, height = figure.get_size_inches() * PIXELS_PER_INCH
    size = (round(width), round(height))
    if num_marks > MAX_MARKS:
        light = _webp(figure)
        _darken(figure)
        return Picture(light, alt, *size, _webp(figure))
    stream = io.BytesIO()
    # With a fixed salt and no date, the same figure is the same page, byte for byte.
    with rc_context({"svg.hashsalt": "torchcaps"}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    drawing = re.sub(r"(<svg[^>]*>)", rf"\1{ADAPT}", stream.getvalue().decode(), count=1)
    return Picture(_data_url("image/svg+xml", drawing.encode()), alt, *size)


def strip(images: Tensor, alt: str) -> Picture:
    """Equal images `[n, channels, height, width]` in [0, 1], side by side, four times as large."""
    from PIL import Image

    pixels = (255 * images[:, : 3 if images.shape[1] >= 3 else 1]).round().byte()
    row = pixels.permute(2, 0, 3, 1).flatten(1, 2).expand(-1, -1, 3)  # [height, n * width, 3]
    height, width, _ = row.shape
    size = (4 * width, 4 * height)
    stream = io.BytesIO()
    Image.fromarray(row.numpy()).resize(size, Image.Resampling.BICUBIC).save(stream, "webp")
    return Picture(_data_url("image/webp", stream.getvalue()), alt, *size)


def _webp(figure: Figure) -> str:
    """A figure as pixels, in a data URL."""
    stream = io.BytesIO()
    figure.savefig(stream, format="webp", dpi=DPI, pil_kwargs={"quality": QUALITY})
    return _data_url("image/webp", stream.getvalue())


def _data_url(mime: str, content: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(content).decode('ascii')}"


def _darken(figure: Figure) -> None:
    """Black on white becomes light on dark; colors stay."""
    from matplotlib.colors import to_hex
    from matplotlib.text import Text

    figure.set_facecolor(DARK)
    for text in figure.findobj(Text):
        if to_hex(text.get_color()) == "#000000":
            text.set_color(LIGHT)
    for axes in figure.axes:
        axes.set_facecolor(DARK)
        axes.tick_params(colors=LIGHT)
        for spine in axes.spines.values():
            spine.set_edgecolor(LIGHT)
