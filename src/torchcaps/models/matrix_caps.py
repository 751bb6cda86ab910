"""Matrix capsules with EM routing.

Geoffrey Hinton, Sara Sabour, Nicholas Frosst, "Matrix capsules with EM routing", ICLR 2018, figure
1. Differs from the paper in: sizes follow the images; weights, costs and inverse temperatures start
from this library's rules (see `MatrixCaps`), as the paper gives none. The network ends at its class
capsules: it has no decoder.
"""

from math import prod
from typing import Any

import torch
from torch import nn

from torchcaps.functional import receptive_centers
from torchcaps.functional.fields import Convention
from torchcaps.functional.routing.em import temperatures
from torchcaps.models._base import ImageModel, Images, ImageSize, side_after, side_before
from torchcaps.models._registry import ModelInfo, register_model, register_variant
from torchcaps.nn import ClassCaps, ConvCaps, MatrixPrimaryCaps
from torchcaps.nn.routers import check_iterations
from torchcaps.types import Capsules, ModelSpec

# (kernel, stride) of the convolution and of both layers of convolutional capsules.
LAYERS = ((5, 2), (3, 2), (3, 1))
CHILD_ACTIVATION = 0.5  # at the start
LOG_DEVIATION = -2.0  # of the votes for a parent, at the start
SMALLEST = 17  # pixels that leave one position for the last map


# The network of 2018 with A = B = C = D = 32: 310 thousand parameters.
@register_model(
    ModelInfo(
        title="Matrix capsules with EM routing",
        year=2018,
        img_size=(32, 32),
        in_chans=2,
        num_classes=5,
        parameters=316_650,
        published="smallNORB test error 1.8 % (3 iterations; 1.4 % with 13 crops per image)",
        purpose="matrix poses and EM routing: toys seen from all sides",
    ),
    name="matrix_caps",
)
class MatrixCaps(ImageModel):
    """Convolution -> primary capsules -> two layers of convolutional capsules -> class capsules.

    Args:
        num_classes: E, class capsules.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        channels: A, of the convolution.
        primary_types: B, primary capsules per position.
        types: (C, D), capsule types of the two convolutional layers.
        gain: by how much the logit of an activation rises at the start when the votes for a parent
            come closer by a factor e. It fixes the inverse temperatures, which the paper does not
            give, from the sizes of each layer.
        convention: which parents compete for a child in a convolution; see `ConvField.share`.
        coordinates: whether to add each position's coordinate to its votes for the classes.
        standardized: give every image mean 0 and standard deviation 1 first.
        layer_options: of every layer of capsules, as `ConvCaps` and `nn.EMRouting` have them:
            `pose_size` is 4 and `iterations` 3 unless given, and there may be `bias` and `impl`.
    """

    spec = ModelSpec(
        pose=True,
        activation="probability",
        smallest=SMALLEST,
        any_size=True,
        loss="spread",
    )

    def __init__(
        self,
        num_classes: int = 5,
        in_chans: int = 2,
        img_size: ImageSize = 32,
        *,
        channels: int = 32,
        primary_types: int = 32,
        types: tuple[int, int] = (32, 32),
        gain: float = 0.5,
        convention: Convention = "all",
        coordinates: bool = True,
        standardized: bool = False,
        **layer_options: Any,
    ) -> None:
        super().__init__(
            num_classes,
            in_chans,
            img_size,
            channels=channels,
            primary_types=primary_types,
        )
        self.standardized = standardized
        options: dict[str, Any] = {"pose_size": 4, "iterations": 3} | layer_options
        pose_size = options["pose_size"]
        check_iterations(options["iterations"])
        self.conv = nn.Conv2d(in_chans, channels, *LAYERS[0])
        self.primary = MatrixPrimaryCaps(channels, primary_types, pose_size)

        # All capsules of each layer, at all positions.
        num_primary = primary_types * self._num_positions(1)
        num_first = types[0] * self._num_positions(2)
        num_second = types[1] * self._num_positions(3)

        def options_for(children: int, parents: int) -> dict[str, Any]:
            return temperature(gain, children / parents, options["iterations"], pose_size) | options

        self.conv_capsules = nn.Sequential(
            ConvCaps(
                primary_types,
                types[0],
                *LAYERS[1],
                convention=convention,
                **options_for(num_primary, num_first),
            ),
            ConvCaps(
                types[0],
                types[1],
                *LAYERS[2],
                convention=convention,
                **options_for(num_first, num_second),
            ),
        )
        centers = None
        if coordinates:
            rows, columns = (receptive_centers(side, LAYERS) for side in self.img_size)
            centers = ([row / 100 for row in rows], [column / 100 for column in columns])
        self.class_capsules = ClassCaps(
            types[1],
            num_classes,
            centers=centers,
            make_centers=centers_of,
            **options_for(num_second, num_classes),
        )

    def _num_positions(self, layers: int) -> int:
        """Positions of the map after so many layers."""
        return prod(side_after(side, LAYERS[:layers]) for side in self.img_size)

    def capsules(self, images: Images) -> Capsules:
        x = torch.relu(self.conv(self._prepare(images)))  # [batch, A, 14, 14], for 32x32 images
        primary = self.primary(x)  # B types of 4x4 poses at each of 14x14 positions
        above = self.conv_capsules(primary)  # C types at 6x6 positions, then D at 4x4
        return self.class_capsules(above)  # E of them


def centers_of(positions: int) -> list[float]:
    """Coordinates of the positions along a side of a map of another size, as of its own size."""
    return [center / 100 for center in receptive_centers(side_before(positions, LAYERS), LAYERS)]


def temperature(gain: float, children: float, iterations: int, pose_size: int) -> dict[str, float]:
    """Options of an EM router with which a parent starts with this gain.

    `beta_a` then puts the activation of a parent near 1/2 when the logarithm of its votes'
    deviation is -2.

    Args:
        gain: see `MatrixCaps`.
        children: of a parent, its even share; half of them are active.
        iterations: of the routing.
        pose_size: side of the pose matrices.
    """
    rise = temperatures(iterations, 1.0)[-1]
    return {
        "inverse_temperature": gain / (children * CHILD_ACTIVATION * pose_size**2 * rise),
        "beta_a": gain * LOG_DEVIATION,
    }


# The smaller network of the paper: A = 64, B = 8, C = D = 16, 68 thousand parameters.
register_variant(
    "matrix_caps_small",
    "matrix_caps",
    parameters=68_618,
    published="smallNORB test error 2.2 %",
    channels=64,
    primary_types=8,
    types=(16, 16),
)
