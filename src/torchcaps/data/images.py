"""The one decoder of image files, for training folders and for prediction."""

import io
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps
from torch import Tensor

from torchcaps.data.pixels import HeightWidth, Size, deep_to_bytes, fit_images, size_pair
from torchcaps.errors import DamagedImageError, DataError, check_regular
from torchcaps.types import StrPath
from torchcaps.words import join_names

# The only formats that are opened, whatever a file is called: others run programs (EPS) or are
# seldom maintained.
FORMATS = {
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "JPEG": (".jpg", ".jpeg"),
    "PNG": (".png",),
    "PPM": (".pbm", ".pgm", ".ppm"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
MAX_FILES = 3  # that are no images, in an error
SUFFIXES = frozenset(chain.from_iterable(FORMATS.values()))
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")  # which may hold images
# How files of these formats begin, by which those without an ending are recognized.
SIGNATURE = re.compile(
    rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|GIF8[79]a|BM.{4}\0{4}|P[1-6]\s[\s\d#]"
    rb"|II\*\0|MM\0\*|RIFF.{4}WEBP",
    re.DOTALL,
)
SIGNATURE_BYTES = 16
ORIENTATION = 0x0112  # EXIF tag; 5 to 8 exchange height and width
DRAFT_FACTOR = 2  # times the target size, at which a JPEG is decoded at least

ImageSource = StrPath | bytes | Image.Image
OpenImage = Callable[[str], ImageSource]  # from the name of a file to what `decode_image` takes


def decode_image(
    source: ImageSource,
    img_size: Size = None,
    in_chans: int | None = None,
    *,
    name: str | None = None,
    background: str = "black",
) -> UInt8[Tensor, "channels height width"]:
    """The pixels of one image, upright.

    The EXIF orientation is applied. Transparency is composited on a color. Palettes, CMYK and other
    color spaces become RGB. 16-bit gray is scaled so that 65535 becomes 255. Of an animation the
    first frame is read. A JPEG file that is to be resized is decoded at 1/2, 1/4 or 1/8 of its size
    where that is at least twice the target, which saves time and memory.

    Args:
        source: a path, the bytes of a file, or a Pillow image.
        img_size: (height, width), or one side of a square, to resize to; None keeps the image's.
        in_chans: 1 or 3; None gives 1 for a gray image, else 3.
        name: what errors call the image; None takes the path.
        background: color behind what is transparent.

    Returns:
        uint8 `[channels, height, width]`.

    Raises:
        DataError: absent, of another format than those in `FORMATS`, damaged, cut short, or far
            too large.
    """
    with opened(source, name) as image:
        channels = in_chans or (1 if _is_gray(image) else 3)
        if isinstance(source, Image.Image):
            image = image.copy()
        elif img_size is not None:
            # At twice the target, the antialiased resize that follows averages the same
            # frequencies. Both sides alike: an EXIF orientation may exchange them.
            side = DRAFT_FACTOR * max(size_pair(img_size))
            image.draft(None, (side, side))
        ImageOps.exif_transpose(image, in_place=True)
        pixels = torch.from_numpy(_to_bytes(image, background)).movedim(-1, 0).contiguous()
        return fit_images(pixels[None], img_size, channels)[0]


def is_gray(source: ImageSource, name: str | None = None) -> bool:
    """Whether an image is stored as gray, read from its header.

    Raises:
        DataError: absent or unreadable.
    """
    with opened(source, name) as image:
        return _is_gray(image)


def upright_size(path: Path) -> HeightWidth:
    """(height, width) of an image file as it is decoded, read from its header.

    Raises:
        DataError: absent or unreadable.
    """
    with opened(path) as image:
        width, height = image.size
        return (width, height) if image.getexif().get(ORIENTATION, 1) > 4 else (height, width)


def is_image_file(path: StrPath) -> bool:
    """Whether a file is an image by its name, or by its first bytes where it has no ending.

    A hidden file is none. Only a regular file is opened; one that cannot be is taken for an image,
    so that its reader says why.
    """
    name = os.path.basename(path)
    suffix = Path(name).suffix.lower()
    if suffix or name.startswith(".") or not os.path.isfile(path):
        return suffix in SUFFIXES and not name.startswith(".")
    try:
        with open(path, "rb") as file:
            return SIGNATURE.match(file.read(SIGNATURE_BYTES)) is not None
    except OSError:
        return True


def contents_note(folder: Path) -> str:
    """What a folder without images holds: "; it holds a.nii.gz", or nothing."""
    names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    return f"; it holds {join_names(names, MAX_FILES)}" if names else ""


def natural_key(text: StrPath) -> list[tuple[int, int, str]]:
    """Sorting key by which `img2` comes before `img10`.

    Of two numbers, the one with more digits is larger.
    """
    key = []
    for part in re.findall(r"\d+|\D+", str(text)):
        digits = part.lstrip("0")
        key.append((0, len(digits), digits) if part.isdecimal() else (1, 0, part))
    return key


def check_size(file: str, image: Tensor, size: Sequence[int]) -> None:
    """Check that an image `[channels, height, width]` has the size of the first one of its set.

    Raises:
        DataError: it has another one.
    """
    got = image.shape[1:]
    if got != size:
        raise DataError(
            f"{file}: expected an image of {size[0]} × {size[1]} (height × width), as the first one "
            f"of the set, got {got[0]} × {got[1]}; give img_size (--img-size) to resize all"
        )


@contextmanager
def opened(source: ImageSource, name: str | None = None) -> Iterator[Image.Image]:
    """Open an image of a format in `FORMATS`.

    Args:
        source: a path, the bytes of a file, or a Pillow image.
        name: what errors call the image; None takes the path.

    Raises:
        DamagedImageError: whatever goes wrong inside the block.
        DataError: memory is exhausted.
    """
    if name is None:
        name = str(source) if isinstance(source, StrPath) else "image"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd metadata does not matter, only the pixels do
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if isinstance(source, Image.Image):
                yield source
                return
            if isinstance(source, StrPath):
                check_regular(Path(source))
            file = io.BytesIO(source) if isinstance(source, bytes) else source
            with Image.open(file, formats=list(FORMATS)) as image:
                yield image
    except MemoryError as error:
        raise DataError(f"{name}: it does not fit into memory") from error
    except DataError as error:
        raise type(error)(f"{name}: {str(error).removeprefix(f'{name}: ')}") from error
    except Exception as error:  # Pillow's plugins raise anything on damaged bytes
        problem = f"unreadable image ({str(error) or type(error).__name__})"
        match error:
            case FileNotFoundError():
                problem = "no such image file"
            case Image.UnidentifiedImageError():
                problem = f"not an image, or a damaged one; expected {', '.join(FORMATS)}"
            case Image.DecompressionBombWarning() | Image.DecompressionBombError():
                problem = f"more than {Image.MAX_IMAGE_PIXELS:,} pixels, refused"
        raise DamagedImageError(f"{name}: {problem}") from error


def _to_bytes(image: Image.Image, background: str) -> np.ndarray:
    """uint8 `[height, width, 1 or 3]`."""
    if image.mode.startswith(("I", "F")):
        try:
            return deep_to_bytes(np.asarray(image))[..., None]
        except DataError as error:  # the values are out of range
            raise DamagedImageError(str(error)) from error
    plain_mode = "L" if _is_gray(image) else "RGB"
    if image.has_transparency_data:
        page = Image.new("RGBA", image.size, background)
        image = Image.alpha_composite(page, image.convert("RGBA"))
    if image.mode != plain_mode:  # else it would be copied
        image = image.convert(plain_mode)
    return np.atleast_3d(np.array(image))


def _is_gray(image: Image.Image) -> bool:
    if image.mode in ("P", "PA"):
        palette = np.reshape(image.getpalette() or [], (-1, 3))
        return bool((palette == palette[:, :1]).all())
    return Image.getmodebase(image.mode) == "L"
