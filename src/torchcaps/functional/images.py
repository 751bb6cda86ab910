"""Images moved by matrices, at a smaller size, and with mean 0 and standard deviation 1."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import check_shape
from torchcaps.functional.bounds import full_precision, without_autocast
from torchcaps.transfer import to_device

Images = Float[Tensor, "batch channels height width"]
AXES = ("batch", "channels", "height", "width")


def move_by_matrix(images: Images, matrices: Float[Tensor, "batch 3 3"]) -> Images:
    """Move the content of each image by its matrix, bilinearly, with zeros from outside.

    The content of (x, y) moves to `matrix @ (x, y, 1)`. The origin is the center of the image, x
    goes to the right, y downwards, and the unit is half of the longer side.

    Args:
        images: `[batch, channels, height, width]`.
        matrices: `[batch, 3, 3]`.

    Returns:
        Images of the same shape.

    Raises:
        ArgumentError: other axes, or counts that differ.
        torch.linalg.LinAlgError: a matrix on the CPU without an inverse.
    """
    check_shape("images", images, AXES)
    axes = ("batch", "rows", "columns")
    check_shape("matrices", matrices, axes, batch=images.shape[0], rows=3, columns=3)
    height, width = images.shape[2:]

    # (x, y, 1) times `scale` is in the units of affine_grid, where each axis runs from -1 to 1.
    sides = to_device(torch.tensor([width, height, 1.0], dtype=matrices.dtype), matrices)
    scale = torch.cat([max(height, width) / sides[:2], sides[2:]])

    # Half precision rounds places by a twentieth of a pixel and more.
    with without_autocast(images):
        # affine_grid asks where the content of each pixel comes from: the inverse.
        # A GPU gives NaN for a matrix without an inverse: a check would make the host wait.
        inverses, _ = torch.linalg.inv_ex(matrices, check_errors=matrices.device.type == "cpu")
        inverses = inverses * scale[:, None] / scale
        grid = F.affine_grid(inverses[:, :2], list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, align_corners=False)


def shift_matrices(
    shifts: Float[Tensor, "batch 2"], img_size: tuple[int, int]
) -> Float[Tensor, "batch 3 3"]:
    """Matrices of shifts, as `move_by_matrix` takes them.

    Args:
        shifts: `[batch, 2]`, in pixels to the right and downwards.
        img_size: height and width of the images.

    Returns:
        `[batch, 3, 3]`.

    Raises:
        ArgumentError: other axes.
    """
    check_shape("shifts", shifts, ("batch", "shift"), shift=2)
    matrices = torch.eye(3, dtype=shifts.dtype, device=shifts.device).repeat(shifts.shape[0], 1, 1)
    matrices[:, :2, 2] = shifts * (2 / max(img_size))  # in units of half of the longer side
    return matrices


def shrink(images: Images, size: tuple[int, int]) -> Images:
    """Images at a smaller size, bilinear with antialiasing.

    Args:
        images: `[batch, channels, height, width]`.
        size: height and width, at most those of the images.

    Returns:
        Images `[batch, channels, *size]`, in full precision.

    Raises:
        ArgumentError: other axes.
    """
    check_shape("images", images, AXES)
    with without_autocast(images):
        return F.interpolate(full_precision(images), size, mode="bilinear", antialias=True)


def standardize(images: Images, min_std: float = 1e-3) -> Images:
    """Give each image mean 0 and standard deviation 1 over all of its pixels and channels.

    This is a part of a model and not of its data, so that attacks, sweeps and figures all have
    pixels in [0, 1].

    Args:
        images: `[batch, channels, height, width]`; half precision is computed in float32.
        min_std: smallest standard deviation; an image of one gray becomes zero.

    Returns:
        Images of the same shape.

    Raises:
        ArgumentError: other axes.
    """
    check_shape("images", images, AXES)
    images = full_precision(images)
    centered = images - images.mean(dim=(1, 2, 3), keepdim=True)
    # The gradient of a root at zero is infinite: the variance is bounded, not the root.
    variance = centered.square().mean(dim=(1, 2, 3), keepdim=True)
    variance = variance.clamp(min=min_std**2)
    return centered / variance.sqrt()
