"""DeepCaps: images to class capsules through four cells of convolutional capsules.

Jathushan Rajasegaran, Vinoj Jayasundara, Sandaru Jayasekara, Hirunima Jayasekara, Suranga
Seneviratne, Ranga Rodrigo, "DeepCaps: Going Deeper with Capsule Networks", CVPR 2019, arXiv
1904.09546, and the authors' code.

The stages for images of 64x64 pixels (types of capsules x dimensions of each):

    stem                3x3 convolution, ReLU, batch norm       64x64, 128 channels
    cell 1              capsules, halves the map                32x32, 32 x 4
    cell 2              the same                                16x16, 32 x 8
    cell 3              the same                                8x8, 32 x 8
    cell 4              the same, its skip is routed            4x4, 32 x 8
    class capsules      of cells 4 and 3, 512 + 2048 children   10 of 32
    decoder             of one class capsule                    64x64

A capsule is a vector, its pose; its length says how probable its entity is. A *map* has capsules of
`types` types at each pixel, as channels `[batch, types * dim, rows, columns]`: `dim` numbers of the
first type, then of the second. `squash(s) = |s|^2 / (1 + |s|^2) s / |s|` makes lengths below one;
the output of a cell is a sum of two squashed maps, with lengths below two. In *routing* each
capsule (child) votes for capsules above it (parents); its votes are weighed by couplings, which
grow over iterations with the agreement of vote and parent.

Differs from the paper and the code in: the sizes of maps and of the decoder follow those of the
images; convolutions of stride 2 are padded by one pixel on every side; the epsilon of batch norm is
torch's, 1e-5, where Keras has 1e-3; capsules and positions keep their axes before the routed skip,
where the code mixes them; weights of the class capsules start from a normal distribution (see
CapsuleLinear), not from Glorot's rule; the decoder ends in a sigmoid in place of a ReLU, so that
images stay in [0, 1].
"""

from functools import partial
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import ArgumentError
from torchcaps.functional import squash
from torchcaps.models._base import DrawingModel, FeatureMap, Images, ImageShape, ImageSize
from torchcaps.models._registry import ModelInfo, register_model, register_variant
from torchcaps.nn import CapsuleLinear, RoutedLayer
from torchcaps.nn.map_routing import KernelVotes, MapRouting, global_competition, per_position
from torchcaps.types import Capsules, LayerSizes, ModelSpec

NUM_CELLS = 4  # each halves the map; odd sides are rounded up
MIN_IMG_SIZE = 16  # pixels along a side, of which the last cell leaves one
DECODER_CHANNELS = (16, 64, 32, 16, 8)  # of the small map, and after each layer but the last
MAX_START = 8  # side of the small map up to which no more doublings are added
MAX_DOUBLINGS = len(DECODER_CHANNELS) - 2  # above 64 pixels the small map exceeds MAX_START


class ConvCapsules(nn.Conv2d):
    """A 3x3 convolution whose channels at a pixel are grouped into capsules and squashed.

    It stands for one iteration of routing: with equal couplings, the sum of the votes of all
    capsules in a window is a convolution. It has no bias.

    Args:
        in_channels: channels of the map below, types times dimensions where it has capsules.
        types: number of capsules at a pixel.
        dim: dimensions of a capsule.
        stride: of the convolution; 2 halves the map.
    """

    def __init__(self, in_channels: int, types: int, dim: int, stride: int = 1) -> None:
        super().__init__(in_channels, types * dim, 3, stride, padding=1, bias=False)
        self.dim = dim
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: FeatureMap) -> FeatureMap:
        s = super().forward(x.to(self.weight.dtype))
        s = s.unflatten(1, (-1, self.dim))  # [batch, types, dim, rows, columns]
        return squash(s, dim=2).flatten(1, 2)


class RoutedSkip(RoutedLayer):
    """The paper's 3-D convolution based dynamic routing, between maps of one size.

    `V_pij` is the vote of child type i for the parent of type j at position p: a 3x3 convolution of
    the map of type i, whose kernel all child types share (`KernelVotes`).

        b_pij = 0
        repeat:
            k_i = softmax of b_i over all positions p and parent types j together
            S_pj = sum_i k_pij V_pij + B_j
            v_pj = S_pj n_j / (1 + n_j^2) with n_j^2 = sum_p |S_pj|^2, a squash of the whole map
            b_pij += <V_pij, v_pj>, except in the last iteration

    `RoutedLayer` runs a router (`MapRouting`, these equations) on votes; its third argument says
    which parents compete in the softmax.

    Args:
        types: capsules at a pixel, of children and parents.
        dim: dimensions of a capsule.
        iterations: of the routing.
        local: let the parents at one position alone compete, and squash each parent by itself.
    """

    def __init__(self, types: int, dim: int, iterations: int, local: bool) -> None:
        votes = KernelVotes(LayerSizes(types, dim, types, dim))
        competition = per_position if local else global_competition
        super().__init__(votes, MapRouting(iterations, local=local), competition)

    def route_map(self, x: FeatureMap) -> FeatureMap:
        """Parents as channels of a map, of children as channels of a map."""
        sizes = self.votes.sizes
        children = x.unflatten(1, (sizes.children, sizes.in_dim))
        children = children.permute(0, 3, 4, 1, 2)  # [batch, rows, columns, types, dim]
        return self(children).pose.flatten(3).movedim(-1, 1)


class CapsuleCell(nn.Module):
    """A layer of capsules that halves the map, two more, and a skip from the first that is added.

    Args:
        in_channels: channels of the map below.
        types: number of capsules at a pixel.
        dim: dimensions of a capsule.
        skip: the module on the skip, a routed layer; by default a layer of capsules.
    """

    def __init__(
        self,
        in_channels: int,
        types: int,
        dim: int,
        skip: RoutedSkip | None,
    ) -> None:
        super().__init__()
        layer = partial(ConvCapsules, types * dim, types, dim)
        self.first = ConvCapsules(in_channels, types, dim, stride=2)
        self.second = layer()
        self.third = layer()
        self.skip = layer() if skip is None else skip

    def forward(self, x: FeatureMap) -> FeatureMap:
        x = self.first(x)
        skip = self.skip.route_map(x) if isinstance(self.skip, RoutedSkip) else self.skip(x)
        return self.third(self.second(x)) + skip


class ClassIndependentDecoder(nn.Module):
    """Draws an image from the pose of one class capsule, without its class.

    A linear layer makes a small map, transposed convolutions double it up to the size of the image.
    As in the authors' code there is no nonlinearity between them.

    Args:
        dim: dimensions of a class capsule.
        image_shape: (channels, height, width).

    Shapes:
        input `[batch, classes, dim]`, where all poses but one are zero; output
        `[batch, *image_shape]` in [0, 1].
    """

    published_shape = (3, 64, 64)  # of the authors' images

    def __init__(self, dim: int, image_shape: ImageShape) -> None:
        super().__init__()
        image_channels, height, width = image_shape
        self.size = (height, width)
        num_doublings = 0
        while num_doublings < MAX_DOUBLINGS and max(self.size) > (MAX_START << num_doublings):
            num_doublings += 1
        # Height and width of the small map; sides are rounded up, and the image is cut to its size.
        rows = -(-height >> num_doublings)
        columns = -(-width >> num_doublings)
        in_channels = DECODER_CHANNELS[0]
        self.linear = nn.Linear(dim, in_channels * rows * columns)
        self.norm = nn.Sequential(
            nn.ReLU(),
            nn.Unflatten(1, (in_channels, rows, columns)),
            nn.BatchNorm2d(in_channels, momentum=0.2),  # 0.8 in the code, by Keras's convention
        )
        # Layers that double the map stand between two that keep its size.
        strides = [1] + num_doublings * [2] + [1]
        channels = [*DECODER_CHANNELS[1 : len(strides)], image_channels]
        self.layers = nn.Sequential()
        for out_channels, stride in zip(channels, strides, strict=True):
            self.layers.append(
                nn.ConvTranspose2d(
                    in_channels, out_channels, 3, stride, padding=1, output_padding=stride - 1
                )
            )
            in_channels = out_channels
        self.layers.append(nn.Sigmoid())

    def forward(self, masked: Float[Tensor, "batch classes dim"]) -> Images:
        pose = masked.sum(dim=1).to(self.linear.weight.dtype)  # the one that is not zero
        images = self.layers(self.norm(self.linear(pose)))
        height, width = self.size
        return images[:, :, :height, :width]


# The network of the authors' code: 13.4 million parameters on images of 64x64 pixels, 8.5 million
# on 28x28.
@register_model(
    ModelInfo(
        title="DeepCaps: Going Deeper with Capsule Networks",
        year=2019,
        arxiv="1904.09546",
        img_size=(64, 64),
        in_chans=3,
        parameters=13_426_995,
        published="CIFAR-10 test error 7.26 % (7 networks)",
        purpose="a deep capsule network for color images",
    ),
    name="deepcaps",
)
class DeepCaps(DrawingModel):
    """Convolution -> four cells of capsule layers with skips -> class capsules -> decoder.

    Outputs are lengths of class capsules, `[batch, num_classes]` in [0, 1). `DrawingModel` is the
    base of models whose `reconstruct` draws images by the decoder, which does not see the class.

    Args:
        num_classes: number of classes.
        in_chans: channels of the images.
        img_size: height and width of the images, at least 16, or one number for both.
        channels: channels of the first convolution.
        types: number of capsules at a pixel, in every cell.
        dims: dimensions of the capsules of each of the four cells; the last two are alike.
        class_dim: dimensions of a class capsule.
        iterations: of both routings, in the last cell's skip and in the class capsules; 1 is equal
            couplings.
        local: in the last cell let the parents of one position alone compete, and squash each
            parent by itself. The authors' code has all positions compete for a child type, and
            squashes a parent type's whole map at once.
        decoder: whether to build the decoder; None is False. It draws large images smaller; see
            `draw_size`.

    Raises:
        ValueError: for other `dims`, a size below 1, or images that are too small.
    """

    # What tasks and reports may ask of the model; `_add_decoder` adds the decoder.
    spec = ModelSpec(pose=True, activation="length", smallest=MIN_IMG_SIZE, loss="margin")

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
        decoder: bool | None = True,
    ) -> None:
        super().__init__(
            num_classes,
            in_chans,
            img_size,
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

        # The capsules of cells 3 and 4 vote for the classes. Each halving is rounded up.
        num_positions = prod(-(-side >> 4) for side in self.img_size)
        num_positions += prod(-(-side >> 3) for side in self.img_size)
        # Every child has matrices of its own; routing by agreement (arXiv 1710.09829).
        self.class_capsules = CapsuleLinear(
            types * num_positions,
            self.dim,
            num_classes,
            class_dim,
            bias=True,
            iterations=iterations,
        )
        # CapsuleLinear starts with equal biases, which would leave poses of classes nearly equal.
        nn.init.normal_(self.class_capsules.votes.bias, std=0.1)
        self.decoder = None
        if decoder:
            self._add_decoder(ClassIndependentDecoder, class_dim)

    def capsules(self, images: Images) -> Capsules:
        """Class capsules of images.

        Args:
            images: `[batch, channels, height, width]` in [0, 1].

        Returns:
            Poses `[batch, num_classes, class_dim]`, and their lengths in [0, 1) as activations.
        """
        # The shapes are those of images of 64x64 pixels. `_prepare` checks the images.
        x = self.stem(self._prepare(images))  # [batch, 128, 64, 64]
        maps: list[Tensor] = []
        for cell in self.cells:
            x = cell(x)  # [batch, 128, 32, 32], then [256, 16, 16], [256, 8, 8], [256, 4, 4]
            maps.append(x)
        children = torch.cat([self._as_children(maps[3]), self._as_children(maps[2])], dim=1)
        return self.class_capsules(children)  # [batch, 512 + 2048, 8] to [batch, 10, 32]

    def _as_children(self, x: FeatureMap) -> Float[Tensor, "batch children dim"]:
        """The capsules of a map, all positions of the first type first."""
        return x.unflatten(1, (-1, self.dim)).movedim(2, -1).flatten(1, 3)


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
