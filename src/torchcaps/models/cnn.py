"""Convolutional baselines: what the papers compared their capsules with, and a CNN as large as any capsule network.

Sabour, Frosst, Hinton 2017 (arXiv 1710.09829, sections 5 and 6) for MNIST and MultiMNIST; Hinton, Sabour, Frosst,
"Matrix capsules with EM routing", ICLR 2018, section 4, for smallNORB. Differs from the papers in: sizes follow the
images. Padding keeps the size of the maps in all of them: only so are the published counts of parameters met. The rate
of dropout, 0.5, is this library's choice.
"""

from bisect import bisect_right
from typing import Any

import torch
from torch import nn

from torchcaps.errors import ArgumentError, check_range
from torchcaps.models._base import Classes, Images, PlainNetwork
from torchcaps.models._registry import ModelInfo, create_model, register_model, register_variant

TOLERANCE = 0.05  # of the parameters of a matched CNN
MOST_LAYERS = 100
SHAPE = (
    1,
    2,
    32,
)  # first and second convolution and hidden layer of a matched CNN, in widths: smallNORB's has 32


class CNN(PlainNetwork):
    """Convolutions with ReLU (each halved by max pooling, if asked), then fully connected layers, then the classes.

    Args:
        several, standardized: see `PlainNetwork`.
        channels: of each convolution, stride 1.
        kernels: odd sizes of each.
        pool: max pooling of 2x2 after each convolution.
        hidden: widths of the fully connected layers with ReLU.
        dropout: share of the last hidden layer that is left out in training, in [0, 1).
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: int | tuple[int, int] = 28,
        *,
        channels: tuple[int, ...] = (256, 256, 128),
        kernels: tuple[int, ...] = (5, 5, 5),
        pool: bool = False,
        hidden: tuple[int, ...] = (328, 192),
        dropout: float = 0.5,
        multilabel: bool = False,
        standardized: bool = False,
    ) -> None:
        _check_layers(channels, kernels, hidden, dropout)
        poolings = len(channels) if pool else 0
        needs = (2**poolings, f"{poolings} poolings")
        super().__init__(
            num_classes, in_chans, img_size, needs, multilabel=multilabel, standardized=standardized
        )
        rows, columns = (side // 2**poolings for side in self.img_size)
        layers: list[nn.Module] = []
        for below, above, kernel in zip((in_chans, *channels), channels, kernels, strict=False):
            layers += [nn.Conv2d(below, above, kernel, padding=kernel // 2), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if pool else []
        self.convolutions = nn.Sequential(*layers)
        widths = (rows * columns * channels[-1], *hidden)
        self.hidden = nn.Sequential(
            *(
                layer
                for below, above in zip(widths, hidden, strict=False)
                for layer in (nn.Linear(below, above), nn.ReLU())
            )
        )
        self.dropout = nn.Dropout(dropout)
        self.classes_layer = nn.Linear(widths[-1], num_classes)

    def scores(self, x: Images) -> Classes:
        features = self.convolutions(x).flatten(1)
        return self.classes_layer(self.dropout(self.hidden(features)))


def _check_layers(
    channels: tuple[int, ...], kernels: tuple[int, ...], hidden: tuple[int, ...], dropout: float
) -> None:
    for name, values in (("channels", channels), ("hidden", hidden)):
        for value in values:
            check_range(name, value, low=1)
    check_range("layers", len(channels) + len(hidden), high=MOST_LAYERS)
    if len(channels) == 0 or len(kernels) != len(channels):
        raise ArgumentError(
            "kernels", f"expected one for each of {len(channels)} convolutions, got {len(kernels)}"
        )
    if any(kernel < 1 or kernel % 2 == 0 for kernel in kernels):
        raise ArgumentError("kernels", f"expected odd sizes, got {', '.join(map(str, kernels))}")
    check_range("dropout", dropout, low=0.0, high=0.99)


def parameter_count(model: nn.Module) -> int:
    """Numbers that training can change."""
    return sum(p.numel() for p in model.parameters())


def matched_cnn(
    model: nn.Module | str = "capsnet",
    *,
    num_classes: int | None = None,
    in_chans: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    dropout: float = 0.5,
    multilabel: bool = False,
    standardized: bool = False,
    **model_options: Any,
) -> CNN:
    """A CNN with as many parameters as a capsule network, for the same images and classes.

    Two 5x5 convolutions with pooling and one hidden layer, shaped like the smallNORB baseline (32 and 64 channels, 1024
    units): as wide as fits, and then a hidden layer that takes up the rest. Its count of parameters is within 5 % of
    the model's; equal arguments give equal widths. A decoder counts with the capsule network; `decoder=False` leaves it
    out.

    Args:
        model: a capsule network, or the name of one.
        num_classes, in_chans, img_size, model_options: with a name; see `create_model`.
        dropout, several, standardized: see `CNN`.

    ValueError for an unknown name, a CNN, or a model too small to be matched; TypeError for sizes with a model.
    """
    given = {"num_classes": num_classes, "in_chans": in_chans, "img_size": img_size} | model_options
    if isinstance(model, str):
        if model == "cnn_matched":
            raise ArgumentError(
                "model", "expected a capsule network, got 'cnn_matched', which matches one"
            )
        with torch.device("meta"):  # it is only counted: it takes no memory, and nothing is drawn
            model = create_model(model, **given)
    elif any(value is not None for value in given.values()):
        names = ", ".join(name for name, value in given.items() if value is not None)
        raise TypeError(
            f"model: sizes and options ({names}) go with a name, not with {type(model).__name__}"
        )
    if isinstance(model, PlainNetwork):
        raise ArgumentError("model", "expected a capsule network, got a CNN")
    sized: Any = model
    sizes, target = (sized.num_classes, sized.in_chans, sized.img_size), parameter_count(model)
    *channels, hidden = matched_widths(target, *sizes)
    layers: dict[str, Any] = {
        "channels": tuple(channels),
        "kernels": (5, 5),
        "pool": True,
        "hidden": (hidden,),
    }
    cnn = CNN(*sizes, **layers, dropout=dropout, multilabel=multilabel, standardized=standardized)
    found = parameter_count(cnn)
    if abs(found - target) > TOLERANCE * target:
        raise ArgumentError(
            "model",
            f"no CNN has about as many parameters as this one, {target}; the nearest has {found}",
        )
    return cnn


def matched_widths(
    target: int, num_classes: int, in_chans: int, img_size: tuple[int, int]
) -> tuple[int, int, int]:
    """Channels of both convolutions and hidden units that bring a matched CNN to about `target` parameters."""
    rows, columns = (side // 4 for side in img_size)  # after two poolings

    def count(first: int, second: int, hidden: int) -> int:
        convolutions = (25 * in_chans + 1) * first + (25 * first + 1) * second
        return convolutions + (rows * columns * second + 1) * hidden + (hidden + 1) * num_classes

    width = max(
        1,
        bisect_right(
            range(1, 1 << 31), target, key=lambda width: count(*(part * width for part in SHAPE))
        ),
    )
    first, second, _ = (part * width for part in SHAPE)
    per_unit = count(first, second, 1) - count(first, second, 0)
    return first, second, max(1, round((target - count(first, second, 0)) / per_unit))


# The MNIST baseline of 2017: three 5x5 convolutions of 256, 256, 128 channels, layers of 328 and 192 units.
register_model(
    name="cnn_baseline",
    builder=CNN,
    info=ModelInfo(
        title="Dynamic Routing Between Capsules",
        year=2017,
        arxiv="1710.09829",
        img_size=(28, 28),
        in_chans=1,
        num_classes=10,
        parameters=35_445_522,
        published="MNIST test error 0.39 % (the paper's baseline)",
    ),
)

# The MultiMNIST baseline of 2017: convolutions of 512 (9x9) and 256 channels (5x5) with pooling, 1024 units.
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

# The smallNORB baseline of 2018: 5x5 convolutions of 32 and 64 channels with pooling, 1024 units with dropout.
register_model(
    name="cnn_smallnorb",
    builder=CNN,
    info=ModelInfo(
        title="Matrix capsules with EM routing",
        year=2018,
        arxiv="",
        img_size=(32, 32),
        in_chans=2,
        num_classes=5,
        parameters=4_253_349,
        published="smallNORB test error 5.2 % (the paper's baseline)",
    ),
    channels=(32, 64),
    kernels=(5, 5),
    pool=True,
    hidden=(1024,),
)


@register_model(
    ModelInfo(
        title="A CNN as large as a capsule network",
        year=2018,
        arxiv="",
        img_size=(28, 28),
        in_chans=1,
        num_classes=10,
        parameters=8_214_827,
        published="none: the comparison that capsule figures need",
    )
)
def cnn_matched(*, match: str = "capsnet", **options: Any) -> CNN:
    """A CNN with as many parameters as the model `match` with these options; see `matched_cnn`."""
    return matched_cnn(match, **options)
