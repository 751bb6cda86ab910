"""The transforming auto-encoder.

Geoffrey Hinton, Alex Krizhevsky, Sida Wang, "Transforming Auto-encoders", ICANN 2011, sections 2 and 3. It sees an
image and a known transformation, and must draw the transformed image; the transformation reaches the drawing only
through the poses of its capsules. Differs from the paper in: weights start from this library's rule.

Letters: b batch, k capsules, p pixels (of all channels), r recognition units, g generation units, d numbers of a pose.
"""

import math
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.errors import ArgumentError, check_known, check_shape
from torchcaps.functional.bounds import without_autocast
from torchcaps.models._base import ImageModel, Images, ImageSize
from torchcaps.models._registry import ModelInfo, register_model
from torchcaps.models.notebook import Stage, capsules_in_words, stages_by_name, times
from torchcaps.types import Capsules, ModelSpec

Pose = Literal["translation", "affine"]
_REACH = 4.0  # pixels from the center over which generation units start spread out
_SLOPE = 1 / 3  # per pixel, of their inputs


class TransformedPairs(NamedTuple):
    """Images in [0, 1], the same transformed, and how: by shifts (to the right, downwards) in pixels `[batch, 2]`,
    or by matrices `[batch, 3, 3]` that map coordinates (x, y, 1) of the source to those of the target. Their origin is
    the center of the image, and their unit half of its longer side."""

    source: Images
    target: Images
    transformation: Float[Tensor, " batch *numbers"]


class TransformingAutoencoder(ImageModel):
    """Capsules that recognize a pose and a presence, have a known transformation applied, and draw what they stand for.

    Each capsule k, with weights of its own: `h = sigmoid(R x)`, pose `A h` (linear), presence `p = sigmoid(w h)`; after
    the transformation of the pose, `g = sigmoid(G pose)` and the contribution `p (O g)`. The image is the sum of the
    contributions. All five have biases.

    Args:
        capsules: their number; 30 in the paper's experiment with shifted digits.
        recognition, generation: sigmoid units that recognize and that draw, per capsule; 10 and 20 there.
        pose: "translation": (x, y) in pixels, to which a shift is added; "affine": a 3x3 matrix A, flat and row-major,
            which a transformation T turns into T A.
        constrained: of affine poses six numbers are recognized, and the last row is (0, 0, 1).
        bounded: the image is the sigmoid of the sum, in (0, 1); else it is around [0, 1], and nothing bounds it.
    """

    spec = ModelSpec(
        pose=True, activation="probability", decoder=True, task="transform", loss="reconstruction"
    )

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
    ) -> None:
        super().__init__(
            None,
            in_chans,
            img_size,
            capsules=capsules,
            recognition=recognition,
            generation=generation,
        )
        check_known("pose", pose, get_args(Pose))
        if constrained and pose != "affine":
            raise ArgumentError("constrained", f"expected affine poses, got {pose!r}")
        self.num_capsules = capsules
        self.pose, self.constrained, self.bounded = pose, constrained, bounded
        self.pose_dim = 2 if pose == "translation" else 9
        pixels = in_chans * math.prod(self.img_size)
        shapes = {
            "recognize": (pixels, recognition),
            "place": (recognition, 6 if constrained else self.pose_dim),
            "gate": (recognition, 1),
            "generate": (self.pose_dim, generation),
            "draw": (generation, pixels),
        }
        self.weight = nn.ParameterDict(
            {name: torch.empty(capsules, *shape) for name, shape in shapes.items()}
        )
        self.bias = nn.ParameterDict(
            {name: torch.empty(capsules, width) for name, (_, width) in shapes.items()}
        )
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weights anew: presences start near 1/2, and generation units tile the middle of the canvas."""
        is_shift = self.pose == "translation"
        pixel = 1.0 if is_shift else 2 / max(self.img_size)  # in units of the pose
        for name in ("recognize", "gate", "draw"):
            bound = math.sqrt(3.0) * math.sqrt(2.0 / sum(self.weight[name].shape[1:]))  # Glorot's
            nn.init.uniform_(self.weight[name], -bound, bound)
            nn.init.zeros_(self.bias[name])
        self.weight["draw"].mul_(0.1)  # thirty capsules at once must not drown the image
        nn.init.normal_(self.weight["place"], std=pixel)
        nn.init.normal_(self.weight["generate"], std=_SLOPE / pixel)
        rest = torch.zeros(2) if is_shift else torch.eye(3).flatten()
        self.bias["place"].copy_(rest[: self.bias["place"].shape[1]])
        weight = self.weight["generate"]  # [k, d, g]
        centers = torch.empty_like(weight).uniform_(-_REACH * pixel, _REACH * pixel)
        centers += rest.to(weight).unsqueeze(-1)
        self.bias["generate"].copy_(-(weight * centers).sum(dim=1))

    def notebook_stages(self) -> list[Stage]:
        units = "sigmoid units"
        count, _, recognition = self.weight["recognize"].shape
        generation = self.weight["generate"].shape[2]
        rows = {
            "recognize": (units, capsules_in_words((count, recognition), "units")),
            "gate": (units, f"{count} presences"),
            "place": (f"poses ({self.pose})", capsules_in_words((count, self.pose_dim))),
            "generate": (units, capsules_in_words((count, generation), "units")),
            "draw": (
                "sum over capsules, then sigmoid" if self.bounded else "sum over capsules",
                times(self.in_chans, *self.img_size),
            ),
        }
        return stages_by_name(self, rows)

    def capsules(self, images: Images) -> Capsules:
        """Capsules of the images: pose `[batch, capsules, 2 or 9]`, presence `[batch, capsules]` in [0, 1]."""
        self._check(images)
        x = images.flatten(1)
        h = torch.einsum("bp,kpr->bkr", x, self.weight["recognize"]) + self.bias["recognize"]
        h = h.sigmoid()
        with without_autocast(x):  # half precision would round away small differences of places
            h = h.to(self.weight["place"].dtype)
            pose = self._mapped("place", h)
            presence = self._mapped("gate", h).sigmoid()
        if self.constrained:
            last_row = pose.new_tensor([0.0, 0.0, 1.0]).expand(*pose.shape[:2], 3)
            pose = torch.cat([pose, last_row], dim=-1)
        return Capsules(pose, presence.squeeze(-1))

    def _mapped(self, name: str, x: Float[Tensor, "batch capsules inputs"]) -> Tensor:
        """Each capsule's own affine map of its numbers."""
        return torch.einsum("bki,kio->bko", x, self.weight[name]) + self.bias[name]

    def move(
        self, capsules: Capsules, transformation: Float[Tensor, " batch *numbers"]
    ) -> Capsules:
        """The same capsules with their poses transformed: `pose + shift`, or `T A`; see `TransformedPairs`."""
        pose, presence = capsules
        axes = {"batch": len(pose), "shift": 2}
        if self.pose == "affine":
            axes = {"batch": len(pose), "rows": 3, "columns": 3}
        check_shape("transformation", transformation, [*axes], **axes)
        transformation = transformation.unsqueeze(1)
        if self.pose == "translation":
            return Capsules(pose + transformation, presence)
        with without_autocast(pose):
            matrices = transformation @ pose.unflatten(-1, (3, 3))
        return Capsules(matrices.flatten(-2), presence)

    def reconstruct(
        self, capsules: Capsules, labels: Int64[Tensor, " batch"] | None = None
    ) -> Images:
        """The image that capsules draw together: the sum of what each draws, times its presence; see `bounded`. With
        `labels` `[batch]`, numbers of capsules, only what that one of each image draws."""
        pose, presence = capsules
        sizes = {"capsules": self.num_capsules, "dim": self.pose_dim}
        check_shape("capsules", pose, ("batch", *sizes), **sizes)
        if labels is not None:
            presence = presence * F.one_hot(labels, self.num_capsules)
        with without_autocast(pose):
            g = self._mapped("generate", pose).sigmoid()
            base = presence @ self.bias["draw"]
        images = torch.einsum("bkg,kgp->bp", presence.unsqueeze(-1) * g, self.weight["draw"]) + base
        if self.bounded:
            images = images.sigmoid()
        return images.unflatten(1, (self.in_chans, *self.img_size))

    def forward(
        self, images: Images, transformation: Float[Tensor, " batch *numbers"] | None = None
    ) -> Images:
        """What the images look like after the transformation (None: as they are), as drawn by the capsules."""
        capsules = self.capsules(images)
        if transformation is not None:
            capsules = self.move(capsules, transformation)
        return self.reconstruct(capsules)

    def strokes(self) -> Float[Tensor, "capsules units height width"]:
        """What each generation unit adds to the drawing, a mean over the channels: any numbers."""
        weight = self.weight["draw"].detach()
        return weight.unflatten(-1, (self.in_chans, *self.img_size)).mean(dim=2)


# The auto-encoder of 2011 with 60 recognition units for the paper's 10, which are few to tell a place with.
register_model(
    name="transforming_autoencoder",
    builder=TransformingAutoencoder,
    info=ModelInfo(
        title="Transforming Auto-encoders",
        year=2011,
        num_classes=0,
        parameters=1_914_210,
        published="pictures only",
    ),
    recognition=60,
)
