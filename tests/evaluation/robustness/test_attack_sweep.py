from __future__ import annotations

import pytest
import torch

from torchcaps.evaluation import attack_outcome, attack_sweep

from ..stubs import Linear

# Class 0 where the pixel sum of the differences from 1/2 is above 0.
MODEL = Linear(torch.tensor([1.0]))


class Shifted(Linear):
    """Class 0 for pixels above one half."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images - 0.5)


IMAGES = torch.tensor([0.55, 0.65, 0.9, 0.3]).view(4, 1, 1, 1)
LABELS = torch.tensor([0, 0, 0, 0])  # the last one is answered wrongly as it is


@pytest.mark.parametrize("attack", ["fgsm", "bim", "pgd"])
def test_accuracy_is_over_all_images_and_success_over_those_that_were_right(attack) -> None:
    found = attack_sweep(
        Shifted(torch.tensor([1.0])), IMAGES, LABELS, [0.0, 0.1, 0.2, 0.5], attack=attack
    )
    assert found.clean == 0.75
    assert [outcome.accuracy for outcome in found.outcomes] == [0.75, 0.5, 0.25, 0.0]
    assert [outcome.success for outcome in found.outcomes] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    # Robust accuracy is clean accuracy times the share of right answers that stay, as no wrong one is made right.
    for outcome in found.outcomes:
        assert outcome.accuracy == pytest.approx(found.clean * (1 - outcome.success))
    assert found.mean == pytest.approx(1.5 / 4)
    assert found.num_samples == 4


def test_the_norm_is_that_of_successful_changes() -> None:
    changed = IMAGES + torch.tensor([-0.1, -0.05, -0.5, 0.3]).view(4, 1, 1, 1)
    found = attack_outcome(Shifted(torch.tensor([1.0])), IMAGES, changed, LABELS, eps=0.5)
    assert found.success == pytest.approx(2 / 3)
    assert found.distance == pytest.approx(0.3)
    assert found.accuracy == 0.5  # the last one is right now


def test_nothing_to_attack() -> None:
    found = attack_outcome(
        Shifted(torch.tensor([1.0])), IMAGES[3:], IMAGES[3:], LABELS[3:], eps=0.1
    )
    assert found.success is None
    assert found.distance is None


def test_arguments_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="unknown attack 'pdg'; did you mean 'pgd'"):
        attack_sweep(MODEL, IMAGES, LABELS, [0.1], attack="pdg")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="number of eps: expected at least 1, got 0"):
        attack_sweep(MODEL, IMAGES, LABELS, [])
    with pytest.raises(ValueError, match="changed: expected the shape of images"):
        attack_outcome(MODEL, IMAGES, IMAGES[:2], LABELS, eps=0.1)
