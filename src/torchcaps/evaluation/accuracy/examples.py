"""Choosing which samples to look at."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.accuracy.classification import Evaluation
from torchcaps.evaluation.base import Labels


def worst_mistakes(evaluation: Evaluation, count: int) -> Int64[Tensor, " mistakes"]:
    """Indices of the wrong answers that the model was surest of, worst first.

    Worst is the largest activation of the predicted class minus that of the true one.

    Args:
        evaluation: of any model.
        count: the most indices wanted, at least 0; fewer come back when fewer answers are wrong.

    Raises:
        ValueError: for a negative count.
    """
    check_range("count", count, low=0)
    true = evaluation.activations.gather(1, evaluation.labels.unsqueeze(1)).squeeze(1)
    excess = evaluation.activations.amax(dim=1) - true
    wrong = torch.nonzero(evaluation.predictions != evaluation.labels).squeeze(1)
    return wrong[excess[wrong].argsort(descending=True, stable=True)][:count]


def example_indices(labels: Labels, per_class: int, seed: int) -> Int64[Tensor, " examples"]:
    """`per_class` random samples of each class present, class after class; the same ones for the same seed.

    Args:
        labels: `[n]` class indices.
        per_class: at least 1; a class with fewer samples gives all that it has.
        seed: of a generator of its own; the global one is not touched.

    Raises:
        ValueError: for labels of another shape, or `per_class` below 1.
    """
    check_shape("labels", labels, ("n",))
    check_range("per_class", per_class, low=1)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    shuffled = labels.cpu()[order]
    return torch.cat([order[:0], *(order[shuffled == label][:per_class] for label in shuffled.unique())])
