"""Efficient-CapsNet.

Vittorio Mazzia, Francesco Salvetti, Marcello Chiaberge, "Efficient-CapsNet: capsule network with
self-attention routing", Scientific Reports 11, 2021, arXiv 2101.12491; sizes and constants as in
the authors' code (EscVM/Efficient-CapsNet). Differs from it in: the depthwise kernel follows the
image, so that any size can be taken; drawings of the decoder of smallNORB are cropped to the size
of the image; running statistics follow ten times as fast (theirs need hundreds of steps to forget
their start); the decoder starts with smaller weights, unless `init="keras"`.
"""

from collections.abc import Mapping
from typing import Any, Literal

from torch import nn

from torchcaps.errors import ArgumentError, check_known, check_range
from torchcaps.functional import steep_squash_with_length
from torchcaps.models._base import DrawingModel, Images, ImageSize, Sizes, side_after, side_before
from torchcaps.models._registry import ModelInfo, register_model, register_variant
from torchcaps.nn import CapsuleLinear, FullyConnectedDecoder
from torchcaps.nn.decoder import UpsamplingDecoder, truncated_normal_
from torchcaps.nn.primary import WholeMapConv2d
from torchcaps.types import Capsules, ModelSpec

CHANNELS = (32, 64, 64, 128)
PRIMARY_DIM = 8
CLASS_DIM = 16
# (kernel, stride) of each convolution.
MNIST = ((5, 1), (3, 1), (3, 1), (3, 2))
SMALLNORB = ((7, 2), (3, 1), (3, 1), (3, 2))
MULTIMNIST = ((5, 1), (3, 1), (3, 2), (3, 2))
SMALLEST_MAP = 2  # rows and columns of the last map: norms need more than one value
NORM_OPTIONS = {"eps": 1e-3}  # as Keras has it
DECODERS: dict[str, type[FullyConnectedDecoder | UpsamplingDecoder]] = {
    "dense": FullyConnectedDecoder,
    "upsampling": UpsamplingDecoder,
}


# The network for MNIST: 161,824 parameters, and 1,411,344 of the decoder.
@register_model(
    ModelInfo(
        title="Efficient-CapsNet: capsule network with self-attention routing",
        year=2021,
        arxiv="2101.12491",
        parameters=1_573_168,
        published="MNIST test error 0.26 %; 0.16 % with an ensemble",
        purpose="few parameters, routing by attention without iterations",
    ),
    name="efficient_capsnet",
)
class EfficientCapsNet(DrawingModel):
    """Convolutions -> one depthwise convolution over the whole map -> 16 capsules -> classes.

    The classes are routed by self-attention; their outputs are lengths, in [0, 1).

    Args:
        num_classes: number of classes.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        stem: (kernel, stride, channels, padding) of each convolution. Padding may be left out, as
            0, and of four convolutions the channels too. The last channels are a multiple of 8.
        edge: rows and columns at the end of the last map that no capsule sees; 1 in the published
            MultiMNIST network, whose 5x5 kernel steps over a 6x6 map in twos.
        norm: after each convolution: "batch" or "instance", the latter without running statistics.
        norm_first: normalize before the activation, as a port to PyTorch does; published is the
            activation first.
        norm_options: of the norms, as torch has them: `eps` (0.001 unless given) and `momentum`,
            the share of a batch in the running statistics (0.1; 0.01 in the authors' code).
        slope: of the activation below zero; 0 is ReLU.
        decoder: "dense" is CapsNet's, "upsampling" the one for smallNORB; True is "dense", False
            or None none. It draws large images smaller; see `draw_size`.
        layer_options: of `CapsuleLinear`, such as `scale=8.0`; `routing` is "self_attention" unless
            given. `init` goes to the decoder: "keras" starts it with the authors' weights.

    Raises:
        ValueError: for a stem that no image or no capsules fit; see also `ImageModel`.
    """

    spec = ModelSpec(pose=True, loss="margin")

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: ImageSize = 28,
        *,
        stem: tuple[Sizes, ...] = MNIST,
        edge: int = 0,
        norm: Literal["batch", "instance"] = "batch",
        norm_first: bool = False,
        norm_options: Mapping[str, Any] | None = None,
        slope: float = 0.0,
        decoder: bool | str | None = True,
        **layer_options: Any,
    ) -> None:
        sizes = complete_stem(stem)
        # Windows of convolutions without padding that leave a map of the same size.
        windows = [(kernel - 2 * padding, stride) for kernel, stride, _, padding in sizes]
        smallest = side_before(max(SMALLEST_MAP, 1 + edge), windows)
        super().__init__(num_classes, in_chans, img_size, smallest=smallest)
        check_range("slope", slope, low=0, high=1)

        self.stem = nn.Sequential()
        options = NORM_OPTIONS | dict(norm_options or {})
        below = in_chans
        for kernel, stride, above, padding in sizes:
            activation = nn.LeakyReLU(slope, inplace=True) if slope else nn.ReLU(inplace=True)
            after = [activation, make_norm(norm, above, options)]
            if norm_first:
                after.reverse()
            conv = nn.Conv2d(below, above, kernel, stride, padding)
            truncated_normal_(conv.weight, (2 / (below * kernel**2)) ** 0.5)  # Keras' "he_normal"
            self.stem.extend([conv, *after])
            below = above

        height, width = (side_after(side, windows) - edge for side in self.img_size)
        self.primary = WholeMapConv2d(below, (height, width))
        children = below // PRIMARY_DIM
        std = (2 / (num_classes * children * PRIMARY_DIM)) ** 0.5
        init = layer_options.pop("init", "torch")
        layer_options = {"routing": "self_attention", "init_std": std} | layer_options
        self.class_capsules = CapsuleLinear(
            children,
            PRIMARY_DIM,
            num_classes,
            CLASS_DIM,
            **layer_options,
        )
        self.declare(activation=self.class_capsules.router.activation)
        self.decoder = None
        if decoder not in (False, None):
            kind = "dense" if decoder is True else str(decoder)
            check_known("decoder", kind, DECODERS)
            self._add_decoder(DECODERS[kind], num_classes, CLASS_DIM, init=init)
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def capsules(self, images: Images) -> Capsules:
        features = self.primary(self.stem(self._prepare(images)))  # [batch, 128]: a whole map each
        features = features.unflatten(1, (-1, PRIMARY_DIM))
        primary = steep_squash_with_length(features)  # 16 of dim 8
        return self.class_capsules(primary)  # 10 of dim 16


def complete_stem(stem: tuple[Sizes, ...]) -> list[Sizes]:
    """Kernel, stride, channels and padding of each convolution; see `EfficientCapsNet`."""
    sizes: list[Sizes] = []
    for n, numbers in enumerate(stem):
        if len(numbers) == 2 and len(stem) == len(CHANNELS):
            numbers = (*numbers, CHANNELS[n])
        if len(numbers) == 3:
            numbers = (*numbers, 0)
        if len(numbers) != 4 or min(numbers[:3]) < 1 or not 0 <= 2 * numbers[3] < numbers[0]:
            raise ArgumentError(
                "stem",
                f"expected (kernel, stride, channels, padding below half a kernel), got {stem[n]}",
            )
        sizes.append(numbers)
    if not sizes or numbers[2] % PRIMARY_DIM:
        raise ArgumentError(
            "stem", f"expected a multiple of {PRIMARY_DIM} as the last channels, got {stem}"
        )
    return sizes


def make_norm(name: str, channels: int, options: dict[str, Any]) -> nn.Module:
    """The norm after a convolution, "batch" or "instance"."""
    if name == "batch":
        return nn.BatchNorm2d(channels, **options)
    check_known("norm", name, ("batch", "instance"))
    norm = nn.InstanceNorm2d(channels, **options, affine=True)
    for parameter in norm.parameters():  # the authors' choice
        nn.init.uniform_(parameter, -0.05, 0.05)
    return norm


# The network for 48x48 windows of smallNORB: 151,664 parameters, and 229,570 of the decoder.
register_variant(
    "efficient_capsnet_smallnorb",
    "efficient_capsnet",
    img_size=(48, 48),
    in_chans=2,
    num_classes=5,
    parameters=381_234,
    published="151 thousand parameters without the decoder (table 4)",
    stem=SMALLNORB,
    norm="instance",
    slope=0.3,
    decoder="upsampling",
)

# The network for pairs of digits: 154,656 parameters, and 1,936,144 of the decoder.
register_variant(
    "efficient_capsnet_multimnist",
    "efficient_capsnet",
    img_size=(36, 36),
    parameters=2_090_800,
    stem=MULTIMNIST,
    edge=1,
    published="154 thousand parameters without the decoder; its errors count each digit for a half",
)
