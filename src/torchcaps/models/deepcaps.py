"""DeepCaps.

Jathushan Rajasegaran, Vinoj Jayasundara, Sandaru Jayasekara, Hirunima Jayasekara, Suranga Seneviratne, Ranga Rodrigo,
"DeepCaps: Going Deeper with Capsule Networks", CVPR 2019, arXiv 1904.09546, and the authors' code. Differs from them
in: sizes follow the images; convolutions of stride 2 are padded on both sides alike; capsules and positions keep their
axes before the routed skip, where the code mixes them; weights of the class capsules start from this library's rule
(see CapsuleLinear); the decoder ends in a sigmoid in place of a ReLU, so that images stay in [0, 1].
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

CELLS = 4  # each halves the map
SMALLEST = 16  # pixels that leave one position for the last cell
DRAWN = (16, 64, 32, 16, 8)  # channels of the decoder
# Side of the map from which the decoder draws, of images that so many layers of stride 2 can make of it.
LARGEST_START, MOST_DOUBLINGS = 8, len(DRAWN) - 2


class ConvCapsules(nn.Conv2d):
    """A convolution without bias whose channels at one pixel are grouped into capsules and squashed: one routing pass.

    Where the map below has capsules, its channels are types times dimensions."""

    def __init__(self, in_channels: int, types: int, dim: int, stride: int = 1) -> None:
        super().__init__(in_channels, types * dim, 3, stride, padding=1, bias=False)
        self.dim = dim
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: FeatureMap) -> FeatureMap:
        s = super().forward(x.to(self.weight.dtype))
        return squash(s.unflatten(1, (-1, self.dim)), dim=2).flatten(1, 2)


class RoutedSkip(RoutedLayer):
    """3-D convolutional routing on capsules as channels: the kernel is shared by all child types."""

    def __init__(self, types: int, dim: int, iterations: int, local: bool) -> None:
        votes = KernelVotes(LayerSizes(types, dim, types, dim))
        super().__init__(
            votes,
            MapRouting(iterations, local=local),
            per_position if local else global_competition,
        )

    def channels(self, x: FeatureMap) -> FeatureMap:
        """Parents as channels."""
        sizes = self.votes.sizes
        children = x.unflatten(1, (sizes.children, sizes.in_dim)).permute(0, 3, 4, 1, 2)
        return self(children).pose.flatten(3).permute(0, 3, 1, 2)


class CapsuleCell(nn.Module):
    """A layer of capsules that halves the map, two more, and a skip that is added: a layer, or a routed one."""

    def __init__(
        self, in_channels: int, types: int, dim: int, skip: nn.Module | None = None
    ) -> None:
        super().__init__()
        layer = partial(ConvCapsules, types * dim, types, dim)
        self.first = ConvCapsules(in_channels, types, dim, stride=2)
        self.second, self.third = layer(), layer()
        self.skip = layer() if skip is None else skip

    def forward(self, x: FeatureMap) -> FeatureMap:
        x = self.first(x)
        skip = self.skip.channels(x) if isinstance(self.skip, RoutedSkip) else self.skip(x)
        return self.third(self.second(x)) + skip


class ClassIndependentDecoder(nn.Module):
    """Draws an image from the pose of one class capsule, without being told its class: transposed convolutions."""

    def __init__(self, dim: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, *self.size = image_shape
        doublings = 0
        while doublings < MOST_DOUBLINGS and max(self.size) > LARGEST_START << doublings:
            doublings += 1
        start = [-(-side >> doublings) for side in self.size]
        width, *widths = DRAWN[: doublings + 2]
        self.linear = nn.Linear(dim, width * prod(start))
        self.norm = nn.Sequential(
            nn.ReLU(), nn.Unflatten(1, (width, *start)), nn.BatchNorm2d(width, momentum=0.2)
        )
        self.layers = nn.Sequential()
        for above, stride in zip((*widths, channels), (1, *[2] * doublings, 1), strict=True):
            self.layers.append(
                nn.ConvTranspose2d(width, above, 3, stride, padding=1, output_padding=stride - 1)
            )
            width = above
        self.layers.append(nn.Sigmoid())

    def forward(self, masked: Float[Tensor, "batch classes dim"]) -> Images:
        pose = masked.sum(dim=1).to(self.linear.weight.dtype)
        images = self.layers(self.norm(self.linear(pose)))
        return images[:, :, : self.size[0], : self.size[1]]


class DeepCaps(DrawingModel):
    """Convolution -> four cells of capsule layers with skips -> class capsules -> class-independent decoder.

    Its outputs are lengths of class capsules, in [0, 1).

    Args:
        channels: of the first convolution.
        types: capsule types in every cell.
        dims: dimensions of the capsules of each of the four cells; the last two are alike.
        class_dim: dimensions of a class capsule.
        iterations: of both routings, in the last cell's skip and in the class capsules; 1 is equal couplings.
        local: in the last cell let the parents of one position alone compete, and squash each parent by itself. The
            authors' code has all positions compete for a child type, and squashes a parent type's whole map at once.
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
        if len(dims) != CELLS or min(dims) < 1 or dims[-1] != dims[-2]:
            raise ArgumentError(
                "dims",
                f"expected {CELLS} numbers of at least 1, the last two alike, got {list(dims)}",
            )
        self.dim = dims[-1]
        self.stem = nn.Sequential(
            nn.Conv2d(in_chans, channels, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(channels)
        )
        widths = [channels, *(types * dim for dim in dims)]
        skips = [None, None, None, RoutedSkip(types, self.dim, iterations, local)]
        self.cells = nn.ModuleList(map(CapsuleCell, widths, [types] * CELLS, dims, skips))
        maps = [[-(-side >> k) for side in self.img_size] for k in (CELLS, CELLS - 1)]
        children = types * sum(map(prod, maps))
        self.class_capsules = CapsuleLinear(
            children, self.dim, num_classes, class_dim, bias=True, iterations=iterations
        )
        # Equal biases would leave poses of classes nearly equal.
        nn.init.normal_(self.class_capsules.votes.bias, std=0.1)
        self.decoder = None
        if decoder:
            self.decoder = ClassIndependentDecoder(class_dim, (in_chans, *self.img_size))
        self.spec = ModelSpec(
            pose=True, activation="length", decoder=decoder, smallest=SMALLEST, loss="margin"
        )

    def capsules(self, images: Images) -> Capsules:
        x = self.stem(self._prepare(images))  # [batch, 128, 64, 64], for 64x64 images
        children: list[Tensor] = []
        for cell in self.cells:
            x = cell(x)  # 32 types of 4, 8, 8 and 8 dims at 32x32, 16x16, 8x8 and 4x4 positions
            children.insert(0, x)
        poses = [x.unflatten(1, (-1, self.dim)).movedim(2, -1).flatten(1, 3) for x in children[:2]]
        return self.class_capsules(torch.cat(poses, dim=1))  # 512 + 2048 of dim 8, for 10 of dim 32


# The network of the authors' code: 13.4 million parameters on images of 64x64 pixels, 8.5 million on 28x28.
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
