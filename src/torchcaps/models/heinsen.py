"""Convolutions and Heinsen's routings.

Franz A. Heinsen, "An Algorithm for Routing Vectors in Sequences", 2022, arXiv 2211.11754, and "An Algorithm for Routing
Capsules in All Domains", 2019, arXiv 1911.00792. Differs from the papers in: the heads of 2022 route the hidden states
of pretrained transformers, and here the vectors of a small convolutional map; the network of 2019 may have fewer
convolutions, for smaller images.
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
    side_after,
    side_before,
)
from torchcaps.models._registry import ModelInfo, register_model
from torchcaps.nn import MatrixVotes, RoutedLayer, RoutingHead
from torchcaps.types import Capsules, LayerSizes, ModelSpec

KERNEL, POSE = 3, 4  # of each convolution; side of the matrices of 2019
CERTAIN = 1e-6  # the least probability, and the least distance from one, that logits are read from


class _Convolved(LogitModel):
    """Batch norm, convolution and SiLU, several times; two channels more say where a pixel is, from -1 to 1."""

    def __init__(
        self,
        num_classes: int,
        in_chans: int,
        img_size: ImageSize,
        *,
        channels: int,
        strides: tuple[int, ...],
        **sizes: int,
    ) -> None:
        smallest = side_before(1, [(KERNEL, stride) for stride in strides])
        super().__init__(num_classes, in_chans, img_size, smallest, channels=channels, **sizes)
        self.spec = ModelSpec(pose=True, activation="probability", logits=True, smallest=smallest)
        self.convolutions = nn.Sequential()
        below = in_chans + 2
        for stride in strides:
            conv: Any = nn.Conv2d(below, channels, KERNEL, stride)
            nn.init.kaiming_normal_(conv.weight)
            nn.init.zeros_(conv.bias)
            self.convolutions.extend([nn.BatchNorm2d(below), conv, nn.SiLU()])
            below = channels

    def features(self, images: Images) -> FeatureMap:
        """The map that is routed."""
        images = self._prepare(images)
        axes = [torch.linspace(-1.0, 1.0, side).to(images) for side in self.img_size]
        places = torch.stack(torch.meshgrid(axes, indexing="ij"))
        return self.convolutions(torch.cat([images, places.expand(len(images), -1, -1, -1)], dim=1))


class ConvRouting(_Convolved):
    """Convolutions -> a sequence of vectors, one for each position -> `nn.RoutingHead`.

    Args:
        channels, strides: of each 3x3 convolution; vectors have as many dimensions as channels.
        hidden: capsules of the layers before the classes.
        iterations: of the routing; 1 has equal shares.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: ImageSize = 28,
        *,
        channels: int = 64,
        strides: tuple[int, ...] = (1, 2, 1),
        hidden: tuple[int, ...] = (64, 64),
        iterations: int = 2,
    ) -> None:
        super().__init__(num_classes, in_chans, img_size, channels=channels, strides=strides)
        self.head = RoutingHead(channels, num_classes, hidden=hidden, iterations=iterations)

    def capsules(self, images: Images) -> Capsules:
        """Class capsules: pose `[batch, num_classes, 1]`, the logit, and the probabilities of the classes."""
        logits = self.head(self.features(images).flatten(2).mT)  # 100 vectors, for 28x28 images
        return Capsules(logits.unsqueeze(-1), self.probabilities(logits))

    def logits_of(self, capsules: Capsules) -> Classes:
        return capsules.pose.squeeze(-1)


class MatrixRouting(_Convolved):
    """Convolutions -> matrices with scores at each position -> capsules of parts -> class capsules.

    The activation of a class is a sigmoid of its logit: they do not sum to one.

    Args:
        channels, strides: of each 3x3 convolution.
        parts: capsules at each position, and in the layer before the classes.
        iterations: of the routing; 1 has equal shares.
    """

    def __init__(
        self,
        num_classes: int = 5,
        in_chans: int = 2,
        img_size: ImageSize = 96,
        *,
        channels: int = 64,
        strides: tuple[int, ...] = (1, 2, 1, 2, 1, 2),
        parts: int = 64,
        iterations: int = 3,
    ) -> None:
        super().__init__(
            num_classes, in_chans, img_size, channels=channels, strides=strides, parts=parts
        )
        convolutions = [(KERNEL, stride) for stride in strides]
        if prod(side_after(side, convolutions) for side in self.img_size) == 1:
            self.spec = replace(self.spec, smallest_batch=2)  # batch norm needs two values
        dim = POSE**2
        self.score = nn.Sequential(nn.BatchNorm2d(channels), nn.Conv2d(channels, parts, 1))
        self.pose = nn.Sequential(nn.BatchNorm2d(channels), nn.Conv2d(channels, parts * dim, 1))
        # All children below share their matrices.
        votes = [
            MatrixVotes(LayerSizes(below, dim, above, dim), init_std=1 / POSE, identity=False)
            for below, above in ((1, parts), (parts, num_classes))
        ]
        self.part_capsules, self.class_capsules = (
            RoutedLayer(matrices, "heinsen_2019", iterations=iterations) for matrices in votes
        )
        router: Any = self.class_capsules.router
        # From zeros, as published, the first step reaches nothing below.
        nn.init.normal_(router.beta_use, std=0.01)
        nn.init.normal_(router.beta_ignore, std=0.01)

    def capsules(self, images: Images) -> Capsules:
        x = self.features(images)  # 9x9, for 96x96 images
        pose = full_precision(self.pose(x)).movedim(1, -1).unflatten(-1, (-1, POSE**2))
        score = full_precision(self.score(x)).movedim(1, -1)
        return self.class_capsules(self.part_capsules(Capsules(pose, score.sigmoid())))

    def logits_of(self, capsules: Capsules) -> Classes:
        """The net benefit of each class: what its activation is a sigmoid of, between -13.8 and 13.8."""
        return capsules.activation.logit(CERTAIN)


# A small convolutional network whose map is routed as a sequence: 64 channels, and capsules of 64 dimensions.
register_model(
    name="heinsen",
    builder=ConvRouting,
    info=ModelInfo(
        title="An Algorithm for Routing Vectors in Sequences",
        year=2022,
        arxiv="2211.11754",
        parameters=163_025,
        published="none of this network; its head on frozen BEiT-large has 99.2 % on CIFAR-10",
    ),
)

# The network of 2019 for smallNORB: 272 thousand parameters.
register_model(
    name="heinsen_2019",
    builder=MatrixRouting,
    info=ModelInfo(
        title="An Algorithm for Routing Capsules in All Domains",
        year=2019,
        arxiv="1911.00792",
        img_size=(96, 96),
        in_chans=2,
        num_classes=5,
        parameters=271_688,
        published="smallNORB test accuracy 99.1 %",
    ),
)
