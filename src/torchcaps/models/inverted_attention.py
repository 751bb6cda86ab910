"""Capsules with inverted dot-product attention.

Yao-Hung Hubert Tsai, Nitish Srivastava, Hanlin Goh, Ruslan Salakhutdinov, "Capsules with Inverted
Dot-Product Attention Routing", ICLR 2020, arXiv 2002.04764, figure 3 and appendix. Differs from the
authors' code in: sizes follow the images; windows are laid out as their corrected fork does it;
images are not standardized first.
"""

from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, Literal

import torch
from torch import nn

from torchcaps.errors import check_known
from torchcaps.functional.fields import ConvField, DenseField
from torchcaps.functional.squash import full_precision
from torchcaps.models._base import Classes, Images, ImageSize, LogitModel, Sizes, side_after
from torchcaps.models._registry import ModelInfo, register_model, register_variant
from torchcaps.models.resnet import convolution, residual_blocks
from torchcaps.nn import MatrixVotes, RoutedLayer, RoutedStack
from torchcaps.nn.routers import check_iterations
from torchcaps.types import Capsules, LayerSizes

Backbone = Literal["resnet", "simple"]
CHANNELS = 128  # of the backbone's map
KERNEL = 3  # of both layers of convolutional capsules
STRIDES = (2, 1)
SMALLEST = 13  # pixels that leave one position for the last map


# The network for CIFAR-10: 1.8 million parameters, three quarters of them in its backbone.
@register_model(
    ModelInfo(
        title="Capsules with Inverted Dot-Product Attention Routing",
        year=2020,
        arxiv="2002.04764",
        img_size=(32, 32),
        in_chans=3,
        parameters=1_828_817,
        published="CIFAR-10 test accuracy 94.85 % (mean; 94.73 % with equal couplings)",
        purpose="layers that route together, for color images",
    ),
    name="inverted_attention",
)
class InvertedAttentionCaps(LogitModel):
    """Backbone -> primary capsules -> two layers of convolutional capsules -> class capsules.

    One linear map, shared by all class capsules, makes the logits of their poses.

    Args:
        num_classes: number of classes.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        backbone: "resnet", fifteen convolutions, or "simple", a single one with stride 2.
        types: capsule types of the primary and of both convolutional layers.
        pose_size: r; poses are r x r matrices. 4 for CIFAR-10, 6 for CIFAR-100.
        hidden: capsules of fully connected layers before the classes; (20,) for CIFAR-100.
        iterations: of the routing, in every layer; the first has equal couplings, so that 1 is no
            attention.
        sequential: route each layer to its last iteration before the next begins. By default all
            layers route together: in each iteration every layer takes the poses that all had in the
            one before.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: ImageSize = 32,
        *,
        backbone: Backbone = "resnet",
        types: int = 32,
        pose_size: int = 4,
        hidden: Sizes = (),
        iterations: int = 2,
        sequential: bool = False,
    ) -> None:
        super().__init__(
            num_classes,
            in_chans,
            img_size,
            smallest=SMALLEST,
            types=types,
            pose_size=pose_size,
        )
        check_iterations(iterations)
        check_known("backbone", backbone, Backbone)
        self.types = types
        dim = pose_size**2
        self.backbone = make_backbone(backbone, in_chans)
        self.primary = nn.Conv2d(CHANNELS, types * dim, 1, bias=False)
        self.norm = nn.LayerNorm(dim)

        make_layer = partial(attention_layer, iterations=iterations if sequential else 1)
        window = LayerSizes(KERNEL**2 * types, dim, types, dim)
        layers = [
            make_layer(window, partial(ConvField, kernel=KERNEL, stride=stride, convention="type"))
            for stride in STRIDES
        ]
        convolutions = [(KERNEL, stride) for stride in STRIDES]
        positions = prod(side_after((side + 1) // 2, convolutions) for side in self.img_size)
        layers += [
            make_layer(LayerSizes(below, dim, above, dim), DenseField)
            for below, above in pairwise([positions * types, *hidden, num_classes])
        ]
        self.capsule_layers = RoutedStack(*layers, num_iterations=1 if sequential else iterations)
        self.classes_layer = nn.Linear(dim, 1)  # shared by all classes

    def capsules(self, images: Images) -> Capsules:
        x = self.primary(self.backbone(self._prepare(images)))  # [batch, types * r * r, 16, 16]
        pose = full_precision(self.norm(x.movedim(1, -1).unflatten(-1, (self.types, -1))))
        # Children have no activation: all are present, at 16x16 positions for 32x32 images.
        children = Capsules(pose, torch.ones_like(pose[..., 0]))
        classes = self.capsule_layers(children)  # 7x7 positions, then 5x5, then none
        return Capsules(classes.pose, self.probabilities(self.logits_of(classes)))

    def logits_of(self, capsules: Capsules) -> Classes:
        pose = capsules.pose.to(self.classes_layer.weight.dtype)
        return full_precision(self.classes_layer(pose)).squeeze(-1)


def attention_layer(sizes: LayerSizes, field: Any, iterations: int) -> RoutedLayer:
    """A layer whose votes start at random, without the identity; the routing sizes their sums."""
    std = (sizes.parents / (sizes.children * sizes.dim**0.5)) ** 0.5
    votes = MatrixVotes(sizes, init_std=std, identity=False)
    return RoutedLayer(votes, "inverted_attention", field, iterations=iterations)


def make_backbone(kind: Backbone, in_chans: int) -> nn.Sequential:
    """`[batch, in_chans, height, width]` -> `[batch, 128, ceil(height / 2), ceil(width / 2)]`."""
    if kind == "simple":
        return nn.Sequential(nn.Conv2d(in_chans, CHANNELS, 3, 2, 1), nn.ReLU())
    half = CHANNELS // 2
    return convolution(in_chans, half).extend(residual_blocks([half] * 4 + [CHANNELS] * 4, "B"))


# This library's smaller form, for a CPU: the paper's simple backbone, and 8 types of capsules in
# place of 32.
register_variant(
    "inverted_attention_small",
    "inverted_attention",
    parameters=70_545,
    published="none of this size",
    backbone="simple",
    types=8,
)
