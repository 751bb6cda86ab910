"""HTML from templates, where every value is escaped unless it is `markupsafe.Markup`.

Also figures in it.
"""

import base64
import io
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

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
    return html.encode(errors="replace").decode()


class Picture(NamedTuple):
    """An image within a page."""

    source: str  # a data URL
    alt: str  # a description of the image
    width: int  # in CSS pixels
    height: int
    dark: str = ""  # a data URL of the same on a dark page, where `source` does not adapt itself


# A drawing on a dark page: what is light becomes dark.
ADAPT = (
    "<style>@media (prefers-color-scheme: dark) "
    "{ svg { filter: invert(0.9) hue-rotate(180deg) } }</style>"
)


def picture(figure: "Figure", alt: str) -> Picture:
    """A figure as SVG, or as pixels if it has very many marks."""
    from matplotlib import rc_context

    num_marks = 0
    for axes in figure.axes:
        num_marks += sum(np.asarray(image.get_array()).size for image in axes.images)
        num_marks += sum(len(np.asarray(dots.get_offsets())) for dots in axes.collections)

    width, height = figure.get_size_inches() * PIXELS_PER_INCH
    size = (round(width), round(height))
    stream = io.BytesIO()
    if num_marks > MAX_MARKS or _pictures_in(figure):
        figure.savefig(stream, format="png", dpi=DPI)
        image = Image.open(stream).convert("RGB")
        return Picture(_webp(image), alt, *size, _webp(_darken(figure, image)))
    # With a fixed salt and no date, the same figure is the same page, byte for byte.
    with rc_context({"svg.hashsalt": "torchcaps"}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    drawing = re.sub(r"(<svg[^>]*>)", rf"\1{ADAPT}", stream.getvalue().decode(), count=1)
    return Picture(_data_url("image/svg+xml", drawing.encode()), alt, *size)


def strip(images: "Tensor", alt: str) -> Picture:
    """Equal images `[n, channels, height, width]` in [0, 1], side by side, four times as large."""
    pixels = (255 * images[:, : 3 if images.shape[1] >= 3 else 1]).round().byte()
    row = pixels.permute(2, 0, 3, 1).flatten(1, 2).expand(-1, -1, 3)  # [height, n * width, 3]
    height, width, _ = row.shape
    size = (4 * width, 4 * height)
    enlarged = Image.fromarray(row.numpy()).resize(size, Image.Resampling.BICUBIC)
    return Picture(_webp(enlarged, quality=80), alt, *size)


def _webp(image: Image.Image, quality: int = QUALITY) -> str:
    """Pixels in a data URL."""
    stream = io.BytesIO()
    image.save(stream, "webp", quality=quality)
    return _data_url("image/webp", stream.getvalue())


def _data_url(mime: str, content: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(content).decode('ascii')}"


def _darken(figure: "Figure", image: Image.Image) -> Image.Image:
    """What is light becomes dark, and keeps its color, but for the pictures in a figure."""
    luma, *chroma = image.convert("YCbCr").split()
    luma = luma.point(lambda y: round(255 - 0.91 * y))
    dark = Image.merge("YCbCr", [luma, *chroma]).convert("RGB")
    scale = DPI / figure.dpi
    for drawn in _pictures_in(figure):
        box = drawn.get_window_extent()
        top, bottom = (round(image.height - scale * y) for y in (box.y1, box.y0))
        corners = (round(scale * box.x0), top, round(scale * box.x1), bottom)
        dark.paste(image.crop(corners), corners)
    return dark


def _pictures_in(figure: "Figure") -> list[Any]:
    """Images in colors, and not those whose colors stand for numbers."""
    return [
        image
        for axes in figure.axes
        for image in axes.images
        if np.asarray(image.get_array()).ndim == 3
    ]
