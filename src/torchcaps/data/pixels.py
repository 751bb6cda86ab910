"""Channels, depth and size of images: the same few conversions for every reader and for prediction."""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from torchcaps.errors import DataError

MOST_CHANNELS = 4
CHUNK = 1024  # images, or rows, converted at a time, to bound the wider copy
LARGE = 1 << 24  # values of an image whose channels are resized one by one
Images = Shaped[Tensor, "n channels height width"]
Size = int | tuple[int, int] | None
"""(height, width) of images to resize to, or one side of a square; None keeps what they have."""


def size_pair(img_size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) from a pair, or from the one side of a square; DataError where a side is below 1."""
    height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    if height < 1 or width < 1:
        raise DataError(f"img_size: expected sides of at least 1 pixel, got {height} × {width}")
    return height, width


def fit_images(images: Images, img_size: Size, in_chans: int | None) -> Images:
    """Images `[n, channels, height, width]`, uint8 or float32 in [0, 1], brought to this size and number of channels.

    None leaves either as it is. Sizes change by antialiased bilinear interpolation; color becomes gray by luma
    (0.299 R + 0.587 G + 0.114 B), gray becomes color by repeating. DataError for another change of channels.
    """
    if in_chans is not None:
        images = to_channels(images, in_chans)
    if img_size is None or size_pair(img_size) == tuple(images.shape[2:]):
        return images
    return torch.cat([_resize(some, size_pair(img_size)) for some in images.split(CHUNK)])


def _resize(images: Images, size: tuple[int, int]) -> Images:
    if images[0].numel() > LARGE and (len(images) > 1 or images.shape[1] > 1):
        parts = images.flatten(0, 1).split(1)
        return (
            torch.cat([_resize(part.unsqueeze(1), size) for part in parts])
            .unflatten(0, images.shape[:2])
            .squeeze(2)
        )
    # uint8 is resized in float32 and rounded, so that both types of image give the same picture.
    return _as(
        images.dtype,
        F.interpolate(images.float(), size, mode="bilinear", antialias=True, align_corners=False),
    )


def _as(kind: torch.dtype, images: Tensor) -> Images:
    """What was computed in floats, in the range and type of uint8 or of float images."""
    return images.round_().clamp_(0, 255).to(kind) if kind == torch.uint8 else images.clamp_(0, 1)


def to_channels(images: Images, in_chans: int) -> Images:
    """Gray to color or color to gray, as `fit_images` describes it."""
    channels = images.shape[1]
    if channels == in_chans:
        return images
    if (channels, in_chans) == (1, 3):
        return images.expand(-1, 3, -1, -1).contiguous()
    if (channels, in_chans) != (3, 1):
        raise DataError(f"in_chans: images of {channels} channels cannot be turned into {in_chans}")
    red, green, blue = images.float().unbind(dim=1)
    return _as(images.dtype, (0.299 * red + 0.587 * green + 0.114 * blue).unsqueeze(1))


def deep_to_bytes(array: np.ndarray) -> np.ndarray:
    """Gray values in 0..65535, or floats in [0, 1], as uint8, rounded; DataError: out of range, NaN."""
    low, high = array.min(), array.max()
    if array.dtype.kind == "f":
        if not (low >= 0 and high <= 1):
            raise DataError(f"expected float pixels in [0, 1], got {low:g} to {high:g}")
        return np.rint(array * 255).astype(np.uint8)
    if low < 0 or high > 65535:
        raise DataError(f"expected integer pixels in 0..65535, got {low} to {high}")
    found = np.empty(array.shape, np.uint8)
    for at in range(0, len(array), CHUNK):
        # 65535 = 255 · 257, so that full white stays full white
        found[at : at + CHUNK] = (array[at : at + CHUNK].astype(np.uint32) + 128) // 257
    return found


def array_images(where: str, images: np.ndarray) -> Images:
    """What `read_arrays` takes as uint8 or float32 `[n, channels, height, width]`; DataError, naming `where`."""
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim != 4:
        raise DataError(f"{where}: expected images of 3 or 4 axes, got shape {list(images.shape)}")
    elif (images.shape[1] <= MOST_CHANNELS) == (images.shape[3] <= MOST_CHANNELS):
        want = f"expected either axis 1 or axis 3, and not both, to be at most {MOST_CHANNELS}"
        raise DataError(
            f"{where}: cannot tell which axis of the images {list(images.shape)} is the channels; {want}"
        )
    elif images.shape[3] <= MOST_CHANNELS:
        images = np.moveaxis(images, 3, 1)
    if images.size == 0:
        raise DataError(f"{where}: there are no pixels in images of shape {list(images.shape)}")
    if images.dtype == np.uint16:
        images = deep_to_bytes(images)
    elif images.dtype.kind == "f":
        images = images.astype(np.float32)
    elif images.dtype != np.uint8:
        raise DataError(
            f"{where}: expected images of type uint8, uint16 or float in [0, 1], got {images.dtype}"
        )
    found = torch.from_numpy(np.require(images, requirements=["A", "C", "W"]))
    check_floats(where, found)
    return found


def check_floats(where: str, images: Images) -> None:
    """Raise DataError, naming `where`, if images are floats of which some are not finite or outside [0, 1]."""
    if images.dtype == torch.uint8:
        return
    low, high = images.aminmax()
    if not (low.isfinite() and high.isfinite()):
        bad = ~images.flatten(1).isfinite().all(dim=1)
        some = f"image {int(bad.nonzero()[0])} (one of {int(bad.sum())})"
        raise DataError(f"{where}: {some} holds NaN or infinite pixels")
    if low < 0 or high > 1:
        found = f"{low:g} to {high:g}; scale them, or store 0..255 as uint8"
        raise DataError(f"{where}: expected float pixels in [0, 1], got {found}")


def to_float(images: Images) -> Float[Tensor, "n channels height width"]:
    """Images as float32 in [0, 1]; floats stay as they are."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images
