"""Whether slots take overlapping digits apart: adjusted Rand index, and slots that are used."""

from contextlib import nullcontext
from operator import methodcaller
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from torchcaps.data import PairMaker
from torchcaps.evaluation.base import batches, evaluating
from torchcaps.evaluation.routing.layers import swapped_routers
from torchcaps.reporting import EvaluatedRun
from torchcaps.reproduction.measures import Figures, register_measure

NUM_IMAGES = 2000
INK = 0.25  # of full brightness, from here on a pixel belongs to a digit
MIN_SHARE = 0.01  # of the ink that a used slot wins
Pixels = Int64[Tensor, "n pixels"]


@register_measure()
def separation(run: EvaluatedRun) -> Figures:
    """Digits that are told apart by the slot with the largest share of a pixel.

    Shares are masks of the decoder, or the brightness of drawings that are summed.

    Returns:
        "ari": adjusted Rand index over the pixels that belong to one digit only, a mean over
        images; "ari_all": the same with the pixels of no digit, as an object of its own;
        "slots_used": share of the slots that win at least one percent of the ink, a mean over
        images; the same three with "uniform_" before, with equal couplings at test; "ari_stripes":
        of equal stripes, one for each slot; "excluded": share of the ink's pixels that belong to
        both digits; "explained": share of the squared deviation from the mean image that is drawn.
    """
    maker = run.images.maker
    if not isinstance(maker, PairMaker):
        return {}
    images = run.subset(NUM_IMAGES)
    pictures = images.float_images()
    singles = maker.singles(images, torch.arange(len(images))).amax(dim=2) / 255
    ink = (singles >= INK).flatten(2)
    has_ink = ink.any(dim=1)
    truth = torch.where(has_ink, 1 + singles.argmax(dim=1).flatten(1), 0)
    is_known = ink.sum(dim=1) < 2
    is_single = ink.sum(dim=1) == 1

    figures: Figures = {}
    uniform = swapped_routers(run.model, methodcaller("uniform"))
    for prefix, context in (("", nullcontext()), ("uniform_", uniform)):
        with context:
            winners, count, error = _draw(run.model, pictures)
        figures[f"{prefix}ari"] = float(adjusted_rand(truth, winners, is_single).mean())
        figures[f"{prefix}ari_all"] = float(adjusted_rand(truth, winners, is_known).mean())
        figures[f"{prefix}slots_used"] = float(slots_used(winners, has_ink, count).mean())
        figures[f"{prefix}explained"] = 1 - error / float(pictures.var(dim=0, correction=0).mean())
    width = pictures.shape[3]
    stripes = (torch.arange(width) * count // width).repeat(pictures.shape[2])
    figures["ari_stripes"] = float(adjusted_rand(truth, stripes.expand_as(truth), is_single).mean())
    figures["excluded"] = float((~is_known).sum() / has_ink.sum())
    return figures


def adjusted_rand(
    truth: Pixels, answer: Pixels, mask: Bool[Tensor, "n pixels"]
) -> Float[Tensor, " n"]:
    """Adjusted Rand index of two partitions of the pixels of each image.

    Hubert, Arabie, "Comparing partitions", 1985. 1 for equal partitions, also where all pixels are
    of one object in one slot; 0 on average for random ones.

    Args:
        truth: object of each pixel, from 0.
        answer: slot of each pixel, from 0.
        mask: pixels that count.
    """
    first = one_hot(truth).double() * mask.unsqueeze(2)
    second = one_hot(answer).double()
    table = first.mT @ second  # [n, objects, slots]
    number = mask.sum(dim=1).double()
    agreement = _pairs(table).sum(dim=(1, 2))
    of_truth = _pairs(table.sum(dim=2)).sum(dim=1)
    of_answer = _pairs(table.sum(dim=1)).sum(dim=1)
    expected = of_truth * of_answer / _pairs(number).clamp(min=1)
    largest = (of_truth + of_answer) / 2
    index = (agreement - expected) / (largest - expected)
    return torch.where(largest == expected, 1.0, index)


def slots_used(answer: Pixels, mask: Bool[Tensor, "n pixels"], count: int) -> Float[Tensor, " n"]:
    """Share of the slots that win at least one percent of the pixels of the mask.

    Args:
        answer: slot of each pixel, from 0.
        mask: pixels that count.
        count: of slots.
    """
    won = (one_hot(answer, count) * mask.unsqueeze(2)).sum(dim=1)
    return (won >= MIN_SHARE * mask.sum(dim=1, keepdim=True)).double().mean(dim=1)


def _pairs(counts: Tensor) -> Tensor:
    return counts * (counts - 1)


def _draw(model: Any, pictures: Tensor) -> tuple[Pixels, int, float]:
    """The slot that wins each pixel, the number of slots, and the mean squared error."""
    winners = []
    errors = []
    with evaluating(model):
        for batch, _ in batches(model, pictures):
            parts = model.parts(batch)
            winners.append(parts.shares.argmax(dim=1).flatten(1).cpu())
            errors.append((parts.image - batch).square().flatten(1).mean(dim=1).cpu())
    return torch.cat(winners), parts.shares.shape[1], float(torch.cat(errors).mean())
