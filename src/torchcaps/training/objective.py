"""A training objective is a module around the model: what the loop steps, and what DDP wraps."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.data import multi_hot
from torchcaps.errors import UnknownNameError, check_range
from torchcaps.functional import margin_loss, reconstruction_loss, spread_loss
from torchcaps.functional.squash import full_precision

# The paper's weight belongs to images of this many values; per pixel it is then the same for every image size.
PAPER_PIXELS = 784
LOSSES = ("cross_entropy", "margin", "spread")
Images = Float[Tensor, "batch channels height width"]
Labels = Int64[Tensor, " batch *k"]
Singles = Float[Tensor, "batch k channels height width"]


class Losses(NamedTuple):
    """A step's losses, and the activations they came from; `margin` is the loss of the activations, of either kind."""

    total: Float[Tensor, ""]
    margin: Float[Tensor, ""]
    reconstruction: Float[Tensor, ""]
    activation: Float[Tensor, "batch classes"]


class Objective(nn.Module):
    """Base of objectives: `(images, labels, singles) -> Losses`.

    Labels are `[batch]` classes, or `[batch, k]` where each image shows k of them; `singles` is then what each of them
    looks like alone, `[batch, k, channels, height, width]`.

    Attributes:
        loss: the name of its loss, one of `LOSSES`.
        progress: share of the training that is done, in [0, 1]; the loop sets it before each step.
    """

    loss: str
    progress: float = 0.0


class MarginObjective(Objective):
    """Margin loss plus a weighted reconstruction loss (arXiv 1710.09829, section 4.1).

    The decoder draws the LABELLED capsule, whatever the most active one is. Of an image that shows several classes it
    draws each by itself, and the errors are added (section 6).

    Args:
        model: with `capsules` and, for a weight above 0, `reconstruct`.
        reconstruction: weight of the summed squared error, per 784 values of an image; 0 leaves the decoder untrained.

    Raises:
        ValueError: for a weight above 0 and a model that was built without its decoder.
    """

    loss = "margin"

    def __init__(self, model: nn.Module, reconstruction: float = 0.0005) -> None:
        super().__init__()
        if reconstruction and getattr(model, "decoder", model) is None:
            raise ValueError(f"reconstruction: expected 0 for a model without a decoder, got {reconstruction}")
        self.model, self.reconstruction = model, reconstruction

    def forward(self, images: Images, labels: Labels, singles: Singles | None = None) -> Losses:
        """Losses of a batch of images in [0, 1]."""
        capsules = self.model.capsules(images)  # type: ignore[operator]
        classes = capsules.activation.shape[1]
        margin = margin_loss(capsules.activation, labels if labels.dim() == 1 else multi_hot(labels, classes))
        if not self.reconstruction:
            return Losses(margin, margin, margin.new_zeros(()), capsules.activation)
        parts = [(labels, images)]
        if labels.dim() == 2:
            if singles is None:
                raise ValueError("singles: expected what each labelled class looks like alone, got none")
            parts = list(zip(labels.unbind(dim=1), singles.unbind(dim=1), strict=True))
        error = margin.new_zeros(())
        for label, target in parts:
            error = error + reconstruction_loss(self.model.reconstruct(capsules, label), target)  # type: ignore[operator]
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

    loss = "spread"

    def __init__(self, model: nn.Module, first: float = 0.2, last: float = 0.9) -> None:
        super().__init__()
        for name, value in (("first", first), ("last", last)):
            check_range(name, value, low=0.0, high=1.0)
        self.model, self.first, self.last = model, first, last

    @property
    def margin(self) -> float:
        """Margin at this point of the training."""
        return self.first + (self.last - self.first) * min(max(self.progress, 0.0), 1.0)

    def forward(self, images: Images, labels: Labels, singles: Singles | None = None) -> Losses:
        """Losses of a batch of images in [0, 1]."""
        del singles
        if labels.dim() == 2:
            raise ValueError("loss: the spread loss has no form for images that show several classes; take margin")
        activation = self.model.capsules(images).activation  # type: ignore[operator]
        loss = spread_loss(activation, labels, self.margin)
        return Losses(loss, loss, loss.new_zeros(()), activation)


class ClassifierObjective(Objective):
    """Cross-entropy of a network without capsules, as the papers trained their baselines.

    Where several classes may be there (`model.several`), it is the cross-entropy of each class by itself, summed over
    classes, mean over the batch.

    Args:
        model: with `logits` and `probabilities`, as the CNNs have.

    Raises:
        ValueError: for a model without them.
    """

    loss = "cross_entropy"

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        if not (hasattr(model, "logits") and hasattr(model, "probabilities")):
            raise ValueError(f"loss: cross_entropy needs a model with logits, and {type(model).__name__} has none")
        self.model = model

    def forward(self, images: Images, labels: Labels, singles: Singles | None = None) -> Losses:
        """Losses of a batch of images in [0, 1]."""
        del singles
        logits = full_precision(self.model.logits(images))  # type: ignore[operator]
        if self.model.several:
            several = labels if labels.dim() == 2 else labels.unsqueeze(1)
            wanted = multi_hot(several, logits.shape[1])
            loss = F.binary_cross_entropy_with_logits(logits, wanted, reduction="sum") / len(logits)
        elif labels.dim() == 2:
            raise ValueError("loss: images that show several classes need a network built with the option several=true")
        else:
            loss = F.cross_entropy(logits, labels)
        return Losses(loss, loss, loss.new_zeros(()), self.model.probabilities(logits))  # type: ignore[operator]


def create_objective(model: nn.Module, loss: str = "auto", reconstruction: float = 0.0005) -> Objective:
    """The objective of that name around a model.

    Args:
        model: see the objectives.
        loss: "margin", "spread", "cross_entropy", or "auto": what the model's `loss` says, else "margin".
        reconstruction: of the margin objective.

    Raises:
        ValueError: for an unknown name, a weight of the reconstruction for a model without a decoder, or cross-entropy
            for a model without logits.
    """
    name = getattr(model, "loss", "margin") if loss == "auto" else loss
    if name not in LOSSES:
        raise UnknownNameError("loss", name, LOSSES)
    if name == "cross_entropy":
        return ClassifierObjective(model)
    return SpreadObjective(model) if name == "spread" else MarginObjective(model, reconstruction)
