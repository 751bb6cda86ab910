"""Slots and capsules that take a picture of overlapping digits apart, without labels.

The auto-encoder of Locatello et al., "Object-Centric Learning with Slot Attention", NeurIPS 2020,
arXiv 2006.15055, in small: every slot draws a picture of its own, and the pictures together are
compared with the input. Differs from it in: fewer and narrower convolutions, one of stride 2; a
sigmoid for each drawing; and a merge by sum, as digits are made to overlap. Other routers have a
matrix for each slot in place of one for all.
"""

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.data import Batch
from torchcaps.errors import check_known, check_range
from torchcaps.functional import reconstruction_loss
from torchcaps.models import ModelInfo, register_model
from torchcaps.nn import LinearVotes, RoutedLayer, SharedVotes
from torchcaps.tasks import Task, register_task
from torchcaps.types import Capsules, LayerSizes, ModelSpec

KERNEL = 5
STRIDE = 2
DARK = -4.0  # logit of a drawing at the start: brighter ones turn black for good
Images = Float[Tensor, "batch channels height width"]
Merge = Literal["add", "mixture"]


class Parts(NamedTuple):
    """What slots draw.

    Attributes:
        drawings: in [0, 1], `[batch, slots, channels, height, width]`.
        shares: of each pixel, `[batch, slots, height, width]`: masks of a mixture, else the
            brightness of the drawings.
        image: all drawings together, `[batch, channels, height, width]`.
    """

    drawings: Tensor
    shares: Tensor
    image: Tensor


@register_model(
    ModelInfo(
        title="Object-Centric Learning with Slot Attention",
        year=2020,
        arxiv="2006.15055",
        img_size=(18, 18),
        num_classes=0,
        parameters=53_282,
        published="none",
    ),
    name="slot_autoencoder",
)
class SlotAutoencoder(nn.Module):
    """Convolutions -> places of the map as children -> slots -> a drawing of each slot.

    Args:
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        slots: their number, at least 1.
        dim: numbers of a slot and of a child.
        width: channels of the convolutions.
        merge: "add", the sum of the drawings; or "mixture", their mean with masks as weights,
            which is occlusion.
        uniform: equal couplings, also in training.
        routing: name of a router.
        routing_options: of it.
    """

    def __init__(
        self,
        in_chans: int = 1,
        img_size: int | tuple[int, int] = 18,
        *,
        slots: int = 3,
        dim: int = 32,
        width: int = 16,
        merge: Merge = "add",
        uniform: bool = False,
        routing: str = "slot_attention",
        **routing_options: Any,
    ) -> None:
        super().__init__()
        check_known("merge", merge, Merge)
        check_range("slots", slots, low=1)
        self.spec = ModelSpec(task="slots", loss="squared_error", activation="none")
        self.in_chans = in_chans
        self.img_size = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
        self.merge = merge
        padding = KERNEL // 2
        self.encoder = nn.Sequential(
            nn.Conv2d(in_chans, width, KERNEL, padding=padding),
            nn.ReLU(),
            nn.Conv2d(width, dim, KERNEL, STRIDE, padding),
            nn.ReLU(),
        )
        self.child_place = nn.Linear(4, dim)
        self.child_pose = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)
        )
        sizes = LayerSizes(1, dim, slots, dim)
        places = (self.img_size[0] // STRIDE) * (self.img_size[1] // STRIDE)
        # Of a matrix for each slot: the mean of all children keeps its length.
        std = slots / (places * dim**0.5)
        is_shared = routing == "slot_attention"
        votes = SharedVotes(sizes) if is_shared else LinearVotes(sizes, init_std=std)
        self.layer = RoutedLayer(votes, routing, **routing_options)
        if uniform:
            self.layer.router = self.layer.router.uniform()
        self.pixel_place = nn.Linear(4, dim)
        last: Any = nn.Conv2d(width, in_chans + 1, 3, padding=1)
        nn.init.constant_(last.bias, DARK)
        self.decoder = nn.Sequential(
            nn.Conv2d(dim, width, KERNEL, padding=padding),
            nn.ReLU(),
            nn.Conv2d(width, width, KERNEL, padding=padding),
            nn.ReLU(),
            last,
        )

    def slots(self, images: Images) -> Float[Tensor, "batch slots dim"]:
        """The poses of the slots."""
        x = self.encoder(images)
        x = x.permute(0, 2, 3, 1) + self.child_place(grid(x))
        pose = self.child_pose(x.flatten(1, 2))
        return self.layer(Capsules(pose, torch.ones_like(pose[..., 0]))).pose

    def parts(self, images: Images) -> Parts:
        """What each slot draws, and all of them together."""
        slots = self.slots(images)
        x = slots[:, :, None, None] + self.pixel_place(grid(images))
        numbers = self.decoder(x.flatten(0, 1).permute(0, 3, 1, 2)).unflatten(0, slots.shape[:2])
        drawings = numbers[:, :, :-1].sigmoid()
        if self.merge == "add":
            return Parts(drawings, drawings.mean(dim=2), drawings.sum(dim=1))
        masks = numbers[:, :, -1:].softmax(dim=1)
        return Parts(drawings, masks.squeeze(2), (masks * drawings).sum(dim=1))

    def forward(self, images: Images) -> Images:
        """All drawings together."""
        return self.parts(images).image


def grid(images: Tensor) -> Float[Tensor, "height width 4"]:
    """The place of each pixel: distances from all four sides, in [0, 1]."""
    axes = [torch.linspace(0, 1, side).to(images) for side in images.shape[2:]]
    places = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
    return torch.cat([places, 1 - places], dim=-1)


@register_task("slots")
class Slots(Task):
    """Slots draw the image, without labels: squared error, summed over pixels."""

    # Answers to the questions of the base class:
    score = "closeness"  # minus the error
    losses = ("squared_error",)
    labeled = False
    requires = "a network of slots"

    def training_step(self, batch: Batch, fraction_trained: float) -> dict[str, Tensor]:
        error = reconstruction_loss(self.model(batch.inputs), batch.inputs)
        return {"loss": error, "squared_error": error}

    def eval_step(self, batch: Batch) -> dict[str, Tensor]:
        """Squared error of each image, a mean over pixels."""
        return {"error": (self.model(batch.inputs) - batch.inputs).square().flatten(1).mean(dim=1)}

    def compute_metrics(self, outputs: dict[str, Tensor]) -> dict[str, float]:
        error = outputs["error"].double().mean().item()
        return {"loss": error, "error": error, "closeness": -error}
