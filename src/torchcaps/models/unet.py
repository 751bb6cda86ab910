"""U-Net, the network without capsules to compare segmentation with.

Olaf Ronneberger, Philipp Fischer, Thomas Brox, "U-Net: Convolutional Networks for Biomedical Image
Segmentation", MICCAI 2015, arXiv 1505.04597, in the form of SegCaps' code: convolutions keep the
size of the map, no batch norm.
"""

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import check_positive, check_range
from torchcaps.models._base import Images, ImageSize, PlainNetwork
from torchcaps.models._registry import ModelInfo, register_model, register_variant
from torchcaps.types import ModelSpec


# The network that SegCaps was compared with.
@register_model(
    ModelInfo(
        title="U-Net: Convolutional Networks for Biomedical Image Segmentation",
        year=2015,
        arxiv="1505.04597",
        img_size=(512, 512),
        num_classes=2,
        parameters=31_030_593,
        published="LUNA16 lung fields, Dice 98.449 % (by SegCaps' authors)",
        purpose="the plain network for masks, to compare with",
    ),
    name="unet",
)
class UNet(PlainNetwork):
    """Two convolutions a level, halved by the maximum, doubled by a transposed convolution, skips.

    Zeros are added to images up to a multiple of `2 ** (levels - 1)`. Outputs are probabilities of
    each class by itself, `[batch, num_classes - 1, height, width]`. Where all are below 0.5 there
    is background.

    Args:
        num_classes: at least 2, the first of which is the background, which has no output.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        channels: of the first level; each level below has twice as many.
        levels: at least 1; the map is halved between them.
    """

    spec = ModelSpec(
        activation="probability",
        logits=True,
        any_size=True,
        is_dense=True,
        task="segment",
    )

    def __init__(
        self,
        num_classes: int = 2,
        in_chans: int = 1,
        img_size: ImageSize = 512,
        *,
        channels: int = 64,
        levels: int = 5,
    ) -> None:
        super().__init__(num_classes, in_chans, img_size)
        check_positive(channels=channels, levels=levels)
        check_range("num_classes", num_classes, low=2)
        self.multilabel = True  # each class has a sigmoid
        self.step = 2 ** (levels - 1)
        widths = [channels << level for level in range(levels)]
        self.down = nn.ModuleList()
        below = in_chans
        for above in widths:
            self.down.append(two_convolutions(below, above))
            below = above
        upwards = list(pairwise(reversed(widths)))
        self.larger = nn.ModuleList(
            nn.ConvTranspose2d(below, above, 2, stride=2) for below, above in upwards
        )
        self.up = nn.ModuleList(two_convolutions(below, above) for below, above in upwards)
        self.last = nn.Conv2d(channels, num_classes - 1, 1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d) and layer is not self.last:
                nn.init.kaiming_normal_(layer.weight)

    def scores(self, x: Images) -> Float[Tensor, "batch classes height width"]:
        height, width = x.shape[2:]
        x = nn.functional.pad(x, (0, -width % self.step, 0, -height % self.step))
        maps: list[Tensor] = []
        for level in self.down:
            x = level(nn.functional.max_pool2d(x, 2) if maps else x)
            maps.append(x)
        x = maps.pop()
        for larger, level in zip(self.larger, self.up, strict=True):
            x = level(torch.cat([maps.pop(), larger(x)], dim=1))
        return self.last(x)[:, :, :height, :width]


def two_convolutions(below: int, above: int) -> nn.Sequential:
    """Two 3x3 convolutions with ReLU."""
    return nn.Sequential(
        nn.Conv2d(below, above, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(above, above, 3, padding=1),
        nn.ReLU(),
    )


# With as many parameters as SegCaps, and its three halvings; `channels=56, levels=3` suits small
# images.
register_variant(
    "unet_matched",
    "unet",
    parameters=1_474_061,
    published="none; it has as many parameters as SegCaps",
    channels=28,
    levels=4,
)
