"""CapsNet.

Sara Sabour, Nicholas Frosst, Geoffrey Hinton, "Dynamic Routing Between Capsules", NIPS 2017, arXiv
1710.09829, figures 1 and 2. Differs from the paper in: sizes follow the images; weights start from
this library's rule (see CapsuleLinear).
"""

from copy import deepcopy
from math import prod
from typing import Any

import torch
from torch import nn

from torchcaps.models._base import DrawingModel, Images, ImageSize, Sizes
from torchcaps.models._registry import ModelInfo, register_model, register_variant
from torchcaps.nn import CapsuleLinear, PrimaryCaps, flatten_space, set_impl
from torchcaps.nn.primary import Grouping
from torchcaps.types import Capsules, ModelSpec

KERNEL = 9  # of the convolution and of the primary capsules
STRIDE = 2  # of the primary capsules
SMALLEST = 2 * KERNEL - 1  # pixels that leave one position for the primary capsules
MAX_CLASSES_WITHOUT_BIAS = 10  # as published


# The network of 2017: 8.2 million parameters with decoder on 28x28 images, 6.8 million without.
@register_model(
    ModelInfo(
        title="Dynamic Routing Between Capsules",
        year=2017,
        arxiv="1710.09829",
        parameters=8_215_568,
        published="MNIST test error 0.25 % (3 routing iterations, with decoder)",
        purpose="the network of 2017, as published: dynamic routing and a decoder",
    ),
    name="capsnet",
)
class CapsNet(DrawingModel):
    """Convolution -> primary capsules -> routing by agreement -> class capsules -> decoder.

    Its outputs are lengths of class capsules, in [0, 1).

    Args:
        num_classes: number of classes.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        channels: of the first convolution.
        primary_types: types of primary capsules per pixel.
        primary_dim: dimensions of a primary capsule.
        class_dim: dimensions of a class capsule, and of those between.
        between: capsules of each layer between primary and class capsules; the paper has none.
        grouping: of channels to primary capsules; see `PrimaryCaps`.
        decoder: whether to build the decoder (False or None: no); or the widths of its two hidden
            layers, in place of 512 and 1024. It draws large images smaller; see `draw_size`.
        layer_options: of `CapsuleLinear`, such as `routing` and `iterations`. Its `bias`, that of
            the authors' code, is there by default from eleven classes on: the many absent classes
            push every length to zero before the right ones rise, and without a bias nothing wakes
            them again. `impl` goes to all layers; see `set_impl`. `init` goes to the decoder; see
            `FullyConnectedDecoder`.
    """

    spec = ModelSpec(pose=True, smallest=SMALLEST, loss="margin")
    layer: type[CapsuleLinear] = CapsuleLinear  # of class capsules

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: ImageSize = 28,
        *,
        channels: int = 256,
        primary_types: int = 32,
        primary_dim: int = 8,
        class_dim: int = 16,
        between: Sizes = (),
        grouping: Grouping = "position",
        decoder: bool | tuple[int, int] | None = True,
        **layer_options: Any,
    ) -> None:
        super().__init__(
            num_classes,
            in_chans,
            img_size,
            channels=channels,
            primary_types=primary_types,
            primary_dim=primary_dim,
            class_dim=class_dim,
        )
        self.conv = nn.Conv2d(in_chans, channels, KERNEL)
        self.primary = PrimaryCaps(
            channels,
            primary_types,
            primary_dim,
            kernel_size=KERNEL,
            stride=STRIDE,
            grouping=grouping,
        )
        impl = layer_options.pop("impl", "auto")
        init = layer_options.pop("init", "torch")
        if layer_options.get("bias") is None:
            layer_options["bias"] = num_classes > MAX_CLASSES_WITHOUT_BIAS

        below = primary_types * prod((side - SMALLEST) // STRIDE + 1 for side in self.img_size)
        dim = primary_dim
        layers = nn.Sequential()
        for count in between:
            layers.append(self.layer(below, dim, count, class_dim, **deepcopy(layer_options)))
            below = count
            dim = class_dim
        self.between = layers if between else None
        self.class_capsules = self.layer(below, dim, num_classes, class_dim, **layer_options)
        self.declare(activation=self.class_capsules.router.activation)
        self._add_dense_decoder(decoder, class_dim, init=init)
        if impl != "auto":
            set_impl(self, impl)

    def capsules(self, images: Images) -> Capsules:
        x = torch.relu(self.conv(self._prepare(images)))  # [batch, channels, height - 8, width - 8]
        children = flatten_space(self.primary(x))  # 6x6 positions of 32 types of dim 8
        if self.between is not None:
            children = self.between(children)
        return self.class_capsules(children)  # 10 of dim 16


# A sixth of the parameters of `capsnet`: a quarter of its channels and primary capsules, a small
# decoder.
register_variant(
    "capsnet_small",
    "capsnet",
    parameters=1_280_720,
    channels=64,
    primary_types=8,
    decoder=(256, 512),
    published="none: a small form, whose weights come with the package",
    purpose="start here: the network of 2017 at a sixth of its size",
)
