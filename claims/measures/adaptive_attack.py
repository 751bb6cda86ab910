"""Claim: attacks are detected by class-conditional reconstruction, also those that aim at it.

Frosst, Sabour, Hinton 2018 (arXiv 1811.06969); Qin et al., ICLR 2020 (arXiv 1907.02957), whose
adaptive attack also lowers the distance between the image and its reconstruction.
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from torchcaps import evaluation
from torchcaps.evaluation.base import Images, Labels
from torchcaps.reporting import EvaluatedRun
from torchcaps.reproduction.measures import Figures, register_measure

NUM_IMAGES = 500
NUM_CLEAN = 1000  # held-out images that set the threshold
STRENGTH = 0.1  # largest change of a pixel, in [0, 1]
STEPS = 20
WEIGHTS = (0.0, 0.03, 0.1, 0.3, 1.0)  # of the distance beside the margin loss; 0 is not adaptive


@register_measure()
def adaptive_detection(run: EvaluatedRun) -> Figures:
    """Share of right answers that an attack changes without being flagged.

    An image is flagged if it is further from its reconstruction than 95 % of held-out images.

    Returns:
        "false_positives": share of clean test images that are flagged; "success": share of right
        answers that the attack changes; "undetected": of these changes the share that is not
        flagged, as a share of right answers; "adaptive_undetected": the same where any weight of
        the distance in the attack's loss brings an image through; "detected_share" and
        "adaptive_detected_share": one minus undetected over changed answers.
    """
    if not run.task.spec.decoder:
        return {}
    model = run.model
    subset = run.subset(NUM_IMAGES)
    images = subset.float_images()
    labels = subset.labels.cpu()
    held_out = run.held_out_images().float_images()[:NUM_CLEAN]
    threshold = evaluation.detection_threshold(evaluation.reconstruction_distances(model, held_out))
    is_right, is_flagged = _answers(model, images, labels, threshold)
    passes = []
    changes = []
    for weight in WEIGHTS:
        adversarial = adaptive_pgd(model, images, labels, weight)
        still_right, caught = _answers(model, adversarial, labels, threshold)
        changes.append(is_right & ~still_right)
        passes.append(changes[-1] & ~caught)
    num_right = max(int(is_right.sum()), 1)
    shares = {
        "success": changes[0],
        "undetected": passes[0],
        "adaptive_success": torch.stack(changes).any(dim=0),
        "adaptive_undetected": torch.stack(passes).any(dim=0),
    }
    figures: Figures = {name: int(flags.sum()) / num_right for name, flags in shares.items()}
    figures["false_positives"] = float(is_flagged.double().mean())
    for prefix in ("", "adaptive_"):
        success = max(figures[f"{prefix}success"], 1 / num_right)
        figures[f"{prefix}detected_share"] = 1 - figures[f"{prefix}undetected"] / success
    return figures


def adaptive_pgd(model: nn.Module, images: Images, labels: Labels, weight: float) -> Images:
    """Raise the margin loss, and lower the distance to the reconstruction by a weight.

    Args:
        model: with a decoder.
        images: in [0, 1].
        labels: true classes.
        weight: of the distance; 0 leaves it out.

    Returns:
        The changed images, on the CPU.
    """
    attacked = _WithDistance(model)
    loss = partial(_adaptive_loss, weight=weight)
    return evaluation.pgd(attacked, images, labels, STRENGTH, steps=STEPS, loss=loss)


class _WithDistance(nn.Module):
    """A model whose outputs have the distance to the reconstruction as a last column."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Images) -> Tensor:
        model: Any = self.model
        capsules = model.capsules(images)
        distance = (model.reconstruct(capsules) - images).flatten(1).norm(dim=1, keepdim=True)
        return torch.cat([capsules.activation, distance], dim=1)


def _adaptive_loss(outputs: Tensor, labels: Labels, *, weight: float) -> Tensor:
    distance = outputs[:, -1].mean()
    return evaluation.full_margin_loss(outputs[:, :-1], labels) - weight * distance


def _answers(
    model: nn.Module, images: Images, labels: Labels, threshold: float
) -> tuple[Bool[Tensor, " n"], Bool[Tensor, " n"]]:
    """Whether each image is answered rightly, and whether it is flagged."""
    decoded = evaluation.reconstructions(model, images)
    distances = (decoded.images - images.cpu()).flatten(1).norm(dim=1)
    return decoded.predictions == labels, distances > threshold
