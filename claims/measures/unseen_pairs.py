"""How well overlapping digits are recognized: trained pairs, others, and three digits at once."""

from itertools import combinations
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from claims.sets.unseen_pairs import KINDS, NUM_CLASSES, PREFIX, draw_overlaps
from torchcaps.evaluation import score_segmentation
from torchcaps.evaluation.base import (
    Images,
    device_of,
    evaluating,
    image_activations,
    proportion,
)
from torchcaps.reporting import EvaluatedRun
from torchcaps.reproduction.measures import Figures, register_measure
from torchcaps.tasks.classify import is_correct

Drawings = Float[Tensor, "n classes 1 height width"]
NUM_DRAWN = 500  # images of each kind, evenly spread, whose digits are drawn


@register_measure()
def unseen_pairs(run: EvaluatedRun) -> Figures:
    """All digits right, by the most active classes and by what their drawings add up to.

    Returns:
        For each kind "trained", "unseen" and "triples": "KIND_accuracy", the share of images whose
        k digits are the k most active classes; "KIND_by_drawing", the same of the k classes whose
        drawings add up to the picture best; "KIND_single_error", mean squared error of the drawing
        of each digit, per pixel.
    """
    name = run.config.data.name.removeprefix(PREFIX)
    source = run.load_images(name)
    figures: Figures = {}
    for kind, (size, _) in KINDS.items():
        images, singles, _ = draw_overlaps(source, kind)
        activations = image_activations(run.model, images.float_images())
        figures[f"{kind}_accuracy"] = proportion(is_correct(activations, images.labels))

        index = torch.linspace(0, len(images) - 1, min(NUM_DRAWN, len(images))).long()
        pictures = images.float_images(index)
        drawings = draw_all(run.model, pictures)
        answers = explain(drawings, pictures, size)
        is_right = (answers == images.labels[index].bool()).all(dim=1)
        figures[f"{kind}_by_drawing"] = proportion(is_right)
        labels = images.targets["single_label"][index]
        own = drawings[torch.arange(len(index))[:, None], labels]
        figures[f"{kind}_single_error"] = score_segmentation(own, singles[index] / 255).error
    return figures


def draw_all(model: Any, pictures: Images) -> Drawings:
    """What the decoder draws of every class of each picture, on the CPU."""
    with evaluating(model):
        capsules = model.capsules(pictures.to(device_of(model)))
        first = torch.zeros(len(pictures), dtype=torch.int64, device=capsules.pose.device)
        drawings = [model.reconstruct(capsules, first + k) for k in range(NUM_CLASSES)]
    return torch.stack(drawings, dim=1).cpu()


def explain(drawings: Drawings, pictures: Images, count: int) -> Bool[Tensor, "n classes"]:
    """The classes of each picture whose drawings add up to it with the least squared error.

    Args:
        drawings: of every class.
        pictures: `[n, 1, height, width]`.
        count: of classes in a picture.
    """
    sorts = torch.tensor([*combinations(range(drawings.shape[1]), count)])
    errors = [
        (drawings[:, sort].sum(dim=1).clamp(max=1) - pictures).square().sum(dim=(1, 2, 3))
        for sort in sorts
    ]
    best = sorts[torch.stack(errors).argmin(dim=0)]
    return torch.zeros(drawings.shape[:2], dtype=torch.bool).scatter(1, best, True)
