"""What the papers on smallNORB do to a batch of 48 × 48 photographs: crop, and change the light.

Geoffrey Hinton, Sara Sabour, Nicholas Frosst, "Matrix capsules with EM routing", ICLR 2018, section 4: a random crop of
32 × 32 with random brightness and contrast in training, the centre crop in testing. Constants as in the authors' code.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Shaped
from torch import Generator, Tensor

from torchcaps.errors import check_range, check_shape

AXES = ("batch", "channels", "height", "width")
Images = Shaped[Tensor, "batch channels height width"]
FloatImages = Float[Tensor, "batch channels height width"]


def random_crop(images: Images, size: int, *, generator: Generator) -> Images:
    """A window of `size` × `size` pixels of each image, its place drawn uniformly per sample.

    Args:
        images: `[batch, channels, height, width]`, any type.
        size: side of the window in pixels, at most the shorter side of the images.
        generator: where the places are drawn from.

    Returns:
        A new tensor `[batch, channels, size, size]`.
    """
    check_shape("images", images, AXES)
    check_range("size", size, low=1, high=min(images.shape[2:]))
    count, windows = len(images), images.unfold(2, size, 1).unfold(3, size, 1)
    top = torch.randint(windows.shape[2], (count,), generator=generator, device=generator.device)
    left = torch.randint(windows.shape[3], (count,), generator=generator, device=generator.device)
    sample = torch.arange(count, device=images.device)
    return windows[sample, :, top.to(images.device), left.to(images.device)]


def centre_crop(images: Images, size: int) -> Images:
    """The middle `size` × `size` pixels of each image, a view; one pixel up and left of it where sides are odd.

    Args:
        images: `[batch, channels, height, width]`, any type.
        size: side of the window in pixels, at most the shorter side of the images.
    """
    check_shape("images", images, AXES)
    check_range("size", size, low=1, high=min(images.shape[2:]))
    top, left = ((side - size) // 2 for side in images.shape[2:])
    return images[:, :, top : top + size, left : left + size]


def relight(
    images: FloatImages,
    *,
    brightness: float = 63 / 255,
    contrast: tuple[float, float] = (0.2, 1.8),
    generator: Generator,
) -> FloatImages:
    """Add to all pixels of an image one number, then stretch them about their mean; both drawn per sample.

    Args:
        images: `[batch, channels, height, width]`, floating, in [0, 1]; the channels of a sample change alike.
        brightness: largest number added, either way.
        contrast: smallest and largest factor, 0 or more.
        generator: where the amounts are drawn from.

    Returns:
        A new tensor of the same type; its values may leave [0, 1], which `functional.standardise` makes good.
    """
    check_shape("images", images, AXES)
    check_range("brightness", brightness, low=0)
    check_range("contrast", contrast[0], low=0, high=contrast[1])
    added, factor = torch.rand(2, len(images), 1, 1, 1, generator=generator, device=generator.device).to(images)
    images = images + brightness * (2 * added - 1)
    mean = images.mean(dim=(2, 3), keepdim=True)
    return mean + (images - mean) * (contrast[0] + (contrast[1] - contrast[0]) * factor)
