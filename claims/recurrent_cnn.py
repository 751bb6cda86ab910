"""A layer of plain units, with or without recurrence, in place of the class capsules of CapsNet.

The controls of Doerig et al., "Capsule networks as recurrent models of grouping and segmentation",
PLoS Computational Biology 16(7), 2020, figure 4: a fully connected layer as large as the class
capsules, feed-forward or with lateral connections. Differs from the paper in: the convolutions are
those of CapsNet; the classes are read from the layer by weights of their own.
"""

from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import check_range
from torchcaps.models import ModelInfo, register_model
from torchcaps.types import ModelSpec

KERNEL = 9
STRIDE = 2
SMALLEST = 2 * KERNEL - 1  # pixels along the side of an image of which one position is left

Images = Float[Tensor, "batch channels height width"]
Classes = Float[Tensor, "batch classes"]


class RecurrentCNN(nn.Module):
    """Two convolutions -> a layer that is computed `steps` times -> the classes.

        h_1 = relu(W x + b),   h_t+1 = relu(W x + b + R h_t)

    Args:
        num_classes: number of classes.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both; at least 17.
        channels: of the first convolution.
        primary_channels: of the second one; primary capsules have as many as types times
            dimensions.
        unit_dim: units of the layer for each class.
        steps: times that the layer is computed; 1 is feed-forward, without R.
        multilabel: a sigmoid for each class in place of one softmax.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: int | tuple[int, int] = 28,
        *,
        channels: int = 256,
        primary_channels: int = 256,
        unit_dim: int = 16,
        steps: int = 3,
        multilabel: bool = False,
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.in_chans = in_chans
        self.img_size = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
        check_range("img_size", min(self.img_size), low=SMALLEST)
        check_range("steps", steps, low=1)
        self.spec = ModelSpec(
            activation="probability", logits=True, multilabel=multilabel, smallest=SMALLEST
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

    def logits(self, images: Images) -> Classes:
        """Logits of the classes of images in [0, 1]."""
        drive = self.layer(self.convolutions(images).flatten(1))
        units = torch.relu(drive)
        if self.lateral is not None:
            for _ in range(self.steps - 1):
                units = torch.relu(drive + self.lateral(units))
        return self.classes_layer(units)

    def probabilities(self, logits: Classes) -> Classes:
        """Softmax over classes, or a sigmoid for each."""
        return logits.sigmoid() if self.spec.multilabel else logits.softmax(dim=1)

    def forward(self, images: Images) -> Classes:
        """Probabilities of the classes."""
        return self.probabilities(self.logits(images))


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
