"""A CNN with the masked decoder of capsule networks: the control of what the decoder gives.

Yao Qin et al., "Detecting and Diagnosing Adversarial Images with Class-Conditional Capsule
Reconstructions", ICLR 2020, arXiv 1907.02957 (CNN+CR): the last hidden layer has a group of units
for each class, and the decoder draws from one group alone. Differs from the paper in: two
convolutions with pooling; a sigmoid and a margin loss for each class, as capsules have.
"""

import torch
from torch import nn

from torchcaps.models._base import DrawingModel, Images, ImageSize
from torchcaps.models._registry import ModelInfo, register_model
from torchcaps.types import Capsules, ModelSpec

KERNEL = 5
SMALLEST = 4  # pixels that two poolings leave one place of


@register_model(
    ModelInfo(
        title="Detecting and Diagnosing Adversarial Images with Class-Conditional Capsules",
        year=2020,
        arxiv="1907.02957",
        parameters=1_965_530,
        published="none: the comparison that figures of reconstructions need",
        purpose="a plain network that draws: the control of reconstructions",
    ),
    name="cnn_decoder",
)
class CNNWithDecoder(DrawingModel):
    """Convolutions with pooling -> a group of units for each class -> classes and decoder.

    Outputs are probabilities of each class by itself. The "pose" of a class is its group of units.

    Args:
        num_classes: number of classes.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        channels: of the two convolutions.
        class_dim: units of a class.
        decoder: whether to build the decoder; or the widths of its two hidden layers, in place of
            512 and 1024.
    """

    spec = ModelSpec(pose=True, activation="probability", smallest=SMALLEST, loss="margin")

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: ImageSize = 28,
        *,
        channels: tuple[int, int] = (32, 64),
        class_dim: int = 16,
        decoder: bool | tuple[int, int] | None = True,
    ) -> None:
        first, second = channels
        super().__init__(
            num_classes,
            in_chans,
            img_size,
            first_channels=first,
            second_channels=second,
            class_dim=class_dim,
        )
        self.convolutions = nn.Sequential()
        for below, above in ((in_chans, first), (first, second)):
            convolution = nn.Conv2d(below, above, KERNEL, padding=KERNEL // 2)
            self.convolutions.extend([convolution, nn.ReLU(), nn.MaxPool2d(2)])
        height, width = self.img_size
        self.units = nn.Linear(second * (height // 4) * (width // 4), num_classes * class_dim)
        self.weight = nn.Parameter(torch.randn(num_classes, class_dim) / class_dim**0.5)
        self.bias = nn.Parameter(torch.zeros(num_classes))

        self._add_dense_decoder(decoder, class_dim)

    def capsules(self, images: Images) -> Capsules:
        features = self.convolutions(self._prepare(images)).flatten(1)
        pose = torch.relu(self.units(features)).unflatten(1, (self.num_classes, -1))
        logits = (pose * self.weight).sum(dim=-1) + self.bias
        return Capsules(pose, logits.float().sigmoid())
