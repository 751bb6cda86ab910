"""Two networks: convolutions, then one of Heinsen's routings.

Franz A. Heinsen, "An Algorithm for Routing Vectors in Sequences", 2022, arXiv 2211.11754, and "An
Algorithm for Routing Capsules in All Domains", 2019, arXiv 1911.00792. Differs from the papers in:
the heads of 2022 route the hidden states of pretrained transformers, and here the vectors of a
small convolutional map; the network of 2019 may have fewer convolutions, for smaller images.
"""

from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import nn

from torchcaps.functional.squash import full_precision
from torchcaps.models._base import (
    Classes,
    FeatureMap,
    Images,
    ImageSize,
    LogitModel,
    Sizes,
    side_after,
    side_before,
)
from torchcaps.models._registry import ModelInfo, register_model
from torchcaps.nn import MatrixVotes, RoutedLayer, RoutingHead
from torchcaps.types import Capsules, LayerSizes

KERNEL = 3  # of each convolution
POSE = 4  # side of the pose matrices of 2019
EPSILON = 1e-6  # probabilities are clamped to [EPSILON, 1 - EPSILON] before their logit


class ConvolutionalModel(LogitModel):
    """Base of both networks: batch norm, convolution and SiLU, several times.

    Two more channels have the row and column of each pixel, from -1 to 1. A subclass routes the
    map of `features` in its `capsules`; `logits_of` then reads the logits from the class capsules.

    Args:
        num_classes: number of classes.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        channels: of each 3x3 convolution.
        strides: of each convolution.
        sizes: other arguments of the subclass that must be at least 1, by name.
    """

    spec = replace(LogitModel.spec, any_size=True)

    def __init__(
        self,
        num_classes: int,
        in_chans: int,
        img_size: ImageSize,
        *,
        channels: int,
        strides: Sizes,
        **sizes: int,
    ) -> None:
        windows = [(KERNEL, stride) for stride in strides]  # of each convolution
        super().__init__(
            num_classes,
            in_chans,
            img_size,
            smallest=side_before(1, windows),  # whose map has one position
            channels=channels,
            **sizes,
        )
        self.windows = windows
        self.convolutions = nn.Sequential()
        in_channels = in_chans + 2
        for stride in strides:
            conv: Any = nn.Conv2d(in_channels, channels, KERNEL, stride)
            nn.init.kaiming_normal_(conv.weight)
            nn.init.zeros_(conv.bias)
            self.convolutions.extend([nn.BatchNorm2d(in_channels), conv, nn.SiLU()])
            in_channels = channels

    def features(self, images: Images) -> FeatureMap:
        """The map that is routed, `[batch, channels, rows, columns]`."""
        images = self._prepare(images)
        axes = [
            torch.linspace(-1.0, 1.0, side, dtype=images.dtype, device=images.device)
            for side in images.shape[2:]
        ]
        coordinates = torch.stack(torch.meshgrid(axes, indexing="ij"))  # [2, height, width]
        coordinates = coordinates.expand(images.shape[0], -1, -1, -1)
        return self.convolutions(torch.cat([images, coordinates], dim=1))


# A small convolutional network whose map is routed as a sequence of vectors of 64 numbers.
@register_model(
    ModelInfo(
        title="An Algorithm for Routing Vectors in Sequences",
        year=2022,
        arxiv="2211.11754",
        parameters=163_025,
        published="none of this network; its head on frozen BEiT-large has 99.2 % on CIFAR-10",
        purpose="routing of sequences of vectors, on a small stem",
    ),
    name="heinsen",
)
class ConvRouting(ConvolutionalModel):
    """Convolutions -> a sequence of vectors, one for each position -> `nn.RoutingHead`.

    Args:
        num_classes: number of classes.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        channels: of each 3x3 convolution, and the length of the vectors.
        strides: of each convolution.
        hidden: number of capsules of each layer before the classes.
        iterations: of the routing; 1 has equal couplings.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: ImageSize = 28,
        *,
        channels: int = 64,
        strides: Sizes = (1, 2, 1),
        hidden: Sizes = (64, 64),
        iterations: int = 2,
    ) -> None:
        super().__init__(num_classes, in_chans, img_size, channels=channels, strides=strides)
        self.head = RoutingHead(channels, num_classes, hidden=hidden, iterations=iterations)

    def capsules(self, images: Images) -> Capsules:
        """Class capsules of images.

        Args:
            images: `[batch, channels, height, width]` in [0, 1].

        Returns:
            Pose `[batch, num_classes, 1]`, the logit, and the probabilities of the classes.
        """
        # One vector for each position of the map: [batch, positions, channels].
        logits = self.head(self.features(images).flatten(2).mT)
        return Capsules(logits.unsqueeze(-1), self.probabilities(logits))

    def logits_of(self, capsules: Capsules) -> Classes:
        return capsules.pose.squeeze(-1)


# The network of 2019 for smallNORB: 272 thousand parameters.
@register_model(
    ModelInfo(
        title="An Algorithm for Routing Capsules in All Domains",
        year=2019,
        arxiv="1911.00792",
        img_size=(96, 96),
        in_chans=2,
        num_classes=5,
        parameters=271_688,
        published="smallNORB test accuracy 99.1 %",
        purpose="routing of matrices, for toys seen from all sides",
    ),
    name="heinsen_2019",
)
class MatrixRouting(ConvolutionalModel):
    """Convolutions -> matrices with scores at each position -> capsules of parts -> classes.

    The activation of a class is a sigmoid of its logit: they do not sum to one.

    Args:
        num_classes: number of classes.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        channels: of each 3x3 convolution.
        strides: of each convolution.
        parts: number of capsules at each position of the map, and in the layer before the classes.
        iterations: of the routing; 1 has equal couplings.
    """

    def __init__(
        self,
        num_classes: int = 5,
        in_chans: int = 2,
        img_size: ImageSize = 96,
        *,
        channels: int = 64,
        strides: Sizes = (1, 2, 1, 2, 1, 2),
        parts: int = 64,
        iterations: int = 3,
    ) -> None:
        super().__init__(
            num_classes,
            in_chans,
            img_size,
            channels=channels,
            strides=strides,
            parts=parts,
        )
        if prod(side_after(side, self.windows) for side in self.img_size) == 1:
            self.declare(smallest_batch=2)  # batch norm needs two values
        dim = POSE**2
        self.score = nn.Sequential(nn.BatchNorm2d(channels), nn.Conv2d(channels, parts, 1))
        self.pose = nn.Sequential(nn.BatchNorm2d(channels), nn.Conv2d(channels, parts * dim, 1))

        # All positions and capsules of the map share the matrices and parameters of one child.
        self.part_capsules = make_layer(LayerSizes(1, dim, parts, dim), iterations)
        self.class_capsules = make_layer(LayerSizes(parts, dim, num_classes, dim), iterations)
        router: Any = self.class_capsules.router
        # From zeros, as published, the first training step changes no layer below.
        nn.init.normal_(router.beta_use, std=0.01)
        nn.init.normal_(router.beta_ignore, std=0.01)

    def capsules(self, images: Images) -> Capsules:
        """Class capsules of images.

        Args:
            images: `[batch, channels, height, width]` in [0, 1].

        Returns:
            Pose `[batch, num_classes, 16]`, a 4x4 matrix, and activation `[batch, num_classes]` in
            [0, 1].
        """
        features = self.features(images)  # [batch, channels, rows, columns]

        # Capsules of each position: [batch, rows, columns, parts, 16].
        pose = full_precision(self.pose(features)).movedim(1, -1).unflatten(-1, (-1, POSE**2))
        score = full_precision(self.score(features)).movedim(1, -1)
        return self.class_capsules(self.part_capsules(Capsules(pose, score.sigmoid())))

    def logits_of(self, capsules: Capsules) -> Classes:
        """The net benefit of each class, of which its activation is the sigmoid.

        Args:
            capsules: class capsules, activation `[batch, classes]` in [0, 1].

        Returns:
            `[batch, classes]`, from -13.8 to 13.8.
        """
        return capsules.activation.logit(EPSILON)


def make_layer(sizes: LayerSizes, iterations: int) -> RoutedLayer:
    """A layer of the network of 2019, whose matrices start as noise alone."""
    return RoutedLayer(
        MatrixVotes(sizes, init_std=1 / POSE, identity=False),
        "heinsen_2019",
        iterations=iterations,
    )
