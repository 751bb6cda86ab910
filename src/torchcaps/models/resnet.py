"""ResNet-20: the plain network with batch norm that an engineer would take.

Kaiming He, Xiangyu Zhang, Shaoqing Ren, Jian Sun, "Deep Residual Learning for Image Recognition",
CVPR 2016, arXiv 1512.03385, section 4.2. Differs from the paper in: sizes follow the images, and
channels that a shortcut lacks are zeros after the others (any order of channels is the same
network).
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import torch
from torch import nn

from torchcaps.errors import check_known, check_positive
from torchcaps.models._base import Classes, FeatureMap, Images, ImageSize, PlainNetwork
from torchcaps.models._registry import ModelInfo, register_model

Shortcut = Literal["A", "B"]
NUM_BLOCKS = 3  # of each stage
SMALLEST = 5  # pixels that leave more than one place, of which batch norm needs two


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, the first with the stride, added to the input.

    Where sizes differ, the shortcut "A" takes every stride-th pixel and adds channels of zeros,
    without parameters; "B" is a 1x1 convolution with batch norm.

    Args:
        below: channels of the input.
        above: channels of the output.
        stride: of the first convolution.
        shortcut: "A" or "B".
    """

    def __init__(self, below: int, above: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.stride = stride
        self.missing = above - below
        self.first = convolution(below, above, stride)
        self.second = convolution(above, above, relu=False)
        self.projection = None
        if shortcut == "B" and (stride > 1 or self.missing > 0):
            self.projection = convolution(below, above, stride, kernel=1, relu=False)

    def forward(self, x: FeatureMap) -> FeatureMap:
        if self.projection is None:
            shortcut = nn.functional.pad(
                x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.missing)
            )
        else:
            shortcut = self.projection(x)
        return torch.relu(self.second(self.first(x)) + shortcut)


def convolution(
    below: int,
    above: int,
    stride: int = 1,
    *,
    kernel: int = 3,
    relu: bool = True,
) -> nn.Sequential:
    """A convolution that keeps the size (divided by the stride), batch norm, and ReLU if asked.

    Args:
        below: channels of the input.
        above: channels of the output.
        stride: of the convolution, which has no bias.
        kernel: its size, an odd number.
        relu: whether a ReLU follows.
    """
    conv = nn.Conv2d(below, above, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight)
    layers = nn.Sequential(conv, nn.BatchNorm2d(above))
    return layers.append(nn.ReLU()) if relu else layers


def residual_blocks(widths: Iterable[int], shortcut: Shortcut) -> list[ResidualBlock]:
    """A block from each of these widths to the next, of stride 2 where it changes."""
    return [
        ResidualBlock(below, above, 1 if below == above else 2, shortcut)
        for below, above in pairwise(widths)
    ]


def residual_trunk(in_chans: int, width: int = 16, shortcut: Shortcut = "A") -> nn.Sequential:
    """All of ResNet-20 before the pooling.

    It takes `[batch, in_chans, h, w]` to `[batch, 4 * width, ceil(h / 4), ceil(w / 4)]`.

    Args:
        in_chans: channels of the images.
        width: channels of the first stage.
        shortcut: see `ResidualBlock`.
    """
    check_positive(width=width)
    check_known("shortcut", shortcut, Shortcut)
    widths = [width] * (NUM_BLOCKS + 1) + [2 * width] * NUM_BLOCKS + [4 * width] * NUM_BLOCKS
    blocks = residual_blocks(widths, shortcut)
    return nn.Sequential(convolution(in_chans, width)).extend(blocks)


# The network of 20 layers for CIFAR-10: 270 thousand parameters.
@register_model(
    ModelInfo(
        title="Deep Residual Learning for Image Recognition",
        year=2016,
        arxiv="1512.03385",
        img_size=(32, 32),
        in_chans=3,
        parameters=269_722,
        published="CIFAR-10 test error 8.75 %",
        purpose="the plain network for color images, to compare with",
    ),
    name="resnet20",
)
class ResNet(PlainNetwork):
    """A convolution, nine residual blocks in three stages, global average pooling, the classes.

    Args:
        num_classes: number of classes.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        width: channels of the first stage; the next ones have twice and four times as many. The
            paper has 16.
        shortcut: "A", without parameters, as in the paper's figures for CIFAR-10; or "B", with
            projections.
        options: `multilabel` and `standardized`; see `PlainNetwork`.
    """

    spec = replace(PlainNetwork.spec, any_size=True)

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: ImageSize = 32,
        *,
        width: int = 16,
        shortcut: Shortcut = "A",
        **options: bool,
    ) -> None:
        super().__init__(num_classes, in_chans, img_size, smallest=SMALLEST, **options)
        self.trunk = residual_trunk(in_chans, width, shortcut)
        self.classes_layer = nn.Linear(4 * width, num_classes)
        nn.init.kaiming_normal_(self.classes_layer.weight)

    def scores(self, x: Images) -> Classes:
        return self.classes_layer(self.trunk(x).mean(dim=(2, 3)))
