"""SR-CapsNet: capsules on a ResNet-20 that choose their parents by themselves, and other heads.

Taeyoung Hahn, Myeongjang Pyeon, Gunhee Kim, "Self-Routing Capsule Networks", NeurIPS 2019, with the
heads that they compare; sizes as in the authors' code. Differs from them in: sizes follow the
images; the choice of classes starts at random numbers, because zeros pass no gradient to the layers
below; votes start at the scale of the poses; the classes of self-routing get a pose, the mean of
their children's, which no loss uses; dynamic routing in depth 2 leaves out a batch norm that the
authors build and do not use (1,024 numbers); depth 2 halves the map of the six convolutions once
more, which theirs keeps; EM routing is this library's, which starts from its own temperatures.
"""

from functools import partial
from math import prod
from typing import Any, Literal, get_args

from torch import nn

from torchcaps.errors import ArgumentError, check_known, check_range
from torchcaps.functional.fields import ConvField, DenseField
from torchcaps.functional.squash import full_precision, squash_with_length
from torchcaps.models._base import Classes, FeatureMap, ImageModel, Images, ImageSize, PlainNetwork
from torchcaps.models._registry import ModelInfo, register_model
from torchcaps.models.matrix_caps import temperature
from torchcaps.models.resnet import convolution, residual_trunk
from torchcaps.nn import LinearVotes, MatrixVotes, PoseVotes, RoutedLayer
from torchcaps.types import Capsules, LayerSizes, ModelSpec

Backbone = Literal["resnet20", "convnet"]
PlainHead = Literal["average", "linear"]
CapsuleHead = Literal["self_routing", "dynamic", "em"]
Head = Literal[PlainHead, CapsuleHead]
# Channels and stride of each 3x3 convolution.
CONVNET = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2))
TYPES = 32
DIM = 16
EM_GAIN = 0.5  # see `MatrixCaps`
PARENT_LENGTH = 0.4  # length of a parent's sum at the start


def make_trunk(backbone: Backbone, in_chans: int) -> tuple[nn.Sequential, int, int]:
    """The layers before the head, their channels, and how often they halve the map."""
    check_known("backbone", backbone, Backbone)
    if backbone == "resnet20":
        return residual_trunk(in_chans), 64, 2
    layers = nn.Sequential()
    below = in_chans
    for above, stride in CONVNET:
        layers.append(convolution(below, above, stride))
        below = above
    return layers, below, 3


def num_positions(img_size: tuple[int, int], halvings: int) -> int:
    """Positions of a map that was halved so often, rounded up."""
    return prod(-(-side // 2**halvings) for side in img_size)


class PlainHeadNetwork(PlainNetwork):
    """The backbone with a head without capsules.

    Args:
        num_classes: number of classes.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        head: "average", of the map, or "linear", a convolution and a linear map of all of its map.
        backbone: see `SRCapsNet`.
        options: `multilabel` and `standardized`; see `PlainNetwork`.
    """

    def __init__(
        self,
        num_classes: int,
        in_chans: int,
        img_size: ImageSize,
        *,
        head: PlainHead,
        backbone: Backbone = "resnet20",
        **options: bool,
    ) -> None:
        trunk, channels, halvings = make_trunk(backbone, in_chans)
        super().__init__(num_classes, in_chans, img_size, smallest=2**halvings + 1, **options)
        self.trunk = trunk
        self.head = None
        if head == "linear":
            self.head = convolution(channels, TYPES * DIM)
            channels = TYPES * DIM * num_positions(self.img_size, halvings)
        self.classes_layer = nn.Linear(channels, num_classes)

    def scores(self, x: Images) -> Classes:
        x = self.trunk(x)
        x = x.mean(dim=(2, 3)) if self.head is None else self.head(x).flatten(1)
        return self.classes_layer(x)


class BranchedPrimaryCaps(nn.Module):
    """3x3 convolutions with batch norm, one for poses and one for activations.

    Args:
        channels: of the map below.
        types: capsules at a position.
        dim: dimensions of a pose.
        squashed: poses are squashed, and activations are their lengths.
    """

    def __init__(self, channels: int, types: int, dim: int, *, squashed: bool) -> None:
        super().__init__()
        self.types = types
        self.pose = convolution(channels, types * dim, relu=False)
        self.activation = None if squashed else convolution(channels, types, relu=False)

    def forward(self, x: FeatureMap) -> Capsules:
        """Capsules of a map: pose `[batch, rows, columns, types, dim]`."""
        pose = self.pose(x).movedim(1, -1).unflatten(-1, (self.types, -1))
        if self.activation is None:
            return squash_with_length(pose)
        activation = full_precision(self.activation(x)).sigmoid()
        return Capsules(full_precision(pose), activation.movedim(1, -1))


class SRCapsNet(ImageModel):
    """Backbone -> primary capsules -> (depth 2: a convolution of capsules) -> class capsules.

    Args:
        num_classes: number of classes.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        routing: "self_routing", whose activations are shares that sum to one, "dynamic" or "em".
        depth: layers of routed capsules, 1 or 2.
        backbone: "resnet20", or the "convnet" of six convolutions that the paper has for smallNORB.
        types: capsules at each position.
        dim: of a pose; for "em" a square number.
        uniform: the ablation: every coupling equal. It holds for all layers of "dynamic" and "em".
            The couplings of self-routed classes are the output, so that they stay, and the ablation
            needs depth 2.
        standardized: give every image mean 0 and standard deviation 1 first.

    Raises:
        ValueError: for another depth, and for an ablation of self-routed classes; see also
            `ImageModel`.
    """

    spec = ModelSpec(pose=True, loss="likelihood")

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: ImageSize = 32,
        *,
        routing: CapsuleHead = "self_routing",
        depth: int = 1,
        backbone: Backbone = "resnet20",
        types: int = TYPES,
        dim: int = DIM,
        uniform: bool = False,
        standardized: bool = False,
    ) -> None:
        check_range("depth", depth, low=1, high=2)
        if uniform and depth == 1 and routing == "self_routing":
            raise ArgumentError(
                "uniform",
                "expected depth 2, for the couplings of self-routed classes are the answer itself",
            )
        trunk, channels, halvings = make_trunk(backbone, in_chans)
        halvings += depth - 1
        smallest = 2**halvings + 1  # leaves more than one position: batch norm needs two
        super().__init__(num_classes, in_chans, img_size, smallest=smallest, types=types, dim=dim)
        self.standardized = standardized
        self.trunk = trunk
        self.primary = BranchedPrimaryCaps(channels, types, dim, squashed=routing == "dynamic")
        self.conv_capsules = None
        self.norm = None
        if depth == 2:
            self.conv_capsules = make_routed_layer(
                routing,
                LayerSizes(9 * types, dim, types, dim),
                partial(ConvField, kernel=3, stride=2, padding=1, convention="type"),
                primary=True,
                uniform=uniform,
            )
            if routing != "dynamic":
                self.norm = nn.BatchNorm2d(types * dim)
        self.class_capsules = make_routed_layer(
            routing,
            LayerSizes(types * num_positions(self.img_size, halvings), dim, num_classes, dim),
            DenseField,
            primary=depth == 1,
            uniform=uniform and routing != "self_routing",
        )
        self.declare(activation=self.class_capsules.router.activation)

    def capsules(self, images: Images) -> Capsules:
        # 32 types of dim 16 at each of 8x8 positions, for 32x32 images.
        capsules = self.primary(self.trunk(self._prepare(images)))
        if self.conv_capsules is not None:
            capsules = self.conv_capsules(capsules)  # 32 types at 4x4 positions
        if self.norm is not None:  # each number of a pose, over the batch and the map
            pose = capsules.pose
            x = self.norm(pose.flatten(3).movedim(-1, 1).to(self.norm.weight.dtype))
            pose = full_precision(x).movedim(1, -1).unflatten(3, pose.shape[3:])
            capsules = Capsules(pose, capsules.activation)
        return self.class_capsules(capsules)


def make_routed_layer(
    routing: CapsuleHead,
    sizes: LayerSizes,
    field: Any,
    *,
    primary: bool,
    uniform: bool,
) -> RoutedLayer:
    """A layer of one of the heads.

    Args:
        routing: name of the head.
        sizes: of the layer.
        field: `DenseField` for classes; those of self-routing have no matrices.
        primary: whether the children are primary capsules.
        uniform: make every coupling equal.
    """
    check_known("routing", routing, CapsuleHead)
    votes: nn.Module
    options: dict[str, float] = {}
    if routing == "em":
        votes = MatrixVotes(sizes)
        options = temperature(EM_GAIN, sizes.children / sizes.parents, 3, round(sizes.dim**0.5))
    elif routing == "self_routing" and field is DenseField:
        votes = PoseVotes(sizes)
    else:
        std = None
        if routing == "self_routing":
            std = sizes.in_dim**-0.5
        elif primary:  # normed poses are about one long when squashed, not a tenth
            std = PARENT_LENGTH * sizes.parents / (sizes.children * sizes.dim) ** 0.5
        votes = LinearVotes(sizes, init_std=std)

    layer = RoutedLayer(votes, routing, field, **options)
    router: Any = layer.router
    if isinstance(votes, PoseVotes):
        nn.init.normal_(router.choice, std=sizes.in_dim**-0.5)  # logits of normed poses: about 1
    if uniform:
        layer.router = router.uniform()
    return layer


@register_model(
    ModelInfo(
        title="Self-Routing Capsule Networks",
        year=2019,
        img_size=(32, 32),
        in_chans=3,
        parameters=931_664,
        published="CIFAR-10 test error 8.17 ± 0.18 % (depth 1), 7.86 ± 0.12 % (depth 2)",
        purpose="one gate in place of iterations, on a residual network",
    )
)
def sr_capsnet(*, head: Head = "self_routing", **options: Any) -> SRCapsNet | PlainHeadNetwork:
    """ResNet-20 with a head of self-routed capsules, or with one that it was compared with.

    Args:
        head: a head of capsules, see `SRCapsNet`, or a plain one, see `PlainHeadNetwork`.
        options: of that network.
    """
    check_known("head", head, Head)
    name: Any = head
    if head in get_args(PlainHead):
        return PlainHeadNetwork(head=name, **options)
    return SRCapsNet(routing=name, **options)
