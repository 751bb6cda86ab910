"""Primary capsules: a convolution whose channels at one pixel are grouped into vectors."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.functional import squash_with_length
from torchcaps.types import Capsules


class PrimaryCaps(nn.Module):
    """Convolution, then squash over the dimensions of each capsule; no ReLU between (arXiv 1710.09829, section 4).

    A capsule is `dim` channels AT ONE PIXEL: channel `type * dim + d` is dimension d of that type's capsule.

    Args:
        in_channels: channels of the input map.
        types: capsule types per pixel; the paper has 32.
        dim: dimensions of a capsule; the paper has 8.
        kernel_size: 9 in the paper.
        stride: 2 in the paper.

    Shapes:
        input `[batch, in_channels, in_height, in_width]`; output Capsules with pose
        `[batch, height, width, types, dim]` and activation `[batch, height, width, types]` in [0, 1). Grouping a
        channels-last convolution is a view.
    """

    def __init__(
        self, in_channels: int, types: int = 32, dim: int = 8, *, kernel_size: int = 9, stride: int = 2
    ) -> None:
        super().__init__()
        self.types, self.dim = types, dim
        self.conv = nn.Conv2d(in_channels, types * dim, kernel_size, stride)

    def forward(self, x: Float[Tensor, "batch channels in_height in_width"]) -> Capsules:
        """Primary capsules of a feature map."""
        features = self.conv(x).permute(0, 2, 3, 1)  # [batch, height, width, types * dim]
        return Capsules(*squash_with_length(features.unflatten(-1, (self.types, self.dim))))


def flatten_space(capsules: Capsules) -> Capsules:
    """All capsules of all positions as one set: `[batch, height, width, types, dim]` -> `[batch, children, dim]`."""
    pose, activation = capsules
    return Capsules(pose.flatten(1, -2), activation.flatten(1))
