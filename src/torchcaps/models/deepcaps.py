"""DeepCaps.

Jathushan Rajasegaran, Vinoj Jayasundara, Sandaru Jayasekara, Hirunima Jayasekara, Suranga
Seneviratne, Ranga Rodrigo, "DeepCaps: Going Deeper with Capsule Networks", CVPR 2019, arXiv
1904.09546, and the authors' code. Differs from them in: sizes follow the images; convolutions of
stride 2 are padded on both sides alike; capsules and positions keep their axes before the routed
skip, where the code mixes them; weights of the class capsules start from this library's rule (see
CapsuleLinear); the decoder ends in a sigmoid in place of a ReLU, so that images stay in [0, 1].
"""

from functools import partial
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import ArgumentError
from torchcaps.functional import squash
from torchcaps.models._base import DrawingModel, FeatureMap, Images, ImageSize
from torchcaps.models._registry import ModelInfo, register_model, register_variant
from torchcaps.nn import CapsuleLinear, RoutedLayer
from torchcaps.nn.map_routing import KernelVotes, MapRouting, global_competition, per_position
from torchcaps.types import Capsules, LayerSizes, ModelSpec

NUM_CELLS = 4  # each halves the map
SMALLEST = 16  # pixels that leave one position for the last cell
DECODER_CHANNELS = (16, 64, 32, 16, 8)
MAX_START = 8  # side of the largest map that the decoder starts from
MAX_DOUBLINGS = len(DECODER_CHANNELS) - 2


class ConvCapsules(nn.Conv2d):
    """A convolution whose channels at one pixel are grouped into capsules and squashed.

    It is one pass of routing, with equal couplings, and has no bias. Where the map below has
    capsules, its channels are types times dimensions.

    Args:
        in_channels: of the map below.
        types: capsules at a pixel.
        dim: dimensions of a capsule.
        stride: of the 3x3 convolution.
    """

    def __init__(self, in_channels: int, types: int, dim: int, stride: int = 1) -> None:
        super().__init__(in_channels, types * dim, 3, stride, padding=1, bias=False)
        self.dim = dim
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: FeatureMap) -> FeatureMap:
        s = super().forward(x.to(self.weight.dtype))
        return squash(s.unflatten(1, (-1, self.dim)), dim=2).flatten(1, 2)


class RoutedSkip(RoutedLayer):
    """3-D convolutional routing on capsules as channels: all child types share the kernel.

    Args:
        types: capsules at a pixel, of children and parents.
        dim: dimensions of a capsule.
        iterations: of the routing.
        local: see `DeepCaps`.
    """

    def __init__(self, types: int, dim: int, iterations: int, local: bool) -> None:
        votes = KernelVotes(LayerSizes(types, dim, types, dim))
        field = per_position if local else global_competition
        super().__init__(votes, MapRouting(iterations, local=local), field)

    def channels(self, x: FeatureMap) -> FeatureMap:
        """Parents as channels of a map, of children as channels of a map."""
        sizes = self.votes.sizes
        children = x.unflatten(1, (sizes.children, sizes.in_dim)).permute(0, 3, 4, 1, 2)
        return self(children).pose.flatten(3).movedim(-1, 1)


class CapsuleCell(nn.Module):
    """A layer of capsules that halves the map, two more, and a skip that is added.

    Args:
        in_channels: of the map below.
        types: capsules at a pixel.
        dim: dimensions of a capsule.
        skip: a routed layer; by default a layer of capsules.
    """

    def __init__(
        self, in_channels: int, types: int, dim: int, skip: RoutedSkip | None = None
    ) -> None:
        super().__init__()
        layer = partial(ConvCapsules, types * dim, types, dim)
        self.first = ConvCapsules(in_channels, types, dim, stride=2)
        self.second = layer()
        self.third = layer()
        self.skip = layer() if skip is None else skip

    def forward(self, x: FeatureMap) -> FeatureMap:
        x = self.first(x)
        skip = self.skip.channels(x) if isinstance(self.skip, RoutedSkip) else self.skip(x)
        return self.third(self.second(x)) + skip


class ClassIndependentDecoder(nn.Module):
    """Draws an image from the pose of one class capsule, without its class.

    Transposed convolutions double a small map. An input is `[batch, classes, dim]`, where all
    poses but one are zero, and the output `[batch, *image_shape]` in [0, 1].

    Args:
        dim: dimensions of a class capsule.
        image_shape: (channels, height, width).
    """

    def __init__(self, dim: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, *self.size = image_shape
        doublings = 0
        while doublings < MAX_DOUBLINGS and max(self.size) > MAX_START << doublings:
            doublings += 1
        start = [-(-side >> doublings) for side in self.size]
        below = DECODER_CHANNELS[0]
        self.linear = nn.Linear(dim, below * prod(start))
        self.norm = nn.Sequential(
            nn.ReLU(), nn.Unflatten(1, (below, *start)), nn.BatchNorm2d(below, momentum=0.2)
        )
        strides = [1] + doublings * [2] + [1]
        self.layers = nn.Sequential()
        for layer, stride in enumerate(strides):
            is_last = layer == doublings + 1
            above = channels if is_last else DECODER_CHANNELS[layer + 1]
            self.layers.append(
                nn.ConvTranspose2d(below, above, 3, stride, padding=1, output_padding=stride - 1)
            )
            below = above
        self.layers.append(nn.Sigmoid())

    def forward(self, masked: Float[Tensor, "batch classes dim"]) -> Images:
        pose = masked.sum(dim=1).to(self.linear.weight.dtype)
        images = self.layers(self.norm(self.linear(pose)))
        height, width = self.size
        return images[:, :, :height, :width]


class DeepCaps(DrawingModel):
    """Convolution -> four cells of capsule layers with skips -> class capsules -> decoder.

    Its outputs are lengths of class capsules, in [0, 1). The decoder is not told the class.

    Args:
        num_classes: number of classes.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        channels: of the first convolution.
        types: capsule types in every cell.
        dims: dimensions of the capsules of each of the four cells; the last two are alike.
        class_dim: dimensions of a class capsule.
        iterations: of both routings, in the last cell's skip and in the class capsules; 1 is equal
            couplings.
        local: in the last cell let the parents of one position alone compete, and squash each
            parent by itself. The authors' code has all positions compete for a child type, and
            squashes a parent type's whole map at once.
        decoder: whether to build the decoder.

    Raises:
        ValueError: for other `dims`; see also `ImageModel`.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: ImageSize = 64,
        *,
        channels: int = 128,
        types: int = 32,
        dims: tuple[int, int, int, int] = (4, 8, 8, 8),
        class_dim: int = 32,
        iterations: int = 3,
        local: bool = False,
        decoder: bool = True,
    ) -> None:
        super().__init__(
            num_classes,
            in_chans,
            img_size,
            SMALLEST,
            channels=channels,
            types=types,
            class_dim=class_dim,
        )
        if len(dims) != NUM_CELLS or min(dims) < 1 or dims[-1] != dims[-2]:
            raise ArgumentError(
                "dims",
                f"expected {NUM_CELLS} numbers of at least 1, the last two alike, got {list(dims)}",
            )
        self.dim = dims[-1]
        self.stem = nn.Sequential(
            nn.Conv2d(in_chans, channels, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(channels)
        )
        routed_skip = RoutedSkip(types, self.dim, iterations, local)
        self.cells = nn.ModuleList()
        below = channels
        for number, dim in enumerate(dims, start=1):
            skip = routed_skip if number == NUM_CELLS else None
            self.cells.append(CapsuleCell(below, types, dim, skip))
            below = types * dim

        # The capsules of the last two maps vote for the classes.
        last = prod(-(-side >> NUM_CELLS) for side in self.img_size)
        second_to_last = prod(-(-side >> NUM_CELLS - 1) for side in self.img_size)
        self.class_capsules = CapsuleLinear(
            types * (last + second_to_last),
            self.dim,
            num_classes,
            class_dim,
            bias=True,
            iterations=iterations,
        )
        # Equal biases would leave poses of classes nearly equal.
        nn.init.normal_(self.class_capsules.votes.bias, std=0.1)
        self.decoder = None
        if decoder:
            self.decoder = ClassIndependentDecoder(class_dim, self.image_shape)
        self.spec = ModelSpec(
            pose=True, activation="length", decoder=decoder, smallest=SMALLEST, loss="margin"
        )

    def capsules(self, images: Images) -> Capsules:
        x = self.stem(self._prepare(images))  # [batch, 128, 64, 64], for 64x64 images
        maps: list[Tensor] = []
        for cell in self.cells:
            x = cell(x)  # 32 types of 4, 8, 8 and 8 dims at 32x32, 16x16, 8x8 and 4x4 positions
            maps.append(x)
        children = torch.cat([self._as_children(maps[-1]), self._as_children(maps[-2])], dim=1)
        return self.class_capsules(children)  # 512 + 2048 of dim 8 vote for 10 of dim 32

    def _as_children(self, x: FeatureMap) -> Float[Tensor, "batch children dim"]:
        return x.unflatten(1, (-1, self.dim)).movedim(2, -1).flatten(1, 3)


# The network of the authors' code: 13.4 million parameters on images of 64x64 pixels, 8.5 million
# on 28x28.
register_model(
    name="deepcaps",
    builder=DeepCaps,
    info=ModelInfo(
        title="DeepCaps: Going Deeper with Capsule Networks",
        year=2019,
        arxiv="1904.09546",
        img_size=(64, 64),
        in_chans=3,
        parameters=13_426_995,
        published="CIFAR-10 test error 7.26 % (7 networks)",
    ),
)

# A quarter of its width, and images that are not enlarged: for two CPU cores.
register_variant(
    "deepcaps_small",
    "deepcaps",
    img_size=(32, 32),
    parameters=906_115,
    channels=32,
    types=8,
    published="CIFAR-10 test error 7.26 % (7 networks of 13.4 million parameters)",
)
