"""Decoders: from class capsules back to an image, and the size at which they draw."""

import math
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise, starmap
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.errors import check_known
from torchcaps.nn.generator import on_meta
from torchcaps.types import Capsules

MaskedPoses = Float[Tensor, "batch capsules dim"]
ImageShape = tuple[int, int, int]  # channels, height, width
Init = Literal["torch", "keras"]
UNTRUNCATED = 0.87962566  # standard deviation of normal numbers that are cut off at 2 of theirs
FULL_VALUES = 4096  # height x width x channels of an image that is drawn at its size in any case
MAX_SHARE = 0.3  # parameters of a decoder of larger images, over those of the rest of its network
# The same over those for one pixel, where its channels alone take more.
MAX_GROWTH = 1.1


def mask_capsules(capsules: Capsules, labels: Int64[Tensor, " batch"] | None = None) -> MaskedPoses:
    """Set the poses of all but one capsule to zero.

    Source: arXiv 1710.09829, section 4.1. All inputs of the decoder stay, so that it knows which
    class it draws.

    Args:
        capsules: pose `[batch, capsules, dim]` and activation `[batch, capsules]`.
        labels: the capsule of each sample that stays; by default the most active one.

    Returns:
        Poses `[batch, capsules, dim]`.
    """
    pose, activation = capsules
    classes = activation.argmax(dim=1) if labels is None else labels
    return pose * torch.zeros_like(activation).scatter(1, classes.unsqueeze(1), 1.0).unsqueeze(-1)


def draw_shape(
    build: Callable[[ImageShape], nn.Module],
    image_shape: ImageShape,
    published_shape: ImageShape,
    num_other_parameters: int,
) -> ImageShape:
    """Channels, height and width at which a decoder draws images.

    Images of at most 4,096 values are drawn at their own size. For larger ones the decoder has at
    most 0.3 times the parameters of the rest of the network, or those that it has at its published
    size if they are more: where the size of the images would take more, it draws the largest size
    of about the same proportions that does not, at least one pixel. Where the channels of one pixel
    alone take more, the limit is a tenth above that.

    Args:
        build: makes the decoder that draws images of a shape. It is called on the device "meta",
            to count parameters.
        image_shape: channels, height and width of the images.
        published_shape: the same of the images that the decoder was published for.
        num_other_parameters: of the rest of the network.

    Returns:
        Channels, height and width.
    """
    channels, height, width = image_shape
    longest = max(height, width)

    def count(shape: ImageShape) -> int:
        """Number of parameters of the decoder that draws this shape."""
        with on_meta():
            return sum(weight.numel() for weight in build(shape).parameters())

    def shape(side: int) -> ImageShape:
        """The shape of drawings with this longer side."""
        return channels, max(1, height * side // longest), max(1, width * side // longest)

    if math.prod(image_shape) <= FULL_VALUES:
        return image_shape
    limit = max(MAX_SHARE * num_other_parameters, count(published_shape))
    smallest = count(shape(1))
    if smallest > limit:  # the channels alone take more
        limit = MAX_GROWTH * smallest
    num_fitting = bisect_right(range(1, longest + 1), limit, key=lambda side: count(shape(side)))
    return shape(max(1, num_fitting))


def truncated_normal_(weight: Tensor, std: float) -> None:
    """Fill with normal numbers that are cut off at both sides, of this deviation, as Keras does."""
    std = std / UNTRUNCATED
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


class FullyConnectedDecoder(nn.Module):
    """Three linear layers: ReLU, ReLU, sigmoid.

    Source: arXiv 1710.09829, figure 2.

    Args:
        num_capsules: number of capsules, those at zero included.
        pose_dim: dimensions of a pose.
        image_shape: channels, height and width of the images that it draws.
        hidden: widths of the two hidden layers, by default the paper's.
        init: initial weights: "torch", those of `nn.Linear`, or "keras", those of Efficient-CapsNet
            in Keras, which are twice as large: He's normal rule, and Glorot's for the last layer.

    Attributes:
        published_shape: of the paper's images.

    Shapes:
        masked poses `[batch, num_capsules, pose_dim]` -> images `[batch, *image_shape]` in [0, 1].

    Example:
        >>> decoder = FullyConnectedDecoder(10, 16, (1, 28, 28))
        >>> images = decoder(mask_capsules(capsules, labels))
    """

    published_shape = (1, 28, 28)

    def __init__(
        self,
        num_capsules: int,
        pose_dim: int,
        image_shape: ImageShape,
        *,
        hidden: tuple[int, int] = (512, 1024),
        init: Init = "torch",
    ) -> None:
        super().__init__()
        check_known("init", init, Init)
        self.image_shape = image_shape
        widths = (num_capsules * pose_dim, *hidden, math.prod(image_shape))
        linears = list(starmap(nn.Linear, pairwise(widths)))
        first, second, last = linears
        self.layers = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last, nn.Sigmoid())
        if init == "keras":
            for layer in (first, second):
                truncated_normal_(layer.weight, (2 / layer.in_features) ** 0.5)
            truncated_normal_(last.weight, (2 / (last.in_features + last.out_features)) ** 0.5)
            for layer in linears:
                nn.init.zeros_(layer.bias)

    def forward(self, masked: MaskedPoses) -> Float[Tensor, "batch channels height width"]:
        dtype = next(self.parameters()).dtype
        return self.layers(masked.flatten(1).to(dtype)).unflatten(1, self.image_shape)


class UpsamplingDecoder(nn.Module):
    """A small map that is enlarged twofold three times, each time with a 3x3 convolution.

    One more convolution draws the image. Arguments, attributes and shapes are those of
    `FullyConnectedDecoder`, without `hidden`; Keras has Glorot's uniform rule for all layers here.
    """

    published_shape = (2, 48, 48)

    def __init__(
        self, num_capsules: int, pose_dim: int, image_shape: ImageShape, *, init: Init = "torch"
    ) -> None:
        super().__init__()
        check_known("init", init, Init)
        channels, height, width = image_shape
        self.size = (height, width)
        # A side of n becomes 8 n - 16: at least that of the image.
        self.start = [-(-(side + 16) // 8) for side in self.size]
        self.dense = nn.Linear(num_capsules * pose_dim, math.prod(self.start))
        widths = (1, 64, 128, 128, channels)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(width, next_width, 3) for width, next_width in pairwise(widths)
        )
        if init == "keras":
            for layer in (self.dense, *self.convolutions):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, masked: MaskedPoses) -> Float[Tensor, "batch channels height width"]:
        x = self.dense(masked.flatten(1).to(self.dense.weight.dtype))
        x = x.unflatten(1, self.start).unsqueeze(1)
        *hidden, last = self.convolutions
        for convolution in hidden:
            x = nn.functional.leaky_relu(
                convolution(nn.functional.interpolate(x, scale_factor=2, mode="bilinear")), 0.2
            )
        images = last(x).sigmoid()

        # Crop to the size of the image around its center.
        height, width = self.size
        row = (images.shape[2] - height) // 2
        column = (images.shape[3] - width) // 2
        return images[:, :, row : row + height, column : column + width]
