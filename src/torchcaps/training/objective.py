"""A training objective is a module around the model: what the loop steps, and what DDP wraps."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.functional import margin_loss, reconstruction_loss

# The paper's weight belongs to images of this many values; per pixel it is then the same for every image size.
PAPER_PIXELS = 784


class Losses(NamedTuple):
    """A step's losses, and the activations they came from."""

    total: Float[Tensor, ""]
    margin: Float[Tensor, ""]
    reconstruction: Float[Tensor, ""]
    activation: Float[Tensor, "batch classes"]


class MarginObjective(nn.Module):
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
