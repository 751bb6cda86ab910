"""Primary capsules: a convolution whose channels at one pixel form vectors, or matrices."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps import ops
from torchcaps.errors import check_known, check_positive
from torchcaps.functional.squash import full_precision, squash_with_length
from torchcaps.types import Capsules

Grouping = Literal["position", "flat"]


class LargeKernelConv2d(nn.Conv2d):
    """`nn.Conv2d` of square kernels without padding, computed by `torchcaps.ops.conv2d`.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: side of the kernel.
        stride: pixels from one place of the kernel to the next, along both axes.
        bias: whether a learned number is added to each channel.
        impl: "auto", "reference" (torch's own) or "blocked" (in the frequency domain).
    """

    operators = ("conv2d",)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        *,
        bias: bool = True,
        impl: ops.Impl = "auto",
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, bias=bias)
        self.impl = impl

    def forward(self, x: Tensor) -> Tensor:
        """Convolve a map.

        Args:
            x: `[batch, in_channels, height, width]`.

        Returns:
            `[batch, out_channels, rows, columns]`, where
            `rows = (height - kernel_size) // stride + 1`.
        """
        rows, columns = self.stride
        return ops.conv2d(x, self.weight, self.bias, (rows, columns), impl=self.impl)


class PrimaryCaps(nn.Module):
    """Convolution, then squash over the dimensions of each capsule, without a ReLU between.

    A capsule is `dim` channels AT ONE PIXEL: channel `type * dim + d` is dimension d of that type's
    capsule. Source: arXiv 1710.09829, section 4; the paper has 32 types of 8 dimensions, kernels of
    9 and a stride of 2.

    Args:
        in_channels: of the image or map.
        types: number of capsule types.
        dim: dimensions of a pose.
        kernel_size: side of the convolution's kernel.
        stride: stride of the convolution.
        grouping: "position" as above; "flat" makes capsules of `dim` neighbors in a row of one
            channel's map, channel after channel, as one public code does.

    Shapes:
        input `[batch, in_channels, in_height, in_width]`; output Capsules with pose
        `[batch, height, width, types, dim]` and activation `[batch, height, width, types]` in
        [0, 1). Grouping a channels-last convolution is a view. Flat ones have the pose
        `[batch, children, dim]`, without places.

    Raises:
        ArgumentError: an unknown grouping.

    Example:
        >>> PrimaryCaps(256)(torch.rand(4, 256, 20, 20)).pose.shape
        torch.Size([4, 6, 6, 32, 8])
    """

    def __init__(
        self,
        in_channels: int,
        types: int = 32,
        dim: int = 8,
        *,
        kernel_size: int = 9,
        stride: int = 2,
        grouping: Grouping = "position",
    ) -> None:
        super().__init__()
        check_known("grouping", grouping, Grouping)
        self.grouping = grouping
        self.types = types
        self.dim = dim
        self.conv = LargeKernelConv2d(in_channels, types * dim, kernel_size, stride)

    def forward(self, x: Float[Tensor, "batch channels in_height in_width"]) -> Capsules:
        features = self.conv(x)
        if self.grouping == "flat":
            s = features.flatten(1).unflatten(1, (-1, self.dim))
        else:
            s = features.movedim(1, -1).unflatten(-1, (self.types, self.dim))
        return squash_with_length(s)


class WholeMapConv2d(nn.Conv2d):
    """A depthwise convolution whose kernel is as large as its map: one number for each channel.

    It is computed as a sum of products, in full precision: torch's gradient of this convolution
    takes several times as long on a CPU in bfloat16, a tenth of the whole step of Efficient-CapsNet.
    Rows and columns beyond the kernel are left out. `weight` is `[channels, 1, *kernel_size]`.
    """

    bias: nn.Parameter  # there always is one

    def __init__(self, channels: int, kernel_size: tuple[int, int]) -> None:
        super().__init__(channels, channels, kernel_size, groups=channels)
        nn.init.xavier_uniform_(self.weight)

    def forward(
        self, x: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels"]:
        height, width = self.kernel_size
        pixels = x[:, :, :height, :width].flatten(2).mT  # a view, where channels are last
        return (pixels * full_precision(self.weight).flatten(1).T).sum(dim=1) + self.bias


class MatrixPrimaryCaps(nn.Module):
    """A 1x1 convolution that gives each position capsules with linear P x P poses.

    Their activations are sigmoids.

    Args:
        in_channels: of the map.
        types: capsule types.
        pose_size: P.

    Shapes:
        input `[batch, in_channels, height, width]`; output Capsules with pose
        `[batch, height, width, types, P * P]` and activation `[batch, height, width, types]` in
        [0, 1].

    Raises:
        ArgumentError: a size below 1.

    Example:
        >>> MatrixPrimaryCaps(32, 8)(torch.rand(4, 32, 14, 14)).pose.shape
        torch.Size([4, 14, 14, 8, 16])
    """

    def __init__(self, in_channels: int, types: int, pose_size: int = 4) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, types=types, pose_size=pose_size)
        self.types = types
        self.pose_dim = pose_size**2
        self.pose = nn.Conv2d(in_channels, types * self.pose_dim, 1, bias=False)
        self.activation = nn.Conv2d(in_channels, types, 1, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew: poses start twice as large as features, activations about 1/2."""
        nn.init.normal_(self.pose.weight, std=2 * self.pose.in_channels**-0.5)
        self.activation.reset_parameters()

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Capsules:
        pose = self.pose(x).movedim(1, -1).unflatten(-1, (self.types, self.pose_dim))
        activation = torch.sigmoid(full_precision(self.activation(x)))
        return Capsules(full_precision(pose), activation.movedim(1, -1))


def flatten_space(capsules: Capsules) -> Capsules:
    """All capsules of all positions as one set.

    Args:
        capsules: pose `[batch, *space, types, dim]` and activation `[batch, *space, types]`.

    Returns:
        The same capsules, position after position: pose `[batch, children, dim]` and activation
        `[batch, children]`.
    """
    return Capsules(capsules.pose.flatten(1, -2), capsules.activation.flatten(1))
