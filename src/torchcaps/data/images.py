"""From an image file to pixels: the one decoder, used for training folders and for prediction alike."""

import io
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps
from torch import Tensor

from torchcaps.data.budget import MemoryBudget
from torchcaps.data.pixels import Size, deep_to_bytes, fit_images, size_pair, to_channels
from torchcaps.errors import DataError, check_regular

# All that is ever opened, whatever a file is called: others run programs (EPS) or are seldom looked after.
FORMATS = {
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "JPEG": (".jpg", ".jpeg"),
    "PNG": (".png",),
    "PPM": (".pbm", ".pgm", ".ppm"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
SUFFIXES = frozenset(suffix for suffixes in FORMATS.values() for suffix in suffixes)
STRIP = 1 << 20  # pixels converted at a time
GRAY_MODES = frozenset({"1", "L", "LA", "La", "F"})
ALPHA_MODES = frozenset({"RGBA", "RGBa", "LA", "La", "PA"})

ImageSource = str | Path | bytes | Image.Image


def decode_image(
    source: ImageSource,
    img_size: Size = None,
    in_chans: int | None = None,
    *,
    name: str | None = None,
    budget: MemoryBudget | None = None,
) -> UInt8[Tensor, "channels height width"]:
    """The pixels of one image, upright: uint8 `[channels, height, width]`.

    The EXIF orientation is applied; transparency is composited on black; palette, CMYK and other color spaces
    become RGB; 16-bit gray is scaled so that 65535 becomes 255; of an animation the first frame is read.

    The source is a path, the bytes of a file, or a Pillow image. `img_size` is (height, width) or one side of a square
    to resize to; None keeps the image's own. `in_chans` is 1 or 3; None gives 1 for a gray image, else 3.
    Errors call it `name`; None takes the path. `budget` is that of the set it is read for.

    DataError: absent, of another format than those in `FORMATS`, damaged, cut short, or far too large.
    """
    with opened(source, name) as image:
        channels = in_chans or (1 if _is_gray(image) else 3)
        height, width = image.size[::-1] if img_size is None else size_pair(img_size)
        # The images of a set are kept together: those that do not fit are refused before they are decoded.
        if budget is not None:
            if isinstance(source, str | Path):
                budget.add_file(os.stat(source))
            budget.reserve("the set", channels * height * width)
        pixels = _pixels(image, channels, own=isinstance(source, Image.Image))
    return fit_images(pixels.unsqueeze(0), img_size, None)[0]


def is_gray(source: ImageSource, name: str | None = None) -> bool:
    """Whether an image is stored as gray, told from its header; DataError where it is absent or unreadable."""
    with opened(source, name) as image:
        return _is_gray(image)


def is_image_name(name: str) -> bool:
    """Whether a file name has the ending of an image and is not hidden."""
    return not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """Sorting key by which `img2` comes before `img10`: of two numbers, that with more digits is larger."""
    parts = (
        part.lstrip("0") if part.isdecimal() else part for part in re.split(r"(\d+)", text) if part
    )
    return [
        (0, len(part), part) if not part or part.isdecimal() else (1, 0, part) for part in parts
    ]


@contextmanager
def opened(source: ImageSource, name: str | None = None) -> Iterator[Image.Image]:
    """Open an image of a format in `FORMATS`, and turn whatever goes wrong with it into a DataError that names it."""
    if name is None:
        name = str(source) if isinstance(source, str | Path) else "image"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on odd metadata; the pixels are what counts
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if isinstance(source, Image.Image):
                yield source
                return
            if not isinstance(source, bytes):
                check_regular(Path(source))
            file = io.BytesIO(source) if isinstance(source, bytes) else source
            with Image.open(file, formats=[*FORMATS]) as image:
                yield image
    except DataError as error:
        raise DataError(f"{name}: {str(error).removeprefix(f'{name}: ')}") from None
    except FileNotFoundError:
        raise DataError(f"{name}: no such image file") from None
    except Image.UnidentifiedImageError:
        raise DataError(
            f"{name}: not an image, or a damaged one; expected {', '.join(FORMATS)}"
        ) from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise DataError(f"{name}: more than {Image.MAX_IMAGE_PIXELS:,} pixels, refused") from None
    except Exception as error:  # Pillow's plugins raise anything on damaged bytes
        raise DataError(
            f"{name}: unreadable image ({str(error) or type(error).__name__})"
        ) from error


def _pixels(image: Image.Image, channels: int, own: bool) -> UInt8[Tensor, "channels height width"]:
    """The pixels, upright; converted strip by strip, as every conversion of a whole picture would be a copy of it."""
    image = ImageOps.exif_transpose(image) if own else image
    ImageOps.exif_transpose(image, in_place=True)
    width, height = image.size
    rows = max(1, STRIP // width)
    found = torch.empty(channels, height, width, dtype=torch.uint8)
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        strip = image if bottom - top == height else image.crop((0, top, width, bottom))
        values = torch.from_numpy(_strip(strip)).movedim(-1, 0)
        found[:, top:bottom] = to_channels(values.unsqueeze(0), channels)[0]
    return found


def _strip(image: Image.Image) -> np.ndarray:
    if image.mode.startswith("I") or image.mode == "F":
        return deep_to_bytes(np.asarray(image))[..., None]
    plain = "L" if _is_gray(image) else "RGB"
    if image.mode in ALPHA_MODES or "transparency" in image.info:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image.convert("RGBA"))
    return np.atleast_3d(np.array(image.convert(plain)))


def _is_gray(image: Image.Image) -> bool:
    if image.mode in ("P", "PA"):
        palette = np.reshape(image.getpalette() or [], (-1, 3))
        return bool((palette == palette[:, :1]).all())
    return image.mode in GRAY_MODES or image.mode.startswith("I")
