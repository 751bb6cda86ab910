"""A training objective is a module around the model: what the loop steps, and what DDP wraps."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.errors import UnknownNameError, check_range
from torchcaps.functional import margin_loss, reconstruction_loss, spread_loss

# The paper's weight belongs to images of this many values; per pixel it is then the same for every image size.
PAPER_PIXELS = 784
LOSSES = ("margin", "spread")


class Losses(NamedTuple):
    """A step's losses, and the activations they came from; `margin` is the loss of the activations, of either kind."""

    total: Float[Tensor, ""]
    margin: Float[Tensor, ""]
    reconstruction: Float[Tensor, ""]
    activation: Float[Tensor, "batch classes"]


class Objective(nn.Module):
    """Base of objectives: `(images, labels) -> Losses`.

    Attributes:
        progress: share of the training that is done, in [0, 1]; the loop sets it before each step.
    """

    progress: float = 0.0


class MarginObjective(Objective):
    """Margin loss plus a weighted reconstruction loss (arXiv 1710.09829, section 4.1).

    The decoder draws the LABELLED capsule, whatever the most active one is.

    Args:
        model: with `capsules` and, for a weight above 0, `reconstruct`.
        reconstruction: weight of the summed squared error, per 784 values of an image; 0 leaves the decoder untrained.

    Raises:
        ValueError: for a weight above 0 and a model that was built without its decoder.
    """

    def __init__(self, model: nn.Module, reconstruction: float = 0.0005) -> None:
        super().__init__()
        if reconstruction and getattr(model, "decoder", model) is None:
            raise ValueError(f"reconstruction: expected 0 for a model without a decoder, got {reconstruction}")
        self.model, self.reconstruction = model, reconstruction

    def forward(self, images: Float[Tensor, "batch channels height width"], labels: Int64[Tensor, " batch"]) -> Losses:
        """Losses of a batch of images in [0, 1]."""
        capsules = self.model.capsules(images)  # type: ignore[operator]
        margin = margin_loss(capsules.activation, labels)
        if not self.reconstruction:
            return Losses(margin, margin, margin.new_zeros(()), capsules.activation)
        drawn = self.model.reconstruct(capsules, labels)  # type: ignore[operator]
        error = reconstruction_loss(drawn, images)
        weight = self.reconstruction * PAPER_PIXELS / images[0].numel()
        return Losses(margin + weight * error, margin, error, capsules.activation)


class SpreadObjective(Objective):
    """Spread loss with a margin that rises during training (Hinton, Sabour, Frosst, ICLR 2018, equation 3).

    A large margin from the start leaves many capsules dead, as the paper says. Here it rises linearly with `progress`.

    Args:
        model: with `capsules`.
        first: margin at the start; 0.2 in the paper.
        last: margin at the end; 0.9 in the paper.

    Raises:
        ValueError: for margins outside [0, 1].
    """

    def __init__(self, model: nn.Module, first: float = 0.2, last: float = 0.9) -> None:
        super().__init__()
        for name, value in (("first", first), ("last", last)):
            check_range(name, value, low=0.0, high=1.0)
        self.model, self.first, self.last = model, first, last

    @property
    def margin(self) -> float:
        """Margin at this point of the training."""
        return self.first + (self.last - self.first) * min(max(self.progress, 0.0), 1.0)

    def forward(self, images: Float[Tensor, "batch channels height width"], labels: Int64[Tensor, " batch"]) -> Losses:
        """Losses of a batch of images in [0, 1]."""
        activation = self.model.capsules(images).activation  # type: ignore[operator]
        loss = spread_loss(activation, labels, self.margin)
        return Losses(loss, loss, loss.new_zeros(()), activation)


def create_objective(model: nn.Module, loss: str = "auto", reconstruction: float = 0.0005) -> Objective:
    """The objective of that name around a model.

    Args:
        model: see the objectives.
        loss: "margin", "spread", or "auto": what the model's `loss` says, else "margin".
        reconstruction: of the margin objective.

    Raises:
        ValueError: for an unknown name, or a weight of the reconstruction for a model without a decoder.
    """
    name = getattr(model, "loss", "margin") if loss == "auto" else loss
    if name not in LOSSES:
        raise UnknownNameError("loss", name, LOSSES)
    return SpreadObjective(model) if name == "spread" else MarginObjective(model, reconstruction)
