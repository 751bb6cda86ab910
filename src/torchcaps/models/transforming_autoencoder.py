"""The transforming auto-encoder.

Geoffrey Hinton, Alex Krizhevsky, Sida Wang, "Transforming Auto-encoders", ICANN 2011, sections 2
and 3. It sees an image and a known transformation, and must draw the transformed image; the
transformation reaches the drawing only through the poses of its capsules. Differs from the paper
in: weights start from this library's rule.

Letters: b batch, k capsules, p pixels (of all channels), r recognition units, g generation units, d
numbers of a pose.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_known, check_shape
from torchcaps.functional.bounds import without_autocast
from torchcaps.models._base import DrawingModel, Images, ImageShape, ImageSize, no_decoder
from torchcaps.models._registry import ModelInfo, register_model
from torchcaps.transfer import to_device
from torchcaps.types import Capsules, ModelSpec

Pose = Literal["translation", "affine"]
PUBLISHED_SHAPE = (1, 28, 28)  # channels, height and width of the paper's images
REACH = 4.0  # pixels from the center over which generation units start spread out
SLOPE = 1 / 3  # per pixel, of their inputs


class TransformedPairs(NamedTuple):
    """Pairs of an image and its transformed image.

    Attributes:
        source: images in [0, 1].
        target: the same images, transformed.
        transformation: shifts (to the right, downwards) in pixels `[batch, 2]`, or matrices
            `[batch, 3, 3]` that map coordinates (x, y, 1) of the source to those of the target.
            Their origin is the center of the image, and their unit half of its longer side.
    """

    source: Images
    target: Images
    transformation: Tensor


# The auto-encoder of 2011 with 60 recognition units for the paper's 10, which are few to tell a
# place with.
@register_model(
    ModelInfo(
        title="Transforming Auto-encoders",
        year=2011,
        num_classes=0,
        parameters=1_914_210,
        published="pictures only",
        purpose="poses that follow a known shift: the first capsules, of 2011",
    ),
    name="transforming_autoencoder",
    recognition=60,
)
class TransformingAutoencoder(DrawingModel):
    """Capsules that recognize a pose and a presence, transform the pose, and draw.

    Each capsule k, with weights of its own:

        h = sigmoid(R x),  pose = A h,  p = sigmoid(w h)         recognition
        pose' = pose + shift,  or  T pose                        the known transformation
        g = sigmoid(G pose'),  contribution = p (O g)            generation

    The image is the sum of the contributions. All five maps have biases.

    Args:
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        capsules: their number; 30 in the paper's experiment with shifted digits.
        recognition: sigmoid units of each capsule that recognize; 10 there.
        generation: sigmoid units of each capsule that draw; 20 there.
        pose: "translation": (x, y) in pixels, to which a shift is added; "affine": a 3x3 matrix A,
            flat and row-major, which a transformation T turns into T A.
        constrained: of affine poses six numbers are recognized, and the last row is (0, 0, 1).
        bounded: the image is the sigmoid of the sum, in (0, 1); else the sum, without bounds.
        decoder: whether there are generation units, which training needs; None is False.

    Raises:
        ValueError: for constrained translations; see also `ImageModel`.
    """

    spec = ModelSpec(pose=True, activation="probability", task="transform", loss="reconstruction")

    def __init__(
        self,
        in_chans: int = 1,
        img_size: ImageSize = 28,
        *,
        capsules: int = 30,
        recognition: int = 10,
        generation: int = 20,
        pose: Pose = "translation",
        constrained: bool = False,
        bounded: bool = False,
        decoder: bool | None = True,
    ) -> None:
        super().__init__(
            None,
            in_chans,
            img_size,
            capsules=capsules,
            recognition=recognition,
            generation=generation,
        )
        check_known("pose", pose, Pose)
        if constrained and pose != "affine":
            raise ArgumentError("constrained", f"expected affine poses, got {pose!r}")
        self.num_capsules = capsules
        self.pose = pose
        self.constrained = constrained
        self.bounded = bounded
        self.pose_dim = 2 if pose == "translation" else 9
        maps = {
            "recognize": (math.prod(self.image_shape), recognition),  # R
            "place": (recognition, 6 if constrained else self.pose_dim),  # A
            "gate": (recognition, 1),  # w
        }
        self.weight, self.bias = affine_parameters(capsules, maps)
        if decoder:
            build = partial(generation_parameters, capsules, self.pose_dim, generation)
            weight, bias = build(self._choose_shape(build, PUBLISHED_SHAPE))
            self.weight.update(weight)
            self.bias.update(bias)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weights anew.

        Presences start near 1/2, and generation units tile the middle of the canvas.
        """
        for name in ("recognize", "gate", "draw"):
            if name in self.weight:
                weight = self.weight[name]
                bound = math.sqrt(3.0) * math.sqrt(2.0 / sum(weight.shape[1:]))  # Glorot's rule
                nn.init.uniform_(weight, -bound, bound)
                nn.init.zeros_(self.bias[name])

        # In units of the pose; an affine pose starts at the identity.
        pixel = 1.0
        start = torch.zeros(2)
        if self.pose == "affine":
            pixel = 2 / max(self.img_size)
            start = torch.eye(3).flatten()
        nn.init.normal_(self.weight["place"], std=pixel)
        self.bias["place"].copy_(start[: self.bias["place"].shape[1]])
        if self.spec.decoder:
            self.weight["draw"].mul_(0.1)  # thirty capsules at once must not drown the image
            generate = self.weight["generate"]
            nn.init.normal_(generate, std=SLOPE / pixel)
            # Units are 1/2 at poses around the start, at most this far along each dimension.
            reach = REACH * pixel
            centers = torch.empty_like(generate).uniform_(-reach, reach)
            centers += start.to(generate).unsqueeze(-1)
            self.bias["generate"].copy_(-(generate * centers).sum(dim=1))

    def capsules(self, images: Images) -> Capsules:
        """Capsules of images.

        Args:
            images: `[batch, channels, height, width]` in [0, 1].

        Returns:
            Pose `[batch, capsules, 2 or 9]`, presence `[batch, capsules]` in [0, 1].
        """
        self._check(images)
        x = images.flatten(1)
        h = torch.einsum("bp,kpr->bkr", x, self.weight["recognize"]) + self.bias["recognize"]
        h = h.sigmoid()
        with without_autocast(x):  # half precision would round away small differences of places
            h = h.to(self.weight["place"].dtype)
            pose = affine_maps(h, self.weight["place"], self.bias["place"])
            presence = affine_maps(h, self.weight["gate"], self.bias["gate"]).sigmoid()
        if self.constrained:
            last_row = to_device(torch.tensor([0.0, 0.0, 1.0]), pose)
            pose = torch.cat([pose, last_row.expand(pose.shape[0], self.num_capsules, 3)], dim=-1)
        return Capsules(pose, presence.squeeze(-1))

    def move(self, capsules: Capsules, transformation: Tensor) -> Capsules:
        """Transform the poses of capsules: `pose + shift`, or `T A`.

        Args:
            capsules: of images.
            transformation: shifts in pixels `[batch, 2]`, or matrices `[batch, 3, 3]`.

        Returns:
            Capsules of the same presence with the moved poses.
        """
        pose, presence = capsules
        if self.pose == "translation":
            axes = ("batch", "shift")
            check_shape("transformation", transformation, axes, batch=pose.shape[0], shift=2)
            return Capsules(pose + transformation.unsqueeze(1), presence)
        sizes = {"batch": pose.shape[0], "rows": 3, "columns": 3}
        check_shape("transformation", transformation, list(sizes), **sizes)
        with without_autocast(pose):
            matrices = transformation.unsqueeze(1) @ pose.unflatten(-1, (3, 3))
        return Capsules(matrices.flatten(-2), presence)

    def draw(self, capsules: Capsules, labels: Int64[Tensor, " batch"] | None = None) -> Images:
        """Draw the image of all capsules, or of one capsule of each image.

        Args:
            capsules: of images.
            labels: numbers of capsules, `[batch]`; the others of that image are left out.

        Returns:
            `[batch, channels, *draw_size]`; `reconstruct` enlarges it to the size of the images.

        Raises:
            ValueError: if the model was built without a decoder.
        """
        if not self.spec.decoder:
            raise no_decoder()
        pose, presence = capsules
        sizes = {"batch": pose.shape[0], "capsules": self.num_capsules, "dim": self.pose_dim}
        check_shape("capsules", pose, list(sizes), **sizes)
        if labels is not None:
            presence = presence * nn.functional.one_hot(labels, self.num_capsules)
        with without_autocast(pose):
            g = affine_maps(pose, self.weight["generate"], self.bias["generate"]).sigmoid()
            base = presence @ self.bias["draw"]
        images = torch.einsum("bkg,kgp->bp", presence.unsqueeze(-1) * g, self.weight["draw"]) + base
        if self.bounded:
            images = images.sigmoid()
        return images.unflatten(1, (self.in_chans, *self.draw_size))

    def forward(self, images: Images, transformation: Tensor | None = None) -> Images:
        """Draw images as they look after a transformation.

        Args:
            images: `[batch, channels, height, width]` in [0, 1].
            transformation: shifts in pixels `[batch, 2]`, or matrices `[batch, 3, 3]`; None moves
                nothing.

        Returns:
            `[batch, channels, height, width]`.
        """
        capsules = self.capsules(images)
        if transformation is not None:
            capsules = self.move(capsules, transformation)
        return self.reconstruct(capsules)

    def strokes(self) -> Float[Tensor, "capsules units height width"]:
        """What each generation unit adds to the drawing, a mean over the channels: any numbers."""
        weight = self.weight["draw"].detach()
        return weight.unflatten(-1, (self.in_chans, *self.draw_size)).mean(dim=2)


def generation_parameters(capsules: int, pose_dim: int, generation: int, shape: ImageShape) -> Any:
    """Weights and biases, without values, of the maps that draw an image of this shape."""
    maps = {
        "generate": (pose_dim, generation),  # G
        "draw": (generation, math.prod(shape)),  # O
    }
    return nn.ModuleList(affine_parameters(capsules, maps))


def affine_parameters(
    capsules: int, maps: Mapping[str, tuple[int, int]]
) -> tuple[nn.ParameterDict, nn.ParameterDict]:
    """Parameters without values of affine maps, of which each capsule has its own.

    Args:
        capsules: their number.
        maps: numbers of inputs and outputs of each map, by name.

    Returns:
        Weights `[capsules, inputs, outputs]` and biases `[capsules, outputs]`, by name.
    """
    weight = nn.ParameterDict()
    bias = nn.ParameterDict()
    for name, (num_inputs, num_outputs) in maps.items():
        weight[name] = torch.empty(capsules, num_inputs, num_outputs)
        bias[name] = torch.empty(capsules, num_outputs)
    return weight, bias


def affine_maps(
    x: Float[Tensor, "batch capsules inputs"],
    weight: Float[Tensor, "capsules inputs outputs"],
    bias: Float[Tensor, "capsules outputs"],
) -> Float[Tensor, "batch capsules outputs"]:
    """Each capsule's own affine map of its numbers."""
    return torch.einsum("bki,kio->bko", x, weight) + bias
