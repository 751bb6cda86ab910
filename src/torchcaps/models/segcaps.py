"""SegCaps.

Rodney LaLonde, Ulas Bagci, "Capsules for Object Segmentation", MIDL 2018, arXiv 1804.04241, and the
authors' code. A U-Net of capsules: child types vote by one shared kernel, and are routed among the
types of each position. Differs from the code in: any batch (theirs mixes images and types), several
classes (a capsule type for each, and only the pixels of a class show its capsule to the decoder),
images of any size (zeros are added up to a multiple of 8), larger kernels at the start (see
`KernelCaps`), windows centered on a pixel where the map is halved.
"""

from functools import partial

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.errors import check_range
from torchcaps.functional.squash import full_precision, safe_norm
from torchcaps.models._base import DrawingModel, Images, ImageSize
from torchcaps.models._registry import ModelInfo, register_model, register_variant
from torchcaps.nn.map_routing import KernelCaps
from torchcaps.types import Capsules, ModelSpec

STEP = 8  # the map is halved three times


# SegCaps R3: three iterations in every layer.
@register_model(
    ModelInfo(
        title="Capsules for Object Segmentation",
        year=2018,
        arxiv="1804.04241",
        img_size=(512, 512),
        num_classes=2,
        parameters=1_425_649,
        published="LUNA16 lung fields, Dice 98.479 % (mean of 4 splits)",
        purpose="a mask for each class",
    ),
    name="segcaps",
)
class SegCaps(DrawingModel):
    """Convolution -> capsules whose map is halved and doubled three times, with skips -> classes.

    Outputs are lengths of class capsules at each pixel, `[batch, num_classes - 1, height, width]`
    in [0, 1), not logits, which do not sum to one. Where all are below 0.5 there is background.

    Args:
        num_classes: at least 2, the first of which is the background, which has no capsule.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        dim: dimensions of the capsules of the largest map; those below have twice and four times as
            many.
        iterations: of routing where the size of the map changes, from 1; 1 is equal couplings.
        same_size: the same where it stays; None is as many. The paper's R1 has 1 there.
        decoder: whether to build the decoder; None is False.
    """

    spec = ModelSpec(
        pose=True,
        activation="length",
        any_size=True,
        is_dense=True,
        task="segment",
    )
    reconstruct = DrawingModel.draw  # at the size of the images, whatever it is

    def __init__(
        self,
        num_classes: int = 2,
        in_chans: int = 1,
        img_size: ImageSize = 512,
        *,
        dim: int = 16,
        iterations: int = 3,
        same_size: int | None = None,
        decoder: bool | None = True,
    ) -> None:
        super().__init__(num_classes, in_chans, img_size, dim=dim)
        check_range("num_classes", num_classes, low=2)
        a = dim
        b = 2 * dim
        c = 4 * dim
        keep = partial(KernelCaps, iterations=iterations if same_size is None else same_size)
        halve = partial(KernelCaps, stride=2, iterations=iterations)
        double = partial(halve, kernel_size=4, transposed=True)

        self.conv1 = nn.Conv2d(in_chans, a, 5, padding=2)
        self.primary = KernelCaps(1, a, 2, a, stride=2, iterations=1)
        self.caps2_1 = keep(2, a, 4, a)
        self.caps2_2 = halve(4, a, 4, b)
        self.caps3_1 = keep(4, b, 8, b)
        self.caps3_2 = halve(8, b, 8, c)
        self.caps4_1 = keep(8, c, 8, b)
        self.up1_1 = double(8, b, 8, b)
        self.up1_2 = keep(16, b, 4, b)
        self.up2_1 = double(4, b, 4, a)
        self.up2_2 = keep(8, a, 4, a)
        self.up3_1 = double(4, a, 2, a)
        self.seg_caps = keep(3, a, num_classes - 1, a, kernel_size=1)

        self.decoder = None
        if decoder:
            self.decoder = nn.Sequential(
                nn.Conv2d(a * (num_classes - 1), 64, 1),
                nn.ReLU(),
                nn.Conv2d(64, 128, 1),
                nn.ReLU(),
                nn.Conv2d(128, in_chans, 1),
                nn.Sigmoid(),
            )
            self.declare(decoder=True)

    def capsules(self, images: Images) -> Capsules:
        """Class capsules of each pixel.

        Args:
            images: `[batch, channels, height, width]` in [0, 1].

        Returns:
            Pose `[batch, height, width, num_classes - 1, dim]`, and its length, in [0, 1).
        """
        self._check(images)
        height, width = images.shape[2:]
        x = self.conv1(F.pad(images, (0, -width % STEP, 0, -height % STEP)))
        x = F.relu(x)  # [batch, 16, 512, 512]
        pose = full_precision(x).movedim(1, -1).unsqueeze(3)
        first = Capsules(pose, safe_norm(pose))  # one capsule a pixel
        second = self.caps2_1(self.primary(first))  # 4 types at 256x256
        third = self.caps3_1(self.caps2_2(second))  # 8 at 128x128
        u = self.up1_1(self.caps4_1(self.caps3_2(third)))  # 64x64, and back to 128x128
        u = self.up2_1(self.up1_2(join_types(u, third)))
        u = self.up3_1(self.up2_2(join_types(u, second)))
        pose, length = self.seg_caps(join_types(u, first))
        return Capsules(pose[:, :height, :width], length[:, :height, :width])

    def forward(self, images: Images) -> Float[Tensor, "batch classes height width"]:
        return self.capsules(images).activation.movedim(-1, 1)

    def masked(
        self, capsules: Capsules, labels: Int64[Tensor, "batch height width"] | None
    ) -> Tensor:
        """The capsule of each pixel's class, as a map that the decoder takes.

        Background pixels have no capsule: their channels are zero.

        Args:
            capsules: of `capsules`.
            labels: class of each pixel, 0 for background; None takes the class of the longest
                capsule.

        Returns:
            `[batch, (num_classes - 1) * dim, height, width]`.
        """
        pose, length = capsules
        classes = 1 + length.argmax(dim=-1) if labels is None else labels
        mask = F.one_hot(classes, self.num_classes)[..., 1:]
        return (pose * mask.unsqueeze(-1)).flatten(3).movedim(-1, 1)


def join_types(first: Capsules, second: Capsules) -> Capsules:
    """The capsule types of two maps as those of one.

    In memory types come before places, as in the map that a convolution takes.
    """
    poses = [capsules.pose.permute(0, 3, 4, 1, 2) for capsules in (first, second)]
    pose = torch.cat(poses, dim=1).permute(0, 3, 4, 1, 2)
    return Capsules(pose, torch.cat([first.activation, second.activation], dim=-1))


# SegCaps R1: equal couplings where the size of the map stays.
register_variant(
    "segcaps_r1",
    "segcaps",
    published="LUNA16 lung fields, Dice 98.419 % (mean of 4 splits)",
    same_size=1,
)

# Capsules of half the dimensions, a quarter of the arithmetic: for two CPU cores.
register_variant(
    "segcaps_small",
    "segcaps",
    parameters=363_609,
    published="none; a network of its own, half as wide",
    dim=8,
)
