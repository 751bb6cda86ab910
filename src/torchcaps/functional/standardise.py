"""Images with mean 0 and standard deviation 1, as networks for photographs of different light take them."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import check_shape
from torchcaps.functional.squash import full_precision


def standardise(
    images: Float[Tensor, "batch channels height width"], least: float = 1e-3
) -> Float[Tensor, "batch channels height width"]:
    """Each image with mean 0 and standard deviation 1 over all of its pixels and channels together.

    Part of a model and not of its data, so that attacks, sweeps and drawings all speak of pixels in [0, 1].

    Args:
        images: `[batch, channels, height, width]`, floating; half precision is computed in float32.
        least: what a smaller standard deviation is taken for, above 0; an image of one grey becomes zero.

    Raises:
        ValueError: for images of other axes.
    """
    check_shape("images", images, ("batch", "channels", "height", "width"))
    images = full_precision(images)
    centred = images - images.mean(dim=(1, 2, 3), keepdim=True)
    # The gradient of a root at zero is infinite: the square is bounded, not the root.
    deviation = centred.square().mean(dim=(1, 2, 3), keepdim=True).clamp(min=least**2).sqrt()
    return centred / deviation
