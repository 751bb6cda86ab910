"""A layer of plain units, with or without recurrence, in place of the class capsules of CapsNet.

The controls of Doerig et al., "Capsule networks as recurrent models of grouping and segmentation",
PLoS Computational Biology 16(7), 2020, figure 4: a fully connected layer as large as the class
capsules, feed-forward or with lateral connections. Differs from the paper in: the convolutions are
those of CapsNet; the classes are read from the layer by weights of their own.
"""

from math import prod

import torch
from torch import nn

from torchcaps.errors import check_positive
from torchcaps.models._base import Classes, Images, ImageSize, PlainNetwork
from torchcaps.models._registry import ModelInfo, register_model
from torchcaps.models.capsnet import KERNEL, SMALLEST, STRIDE


class RecurrentCNN(PlainNetwork):
    """Two convolutions -> a layer that is computed `steps` times -> the classes.

        h_1 = relu(W x + b),   h_t+1 = relu(W x + b + R h_t)

    Args:
        num_classes: number of classes.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        channels: of the first convolution.
        primary_channels: of the second one; primary capsules have as many as types times
            dimensions.
        unit_dim: units of the layer for each class.
        steps: times that the layer is computed; 1 is feed-forward, without R.
        options: `multilabel` and `standardized`; see `PlainNetwork`.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: ImageSize = 28,
        *,
        channels: int = 256,
        primary_channels: int = 256,
        unit_dim: int = 16,
        steps: int = 3,
        **options: bool,
    ) -> None:
        super().__init__(num_classes, in_chans, img_size, SMALLEST, **options)
        check_positive(
            channels=channels, primary_channels=primary_channels, unit_dim=unit_dim, steps=steps
        )
        self.steps = steps
        self.convolutions = nn.Sequential(
            nn.Conv2d(in_chans, channels, KERNEL),
            nn.ReLU(),
            nn.Conv2d(channels, primary_channels, KERNEL, STRIDE),
            nn.ReLU(),
        )
        positions = prod((side - SMALLEST) // STRIDE + 1 for side in self.img_size)
        width = num_classes * unit_dim
        self.layer = nn.Linear(positions * primary_channels, width)
        self.lateral = nn.Linear(width, width, bias=False) if steps > 1 else None
        self.classes_layer = nn.Linear(width, num_classes)

    def scores(self, x: Images) -> Classes:
        drive = self.layer(self.convolutions(x).flatten(1))
        units = torch.relu(drive)
        if self.lateral is not None:
            for _ in range(self.steps - 1):
                units = torch.relu(drive + self.lateral(units))
        return self.classes_layer(units)


register_model(
    name="recurrent_cnn",
    builder=RecurrentCNN,
    info=ModelInfo(
        title="Capsule networks as recurrent models of grouping and segmentation",
        year=2020,
        parameters=6_831_594,
        published="no uncrowding with feed-forward or recurrent layers (figure 4)",
    ),
)
