"""From an image file to pixels: the one decoder, used for training folders and for prediction alike."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps
from torch import Tensor

from torchcaps.data.pixels import deep_to_bytes, fit_images
from torchcaps.errors import DataError

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
GREY_MODES = frozenset({"1", "L", "LA", "La", "F"})
ALPHA_MODES = frozenset({"RGBA", "RGBa", "LA", "La", "PA"})

ImageSource = str | Path | bytes | Image.Image


def decode_image(
    source: ImageSource,
    img_size: int | tuple[int, int] | None = None,
    in_chans: int | None = None,
    *,
    name: str | None = None,
) -> UInt8[Tensor, "channels height width"]:
    """The pixels of one image, upright.

    The EXIF orientation is applied; transparency is composited on black; palette, CMYK and other colour spaces
    become RGB; 16-bit grey is scaled so that 65535 becomes 255; of an animation the first frame is read.

    Args:
        source: a path, the bytes of a file, or a Pillow image.
        img_size: (height, width) or one side of a square to resize to; None keeps the image's own.
        in_chans: 1 or 3; None gives 1 for a grey image and 3 for a colour one.
        name: what to call the image in errors; None takes the path.

    Returns:
        uint8 `[channels, height, width]`, 0..255.

    Raises:
        DataError: absent, unreadable, damaged, cut short, or so large that it looks like a decompression bomb.
    """
    with opened(source, name) as image:
        pixels = _pixels(ImageOps.exif_transpose(image))
    tensor = torch.from_numpy(pixels).movedim(-1, 0).contiguous()
    return fit_images(tensor.unsqueeze(0), img_size, in_chans)[0]


def is_grey(source: ImageSource, name: str | None = None) -> bool:
    """Whether an image is stored as grey, told from its header without decoding it.

    Raises:
        DataError: absent or unreadable.
    """
    with opened(source, name) as image:
        return _is_grey(image)


def is_image_name(name: str) -> bool:
    """Whether a file name has the ending of an image and is not hidden."""
    return not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES


@contextmanager
def opened(source: ImageSource, name: str | None = None) -> Iterator[Image.Image]:
    """Open an image and turn whatever goes wrong while it is read into a DataError that names it."""
    if name is None:
        name = str(source) if isinstance(source, str | Path) else "image"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on odd metadata; the pixels are what counts
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if isinstance(source, Image.Image):
                yield source
            else:
                with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
                    yield image
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except FileNotFoundError:
        raise DataError(f"{name}: no such image file") from None
    except Image.UnidentifiedImageError:
        raise DataError(f"{name}: not an image, or a damaged one") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise DataError(f"{name}: more than {Image.MAX_IMAGE_PIXELS:,} pixels, refused") from None
    except Exception as error:  # Pillow's plugins raise anything on damaged bytes
        raise DataError(f"{name}: unreadable image ({str(error) or type(error).__name__})") from None


def _pixels(image: Image.Image) -> np.ndarray:
    if image.mode.startswith("I") or image.mode == "F":
        return deep_to_bytes(np.asarray(image))[..., None]
    grey = _is_grey(image)
    if image.mode in ALPHA_MODES or "transparency" in image.info:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image.convert("RGBA"))
    if grey:
        return np.array(image.convert("L"))[..., None]
    return np.array(image.convert("RGB"))


def _is_grey(image: Image.Image) -> bool:
    if image.mode in ("P", "PA"):
        palette = np.reshape(image.getpalette() or [], (-1, 3))
        return bool((palette == palette[:, :1]).all())
    return image.mode in GREY_MODES or image.mode.startswith("I")
