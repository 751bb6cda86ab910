"""Images moved by matrices, or with mean 0 and standard deviation 1 as networks for photographs take them."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import check_shape
from torchcaps.functional.bounds import without_autocast
from torchcaps.functional.squash import full_precision

Images = Float[Tensor, "batch channels height width"]


def move_by_matrix(images: Images, matrices: Float[Tensor, "batch 3 3"]) -> Images:
    """Move the content of each image by a matrix of its own, bilinearly, with zeros from outside.

    What was at (x, y) is at `matrix @ (x, y, 1)` afterwards. The origin is the center of the image, x goes to the
    right, y downwards, and the unit is half of the longer side. ValueError for other axes, or counts that differ;
    torch.linalg.LinAlgError for a matrix without an inverse.
    """
    check_shape("images", images, ("batch", "channels", "height", "width"))
    check_shape(
        "matrices", matrices, ("batch", "rows", "columns"), batch=len(images), rows=3, columns=3
    )
    height, width = images.shape[2:]
    unit = matrices.new_tensor([width, height, 1.0])
    unit = torch.cat(
        [max(height, width) / unit[:2], unit[2:]]
    )  # from our coordinates to affine_grid's [-1, 1]
    with without_autocast(
        images
    ):  # half precision rounds places by up to a twentieth of a pixel and more
        back = torch.linalg.inv(matrices) * unit[:, None] / unit
        grid = F.affine_grid(back[:, :2], list(images.shape), align_corners=False)
        return F.grid_sample(
            images, grid, mode="bilinear", padding_mode="zeros", align_corners=False
        )


def shift_matrices(
    shifts: Float[Tensor, "batch 2"], img_size: tuple[int, int]
) -> Float[Tensor, "batch 3 3"]:
    """Matrices, as `move_by_matrix` takes them, of shifts by pixels to the right and downwards.

    ValueError for other axes.
    """
    check_shape("shifts", shifts, ("batch", "shift"), shift=2)
    matrices = torch.eye(3, dtype=shifts.dtype, device=shifts.device).repeat(len(shifts), 1, 1)
    matrices[:, :2, 2] = shifts * (2 / max(img_size))
    return matrices


def standardize(images: Images, least: float = 1e-3) -> Images:
    """Each image with mean 0 and standard deviation 1 over all of its pixels and channels together.

    Part of a model and not of its data, so that attacks, sweeps and drawings all speak of pixels in [0, 1]. Half
    precision is computed in float32. A standard deviation below `least` is taken for that: an image of one gray becomes
    zero.

    ValueError for other axes.
    """
    check_shape("images", images, ("batch", "channels", "height", "width"))
    images = full_precision(images)
    centered = images - images.mean(dim=(1, 2, 3), keepdim=True)
    # The gradient of a root at zero is infinite: the square is bounded, not the root.
    deviation = centered.square().mean(dim=(1, 2, 3), keepdim=True).clamp(min=least**2).sqrt()
    return centered / deviation
