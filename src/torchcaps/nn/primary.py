"""Primary capsules: a convolution whose channels at one pixel are grouped into vectors, or into matrices."""

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps import ops
from torchcaps.errors import check_known, check_positive
from torchcaps.functional.squash import full_precision, squash_with_length
from torchcaps.types import Capsules

Grouping = Literal["position", "flat"]


class LargeKernelConv2d(nn.Conv2d):
    """`nn.Conv2d` of square kernels without padding, by `torchcaps.ops.conv2d`; parameters are torch's."""

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
        rows, columns = self.stride
        return ops.conv2d(x, self.weight, self.bias, (rows, columns), impl=self.impl)


class PrimaryCaps(nn.Module):
    """Convolution, then squash over the dimensions of each capsule; no ReLU between (arXiv 1710.09829, section 4).

    A capsule is `dim` channels AT ONE PIXEL: channel `type * dim + d` is dimension d of that type's capsule. The paper
    has 32 types of 8 dimensions, kernels of 9 and a stride of 2. Grouping "flat" makes capsules of `dim` neighbors in
    a row of one channel's map after another's, as one public code does: `[batch, children, dim]`, without places.

    Shapes:
        input `[batch, in_channels, in_height, in_width]`; output Capsules with pose
        `[batch, height, width, types, dim]` and activation `[batch, height, width, types]` in [0, 1). Grouping a
        channels-last convolution is a view.
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
        check_known("grouping", grouping, get_args(Grouping))
        self.grouping, self.types, self.dim = grouping, types, dim
        self.conv = LargeKernelConv2d(in_channels, types * dim, kernel_size, stride)

    def forward(self, x: Float[Tensor, "batch channels in_height in_width"]) -> Capsules:
        if self.grouping == "flat":
            return Capsules(
                *squash_with_length(self.conv(x).flatten(1).unflatten(1, (-1, self.dim)))
            )
        features = self.conv(x).permute(0, 2, 3, 1)  # [batch, height, width, types * dim]
        return Capsules(*squash_with_length(features.unflatten(-1, (self.types, self.dim))))


class WholeMapConv2d(nn.Conv2d):
    """A depthwise convolution whose kernel is as large as its map: one number for each channel.

    It is computed as a sum of products, in full precision: torch's gradient of this convolution takes several times as
    long on a CPU in bfloat16, a tenth of the whole step of Efficient-CapsNet. Rows and columns beyond the kernel are
    left out. `weight` is `[channels, 1, *kernel_size]`.
    """

    def __init__(self, channels: int, kernel_size: tuple[int, int]) -> None:
        super().__init__(channels, channels, kernel_size, groups=channels)
        nn.init.xavier_uniform_(self.weight)

    def forward(
        self, x: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels"]:
        height, width = self.kernel_size
        seen = x[:, :, :height, :width].flatten(2).mT  # a view, where channels are last
        features = (seen * full_precision(self.weight).flatten(1).T).sum(dim=1)
        return features if self.bias is None else features + self.bias


class MatrixPrimaryCaps(nn.Module):
    """A 1x1 convolution that gives each position `types` capsules: a linear P x P pose and a sigmoid activation.

    Shapes:
        input `[batch, in_channels, height, width]`; output Capsules with pose
        `[batch, height, width, types, P * P]` and activation `[batch, height, width, types]` in [0, 1].
    """

    def __init__(self, in_channels: int, types: int, pose_size: int = 4) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, types=types, pose_size=pose_size)
        self.types, self.pose_dim = types, pose_size**2
        self.pose = nn.Conv2d(in_channels, types * self.pose_dim, 1, bias=False)
        self.activation = nn.Conv2d(in_channels, types, 1, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew: poses start twice as large as features, activations about 1/2."""
        nn.init.normal_(self.pose.weight, std=2 * self.pose.in_channels**-0.5)
        self.activation.reset_parameters()

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Capsules:
        pose = self.pose(x).permute(0, 2, 3, 1).unflatten(-1, (self.types, self.pose_dim))
        return Capsules(
            full_precision(pose),
            torch.sigmoid(full_precision(self.activation(x))).permute(0, 2, 3, 1),
        )


def flatten_space(capsules: Capsules) -> Capsules:
    """All capsules of all positions as one set: `[batch, height, width, types, dim]` -> `[batch, children, dim]`."""
    return Capsules(capsules.pose.flatten(1, -2), capsules.activation.flatten(1))
