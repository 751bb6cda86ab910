"""Channels, depth and size of images: the same conversions for every reader and for prediction."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Generator, Tensor

from torchcaps.errors import DataError, check_range, check_shape, named_shape
from torchcaps.transfer import to_device

AXES = ("n", "channels", "height", "width")
MAX_CHANNELS = 4
MAX_MASK_VALUE = 32  # of a mask without a table of classes
CHUNK = 1024  # images resized at a time, to bound the wider copy
Array = np.ndarray | Tensor
Images = Shaped[Tensor, "n channels height width"]
HeightWidth = tuple[int, int]
Size = int | HeightWidth | None
"""(height, width) of images to resize to, or one side of a square; None keeps what they have."""


def size_pair(img_size: int | HeightWidth) -> HeightWidth:
    """(height, width) from a pair, or from the one side of a square.

    Raises:
        DataError: a side is below 1.
    """
    height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    if height < 1 or width < 1:
        raise DataError(f"img_size: expected sides of at least 1 pixel, got {height} × {width}")
    return height, width


def fit_images(images: Images, img_size: Size, in_chans: int | None) -> Images:
    """Resize images and change their number of channels.

    Sizes change by antialiased bilinear interpolation. Color becomes gray by luma
    (0.299 R + 0.587 G + 0.114 B), gray becomes color by repeating.

    Args:
        images: `[n, channels, height, width]`, uint8 or float32 in [0, 1].
        img_size: None keeps the size.
        in_chans: None keeps the channels.

    Raises:
        DataError: another change of channels.
    """
    if in_chans is not None:
        images = to_channels(images, in_chans)
    if img_size is None or size_pair(img_size) == images.shape[2:]:
        return images
    size = size_pair(img_size)
    resized = []
    for chunk in images.split(CHUNK):
        # uint8 is resized in float32 and rounded, so that both types give the same picture.
        pixels = F.interpolate(chunk.float(), size, mode="bilinear", antialias=True)
        resized.append(_to_range(pixels, images.dtype))
    return torch.cat(resized)


def resize_masks(masks: Tensor, size: Sequence[int]) -> Tensor:
    """Masks `[n, height, width]` of another size; a pixel takes the class of the nearest one."""
    return F.interpolate(masks.unsqueeze(1), tuple(size), mode="nearest-exact").squeeze(1)


def _to_range(images: Tensor, dtype: torch.dtype) -> Images:
    """Images that were computed in floats, in the range and type of uint8 or of float images."""
    if dtype == torch.uint8:
        return images.round_().clamp_(0, 255).to(dtype)
    return images.clamp_(0, 1)


def to_channels(images: Images, in_chans: int) -> Images:
    """Gray to color or color to gray, as by `fit_images`."""
    channels = images.shape[1]
    if channels == in_chans:
        return images
    if (channels, in_chans) == (1, 3):
        return images.expand(-1, 3, -1, -1).contiguous()
    if (channels, in_chans) != (3, 1):
        raise DataError(f"in_chans: images of {channels} channels cannot be turned into {in_chans}")
    red, green, blue = images.float().split(1, dim=1)
    return _to_range(0.299 * red + 0.587 * green + 0.114 * blue, images.dtype)


def deep_to_bytes(array: np.ndarray) -> np.ndarray:
    """Gray values in 0..65535, or floats in [0, 1], as uint8, rounded.

    Raises:
        DataError: a value out of range, or NaN.
    """
    low, high = array.min(), array.max()
    if array.dtype.kind == "f":
        if not (low >= 0 and high <= 1):
            raise DataError(f"expected float pixels in [0, 1], got {low:g} to {high:g}")
        return np.rint(array * 255).astype(np.uint8)
    if low < 0 or high > 65535:
        raise DataError(f"expected integer pixels in 0..65535, got {low} to {high}")
    # 65535 = 255 · 257, so that full white stays full white.
    return ((array.astype(np.uint32) + 128) // 257).astype(np.uint8)


def channels_first(images: Tensor, in_chans: int | None) -> Images:
    """Images `[n, height, width]`, or with an axis of channels, as `[n, channels, height, width]`.

    Args:
        images: of 3 or 4 axes; others stay as they are.
        in_chans: channels of the model; None takes the last axis for channels where it is short.
    """
    if images.dim() == 3:
        return images.unsqueeze(1)
    if images.dim() != 4:
        return images
    first, last = images.shape[1::2]
    is_last = first != in_chans if in_chans in (first, last) else last <= MAX_CHANNELS < first
    return images.movedim(3, 1) if is_last else images


def array_images(source: str, images: np.ndarray, in_chans: int | None = None) -> Images:
    """Images in an array of one of the layouts that `read_arrays` takes.

    Args:
        source: beginning of an error.
        images: the array.
        in_chans: channels of the model, which decide where the shape alone does not.

    Returns:
        uint8 or float32 `[n, channels, height, width]`.

    Raises:
        DataError: another layout, type or range; the message begins with `source`.
    """
    shape = list(images.shape)
    if images.ndim not in (3, 4):
        raise DataError(f"{source}: expected images of 3 or 4 axes, got shape {shape}")
    is_stated = in_chans in shape[1::2] and shape[1] != shape[-1]
    if (
        images.ndim == 4
        and not is_stated
        and (shape[1] <= MAX_CHANNELS) == (shape[3] <= MAX_CHANNELS)
    ):
        raise DataError(
            f"{source}: cannot tell which axis of the images {shape} is the channels; "
            f"expected either axis 1 or axis 3, and not both, to be at most {MAX_CHANNELS}; give "
            f"in_chans={shape[1]} or in_chans={shape[3]}"
        )
    if not images.size:
        raise DataError(f"{source}: there are no pixels in images of shape {shape}")
    if images.dtype not in (np.uint8, np.uint16) and images.dtype.kind != "f":
        raise DataError(
            f"{source}: expected images of type uint8, uint16 or float in [0, 1], got {images.dtype}"
        )
    tensor = to_images(images, in_chans)
    check_pixels(source, tensor)
    return tensor


def to_images(images: Array, in_chans: int | None) -> Tensor:
    """Images in an array of any usual layout as `[n, channels, height, width]`, in one block.

    Args:
        images: the array. Floats become float32, and whole numbers up to 255 become uint8.
        in_chans: see `channels_first`.
    """
    if isinstance(images, np.ndarray):
        if images.dtype == np.uint16:  # which torch knows in few of its functions
            images = deep_to_bytes(images)
        images = torch.as_tensor(np.require(images, requirements=["A", "C", "W"]))
    pixels = channels_first(images, in_chans)
    if pixels.is_floating_point():
        pixels = pixels.float()
    elif (
        pixels.dtype != torch.uint8 and pixels.numel() and 0 <= pixels.min() <= pixels.max() <= 255
    ):
        pixels = pixels.byte()
    return pixels.contiguous()


def check_images(source: str, images: Tensor) -> None:
    """Check that images are `[n, channels, height, width]`, n at least 1.

    Raises:
        DataError: it is not so; the message begins with `source`.
    """
    shape = images.shape
    if len(shape) != 4 or 0 in shape[1:]:
        raise DataError(
            f"{source}: expected images [{', '.join(AXES)}], got {named_shape(AXES, shape)}"
        )
    if not len(images):
        raise DataError(f"{source}: there are no images")


def check_pixels(source: str, images: Images) -> None:
    """Check that images are uint8, or float32, finite and in [0, 1].

    Raises:
        DataError: they are not; the message begins with `source`.
    """
    if images.dtype == torch.uint8:
        return
    if images.dtype != torch.float32:
        raise DataError(f"{source}: expected images of type uint8 or float32, got {images.dtype}")
    low, high = images.aminmax()
    if not (low >= 0 and high <= 1):
        check_finite(source, images, "image")
        raise DataError(
            f"{source}: expected float pixels in [0, 1], got {low:g} to {high:g}; "
            "scale them, or store 0..255 as uint8"
        )


def check_finite(source: str, inputs: Shaped[Tensor, "n ..."], kind: str) -> None:
    """Check that all numbers are finite.

    Args:
        source: beginning of the DataError.
        inputs: of a set.
        kind: what one of them is called.
    """
    is_bad = ~inputs.flatten(1).isfinite().all(dim=1)
    if is_bad.any():
        raise DataError(
            f"{source}: {kind} {int(is_bad.nonzero()[0])} (one of {int(is_bad.sum())}) holds NaN "
            "or infinite numbers"
        )


def tensor_array(tensor: Tensor) -> np.ndarray:
    """A tensor as an array; numpy has no bfloat16, which becomes float32."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(force=True)


def to_float(images: Images) -> Float[Tensor, "n channels height width"]:
    """Images as float32: bytes in [0, 1], floats as they are."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images.float()


def random_crop(images: Images, size: int | HeightWidth, *, generator: Generator) -> Images:
    """Cut a window out of each image.

    Args:
        images: `[batch, channels, height, width]`.
        size: (height, width) of the window in pixels, or one side of a square, at most those of the
            images.
        generator: draws the place of each window uniformly.

    Returns:
        `[batch, channels, *size]`.
    """
    window = size_pair(size)
    _check_size(images, window)
    # The first row and the first column of each window, both [batch].
    row, column = (
        random_offsets(len(images), length, side, generator)
        for length, side in zip(images.shape[2:], window, strict=True)
    )
    return windows_at(images, window, row, column)


def center_crop(images: Images, size: int) -> Images:
    """The middle `size` × `size` pixels of each image, a view.

    Where the margins cannot be equal, those above and on the left are smaller by a pixel.

    Args:
        images: `[batch, channels, height, width]`.
        size: pixels along a side, at most those of the images.

    Returns:
        `[batch, channels, size, size]`.
    """
    _check_size(images, (size, size))
    for axis in (2, 3):
        images = images.narrow(axis, (images.shape[axis] - size) // 2, size)
    return images


def _check_size(images: Images, size: HeightWidth) -> None:
    """Raise ValueError unless a window of this size fits into the images."""
    check_shape("images", images, AXES)
    for side, length in zip(size, images.shape[2:], strict=True):
        check_range("size", side, low=1, high=length)


def windows_at(images: Images, size: Sequence[int], row: Tensor, column: Tensor) -> Images:
    """Cut a window out of each image.

    Args:
        images: `[batch, channels, height, width]`.
        size: (height, width) of the window.
        row: first row of each window, `[batch]`, on the device of the images or on the CPU.
        column: first column of each window, `[batch]`, where the rows are.

    Returns:
        `[batch, channels, *size]`.
    """
    # A view of all windows: [batch, channels, rows, columns, height, width].
    windows = images.unfold(2, size[0], 1).unfold(3, size[1], 1)
    # One of them is copied for each image.
    index = torch.arange(len(images), device=row.device)
    index, row, column = to_device(torch.stack([index, row, column]), images.device)
    return windows[index, :, row, column]


def random_offsets(count: int, side: int, window: int, generator: Generator) -> Tensor:
    """Where windows begin along an axis.

    Args:
        count: number of windows.
        side: pixels of the axis.
        window: pixels of a window along it, at most `side`.
        generator: draws the offsets uniformly.

    Returns:
        `[count]` integers from 0 to `side - window`, on the device of the generator.
    """
    return torch.randint(side - window + 1, (count,), generator=generator, device=generator.device)
