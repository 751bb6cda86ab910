"""Conformal sets against numbers worked by hand, and their promise on exchangeable images."""

import pytest
import torch

from torchcaps.errors import ArgumentError
from torchcaps.evaluation import conformal_sets
from torchcaps.testing import seeded

TRUE = torch.tensor([0.3, 0.9, 0.5, 0.7, 0.2, 0.8, 0.6, 0.4, 0.95])  # of nine held-out images
VAL_PROBABILITIES = torch.stack([TRUE, 1 - TRUE], dim=1)
VAL_LABELS = torch.zeros(9, dtype=torch.int64)


@pytest.mark.parametrize(
    ("level", "threshold"),
    [(0.9, 0.2), (0.8, 0.3), (0.5, 0.6), (0.95, 0.0), (0.0, 0.95)],  # ranks 1, 2, 5, 0 and 9
)
def test_the_threshold_is_the_quantile_of_held_out_images(level, threshold):
    new = torch.tensor([[0.2, 0.8], [0.31, 0.69], [0.6, 0.4], [0.19, 0.81]])
    sets = conformal_sets(new, VAL_PROBABILITIES, VAL_LABELS, level)
    assert torch.equal(sets, new >= threshold)


def test_sets_keep_their_promise_on_average_and_no_more_than_it():
    """Coverage over many draws is k / (m + 1) off 1 exactly, by exchangeability."""
    generator = seeded(0)
    shares = []
    for _ in range(400):
        probabilities = torch.rand(60, 5, generator=generator).pow(2).softmax(dim=1)
        labels = probabilities.multinomial(1, generator=generator).flatten()
        sets = conformal_sets(probabilities[:30], probabilities[30:], labels[30:], 0.8)
        shares.append(sets[torch.arange(30), labels[:30]].double().mean())
    assert torch.stack(shares).mean() == pytest.approx(1 - 6 / 31, abs=0.012)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"level": 1.2}, "level: expected between 0 and 1"),
        ({"val_labels": VAL_LABELS[1:]}, "activations: expected"),
    ],
)
def test_what_does_not_fit_is_refused(change, sentence):
    arguments = {
        "probabilities": VAL_PROBABILITIES,
        "val_probabilities": VAL_PROBABILITIES,
        "val_labels": VAL_LABELS,
    }
    with pytest.raises(ArgumentError, match=sentence):
        conformal_sets(**(arguments | change))
