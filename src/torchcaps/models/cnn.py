"""Convolutional baselines: those of the papers, and a CNN as large as any capsule network.

Sabour, Frosst, Hinton 2017 (arXiv 1710.09829, sections 5 and 6) for MNIST and MultiMNIST; Hinton,
Sabour, Frosst, "Matrix capsules with EM routing", ICLR 2018, section 4, for smallNORB. Differs from
the papers in: sizes follow the images. Padding keeps the size of the maps in all of them: only so
are the published counts of parameters met. The rate of dropout, 0.5, is this library's choice.
"""

from bisect import bisect_right
from math import ceil, prod
from typing import Any

import torch
from torch import nn

from torchcaps.errors import ArgumentError, check_positive, check_range
from torchcaps.models._base import Classes, Images, ImageSize, PlainNetwork, Sizes
from torchcaps.models._registry import ModelInfo, create_model, register_model, register_variant
from torchcaps.models.notebook import parameter_count

TOLERANCE = 0.05  # of the parameters of a matched CNN
MAX_LAYERS = 100
MAX_WIDTH = 1 << 16  # of a matched CNN


# The MNIST baseline of 2017: three 5x5 convolutions of 256, 256, 128 channels, layers of 328 and
# 192 units.
@register_model(
    ModelInfo(
        title="Dynamic Routing Between Capsules",
        year=2017,
        arxiv="1710.09829",
        parameters=35_445_522,
        published="MNIST test error 0.39 % (the paper's baseline)",
        purpose="the plain network that CapsNet's paper compares with",
    ),
    name="cnn_baseline",
)
class CNN(PlainNetwork):
    """Convolutions with ReLU, then fully connected layers, then the classes.

    Args:
        num_classes: number of classes.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        channels: of each convolution.
        kernels: odd sizes of each.
        stride: of each convolution.
        pool: max pooling of 2x2 after each convolution.
        global_pool: take the maximum of each channel over all places after the convolutions.
        hidden: widths of the fully connected layers with ReLU.
        dropout: share of the last hidden layer that is left out in training, in [0, 1).
        options: `multilabel` and `standardized`; see `PlainNetwork`.

    Raises:
        ValueError: for layers that do not fit together; see also `ImageModel`.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: ImageSize = 28,
        *,
        channels: Sizes = (256, 256, 128),
        kernels: Sizes = (5, 5, 5),
        stride: int = 1,
        pool: bool = False,
        global_pool: bool = False,
        hidden: Sizes = (328, 192),
        dropout: float = 0.5,
        **options: bool,
    ) -> None:
        check_layers(channels, kernels, hidden)
        check_range("dropout", dropout, low=0.0, high=0.99)
        check_positive(stride=stride)
        pooling = 2 if pool else 1
        super().__init__(
            num_classes,
            in_chans,
            img_size,
            smallest=(stride * pooling) ** len(channels),
            **options,
        )
        self.convolutions = nn.Sequential()
        below = in_chans
        sides: Sizes = self.img_size
        for above, kernel in zip(channels, kernels, strict=True):
            conv = nn.Conv2d(below, above, kernel, stride, padding=kernel // 2)
            self.convolutions.extend([conv, nn.ReLU()])
            if pool:
                self.convolutions.append(nn.MaxPool2d(2))
            sides = tuple(ceil(side / stride) // pooling for side in sides)
            below = above

        if global_pool:
            self.convolutions.append(nn.AdaptiveMaxPool2d(1))
        else:
            below *= prod(sides)
        self.hidden = nn.Sequential()
        for above in hidden:
            self.hidden.extend([nn.Linear(below, above), nn.ReLU()])
            below = above
        self.dropout = nn.Dropout(dropout)
        self.classes_layer = nn.Linear(below, num_classes)

    def scores(self, x: Images) -> Classes:
        return self.classes_layer(self.dropout(self.hidden(self.convolutions(x).flatten(1))))


def check_layers(channels: Sizes, kernels: Sizes, hidden: Sizes) -> None:
    """Raise ValueError for layers that are none, see `CNN`, and for more than a hundred of them."""
    for width in channels:
        check_positive(channels=width)
    for width in hidden:
        check_positive(hidden=width)
    check_range("layers", len(channels) + len(hidden), high=MAX_LAYERS)
    if len(channels) == 0 or len(kernels) != len(channels):
        raise ArgumentError(
            "kernels", f"expected one for each of {len(channels)} convolutions, got {len(kernels)}"
        )
    if any(kernel < 1 or kernel % 2 == 0 for kernel in kernels):
        raise ArgumentError("kernels", f"expected odd sizes, got {', '.join(map(str, kernels))}")


def matched_cnn(model: nn.Module, **options: Any) -> CNN:
    """A CNN with as many parameters as a capsule network, for the same images and classes.

    Two 5x5 convolutions with pooling and one hidden layer, whose widths are as 1 to 2 to 32, as in
    the smallNORB baseline: as wide as fits, and then a hidden layer that takes up the rest. Its
    count of parameters is within 5 % of the model's; equal arguments give equal widths. A decoder
    counts with the capsule network; `decoder=False` leaves it out.

    Args:
        model: a capsule network.
        options: `dropout`, `multilabel` and `standardized` of `CNN`.

    Returns:
        The CNN, with new weights.

    Raises:
        ArgumentError: for a CNN, and for a model too small to be matched.

    Example:
        >>> cnn = matched_cnn(create_model("capsnet_small"))
    """
    if isinstance(model, PlainNetwork):
        raise ArgumentError("model", "expected a capsule network, got a CNN")
    capsules: Any = model
    target = parameter_count(model)

    def build(first: int, hidden: int) -> CNN:
        return CNN(
            capsules.num_classes,
            capsules.in_chans,
            capsules.img_size,
            channels=(first, 2 * first),
            kernels=(5, 5),
            pool=True,
            hidden=(hidden,),
            **options,
        )

    def count_weights(first: int, hidden: int) -> int:
        with torch.device("meta"):  # takes no memory, draws nothing
            return parameter_count(build(first, hidden))

    first = max(
        1, bisect_right(range(1, MAX_WIDTH), target, key=lambda n: count_weights(n, 32 * n))
    )
    fewest = count_weights(first, 1)
    per_unit = count_weights(first, 2) - fewest
    cnn = build(first, max(1, round((target - fewest) / per_unit + 1)))
    count = parameter_count(cnn)
    if abs(count - target) > TOLERANCE * target:
        raise ArgumentError(
            "model",
            f"no CNN has about as many parameters as this one, {target}; the nearest has {count}",
        )
    return cnn


# The MultiMNIST baseline of 2017: convolutions of 512 (9x9) and 256 channels (5x5) with pooling,
# 1024 units.
register_variant(
    "cnn_multimnist",
    "cnn_baseline",
    img_size=(36, 36),
    parameters=24_563_978,
    channels=(512, 256),
    kernels=(9, 5),
    pool=True,
    hidden=(1024,),
    dropout=0.0,
    multilabel=True,
    published="MultiMNIST test error 8.1 % (the paper's baseline)",
)

# The smallNORB baseline of 2018: 5x5 convolutions of 32 and 64 channels with pooling, 1024 units
# with dropout.
register_variant(
    "cnn_smallnorb",
    "cnn_baseline",
    title="Matrix capsules with EM routing",
    year=2018,
    arxiv="",
    img_size=(32, 32),
    in_chans=2,
    num_classes=5,
    parameters=4_253_349,
    published="smallNORB test error 5.2 % (the paper's baseline)",
    channels=(32, 64),
    kernels=(5, 5),
    pool=True,
    hidden=(1024,),
)


@register_model(
    ModelInfo(
        title="A CNN as large as a capsule network",
        year=2018,
        parameters=8_214_827,
        published="none: the comparison that capsule figures need",
        purpose="a plain network as large as any capsule network, to compare with",
    )
)
def cnn_matched(
    *,
    match: str = "capsnet",
    dropout: float = 0.5,
    multilabel: bool = False,
    standardized: bool = False,
    **options: Any,
) -> CNN:
    """A CNN with as many parameters as a model of the registry; see `matched_cnn`.

    Args:
        match: name of the model.
        dropout: see `CNN`.
        multilabel: see `CNN`.
        standardized: see `CNN`.
        options: of the model.
    """
    if match == "cnn_matched":
        raise ArgumentError(
            "model", "expected a capsule network, got 'cnn_matched', which matches one"
        )
    with torch.device("meta"):  # it is only counted: it takes no memory, and nothing is drawn
        model = create_model(match, **options)
    return matched_cnn(model, dropout=dropout, multilabel=multilabel, standardized=standardized)
