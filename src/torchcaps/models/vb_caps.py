"""Capsules routed by variational Bayes.

Fabio De Sousa Ribeiro, Georgios Leontidis, Stefanos Kollias, "Capsule Routing via Variational
Bayes", AAAI 2020, arXiv 1905.11455, and the authors' code. Differs from them in: sizes follow the
images; couplings are shared over all parents of a child from the first iteration on (unless
`local_start`); votes for the classes have the coordinates of their positions, where the code adds
the same number at all of them; the costs beta, which a batch norm after them cancels, are left out;
the loss is the spread loss, where theirs is cross-entropy of activations.
"""

from typing import Any

import torch
from torch import nn

from torchcaps.errors import ArgumentError, check_positive
from torchcaps.functional.fields import Convention, DenseField
from torchcaps.functional.squash import full_precision
from torchcaps.models._base import FeatureMap, ImageModel, Images, ImageSize, Sizes, side_after
from torchcaps.models._registry import ModelInfo, register_model, register_variant
from torchcaps.nn import ClassCaps, ConvCaps, MatrixVotes, RoutedLayer
from torchcaps.types import Capsules, LayerSizes, ModelSpec

POSE = 4  # poses are 4 x 4 matrices
STEM = (5, 2)  # (kernel, stride) of the first convolution
# (kernel, stride) of the layers of convolutional capsules; without them, of the primary capsules.
LAYERS = ((3, 2), (3, 1))
SMALLEST = 17  # pixels that leave one position for the last map


class NormalizedPrimaryCaps(nn.Module):
    """`MatrixPrimaryCaps` with batch norms of poses and of activations.

    One norm is over all numbers of a type's poses, the other over their activations.

    Args:
        in_channels: of the map below.
        types: capsules at a position.
        kernel_size: of both convolutions.
        stride: of both convolutions.
    """

    def __init__(self, in_channels: int, types: int, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.types = types
        self.pose = nn.Conv2d(in_channels, types * POSE**2, kernel_size, stride, bias=False)
        self.activation = nn.Conv2d(in_channels, types, kernel_size, stride, bias=False)
        self.pose_norm = nn.BatchNorm3d(types)
        self.activation_norm = nn.BatchNorm2d(types)
        nn.init.xavier_uniform_(self.pose.weight)
        nn.init.xavier_uniform_(self.activation.weight)

    def forward(self, x: FeatureMap) -> Capsules:
        """Capsules of a map: pose `[batch, rows, columns, types, 16]`."""
        pose = self.pose_norm(self.pose(x).unflatten(1, (self.types, POSE**2)))
        activation = torch.sigmoid(full_precision(self.activation_norm(self.activation(x))))
        return Capsules(full_precision(pose).permute(0, 3, 4, 1, 2), activation.movedim(1, -1))


# Four layers of capsules, A = 64, B = 8, C = D = 16 as in the authors' code: 69 thousand
# parameters.
@register_model(
    ModelInfo(
        title="Capsule Routing via Variational Bayes",
        year=2020,
        arxiv="1905.11455",
        img_size=(32, 32),
        in_chans=2,
        num_classes=5,
        parameters=68_640,
        published="smallNORB test accuracy 98.7 %",
        purpose="EM routing as Bayesian inference, with few parameters",
    ),
    name="vb_caps",
)
class VBCaps(ImageModel):
    """Convolution -> primary capsules -> layers of convolutional capsules, or none -> classes.

    In training, outputs depend on the other images of the batch: every layer is batch-normalized.

    Args:
        num_classes: E, number of classes.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        channels: A, of the convolutions.
        primary_types: B, primary capsules per position.
        types: (C, D), capsule types of the two convolutional layers. `()` leaves both layers out:
            then primary capsules come from a 3 x 3 convolution of stride 2, and each has a matrix
            of its own for every class.
        convolutions: 1 as in the authors' code, or more: 3 x 3, of A channels each, at the size of
            the first map. The sizes of the paper's networks are those of 3.
        convention: which parents compete for a child in a convolution; see `ConvField.share`.
        standardized: give every image mean 0 and standard deviation 1 first.
        routing_options: of `nn.VBRouting`, in every layer, such as `iterations=1`, which is equal
            couplings.

    Raises:
        ValueError: for other types; see also `ImageModel`.
    """

    spec = ModelSpec(pose=True, activation="probability", smallest=SMALLEST, loss="spread")

    def __init__(
        self,
        num_classes: int = 5,
        in_chans: int = 2,
        img_size: ImageSize = 32,
        *,
        channels: int = 64,
        primary_types: int = 8,
        types: Sizes = (16, 16),
        convolutions: int = 1,
        convention: Convention = "all",
        standardized: bool = False,
        **routing_options: Any,
    ) -> None:
        super().__init__(
            num_classes,
            in_chans,
            img_size,
            channels=channels,
            primary_types=primary_types,
            convolutions=convolutions,
        )
        if len(types) not in (0, len(LAYERS)):
            raise ArgumentError(
                "types", f"expected {len(LAYERS)} numbers or none, got {list(types)}"
            )
        self.standardized = standardized
        options: dict[str, Any] = {"routing": "vb", "batch_norm": True} | routing_options
        self.stem = make_stem(in_chans, channels, convolutions)
        kernel, stride = (1, 1) if types else LAYERS[0]
        self.primary = NormalizedPrimaryCaps(channels, primary_types, kernel, stride)

        self.conv_capsules = nn.Sequential()
        below = primary_types
        for above, (kernel, stride) in zip(types, LAYERS, strict=False):
            check_positive(types=above)
            layer = ConvCaps(
                below, above, kernel, stride, pose_size=POSE, convention=convention, **options
            )
            self.conv_capsules.append(with_xavier_weights(layer, kernel**2))
            below = above

        windows = [STEM, *LAYERS[: len(types) or 1]]
        rows, columns = (side_after(side, windows) for side in self.img_size)
        if types:
            self.declare(any_size=True)
            options |= {"pose_size": POSE, "make_centers": coordinates}
            centers = (coordinates(rows), coordinates(columns))
            self.class_capsules = with_xavier_weights(
                ClassCaps(below, num_classes, centers=centers, **options)
            )
        else:
            sizes = LayerSizes(rows * columns * below, POSE**2, num_classes, POSE**2)
            dense = RoutedLayer(MatrixVotes(sizes), field=DenseField, **options)
            self.class_capsules = with_xavier_weights(dense, rows * columns)

    def capsules(self, images: Images) -> Capsules:
        x = self.stem(self._prepare(images))  # [batch, A, 14, 14], for 32x32 images
        primary = self.primary(x)  # B types at 14x14 positions
        above = self.conv_capsules(primary)  # C types at 6x6, D at 4x4
        return self.class_capsules(above)


def make_stem(in_chans: int, channels: int, convolutions: int) -> nn.Sequential:
    """Convolutions without bias, each with its batch norm and ReLU."""
    layers = nn.Sequential()
    for k in range(convolutions):
        if k == 0:
            conv = nn.Conv2d(in_chans, channels, *STEM, bias=False)
        else:
            conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        nn.init.kaiming_uniform_(conv.weight)
        layers.extend([conv, nn.BatchNorm2d(channels), nn.ReLU()])
    return layers


def coordinates(side: int) -> list[float]:
    """Coordinates of the positions along a side, in (0, 0.1], as in the authors' code."""
    return [(k + 1) / (10 * side) for k in range(side)]


def with_xavier_weights(layer: RoutedLayer, window: int = 1) -> RoutedLayer:
    """The layer with Xavier's weights: from identity matrices it learns much later.

    Args:
        layer: whose weights are drawn anew.
        window: number of positions that vote for a parent.
    """
    children, parents = layer.weight.shape[:2]
    bound = (6 / ((children + parents * window) * POSE**2)) ** 0.5
    nn.init.uniform_(layer.weight, -bound, bound)
    return layer


# Two layers of capsules, primary ones and classes, in the authors' code "tiny".
register_variant(
    "vb_caps_small",
    "vb_caps",
    parameters=206_144,
    published="smallNORB test accuracy 97.1 %",
    primary_types=16,
    types=(),
)
