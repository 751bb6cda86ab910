import pytest
import torch

from torchcaps.evaluation import attack_outcome, attack_sweep

from ..stubs import Linear

MODEL = Linear(torch.tensor([1.0]), offset=0.5)  # class 0 for pixels above one half
IMAGES = torch.tensor([0.55, 0.65, 0.9, 0.3]).view(4, 1, 1, 1)
LABELS = torch.tensor([0, 0, 0, 0])  # the last one is answered wrongly as it is


@pytest.mark.parametrize("attack", ["fgsm", "bim", "pgd"])
def test_accuracy_is_over_all_images_and_success_over_those_that_were_right(attack):
    sweep = attack_sweep(
        MODEL,
        IMAGES,
        LABELS,
        [0.0, 0.1, 0.2, 0.5],
        attack=attack,
    )
    assert sweep.clean == 0.75
    for k, outcome in enumerate(sweep.outcomes):
        assert outcome.accuracy == (3 - k) / 4
        assert outcome.success == pytest.approx(k / 3)
    assert sweep.mean == pytest.approx(1.5 / 4)
    assert sweep.num_samples == 4


def test_the_norm_is_that_of_successful_changes():
    changed = IMAGES + torch.tensor([-0.1, -0.05, -0.5, 0.3]).view(4, 1, 1, 1)
    outcome = attack_outcome(MODEL, IMAGES, changed, LABELS, eps=0.5)
    assert outcome.success == pytest.approx(2 / 3)
    assert outcome.distance == pytest.approx(0.3)
    assert outcome.accuracy == 0.5  # the last one is right now


def test_the_norm_is_over_all_pixels():
    model = Linear(torch.tensor([1.0, 0.0]), offset=0.5)
    images = torch.tensor([0.6, 0.1]).view(1, 1, 1, 2)
    changed = images + torch.tensor([-0.3, 0.4])
    assert attack_outcome(model, images, changed, LABELS[:1], eps=0.4).distance == pytest.approx(
        0.5
    )


def test_without_right_answers_there_is_nothing_to_attack():
    outcome = attack_outcome(
        MODEL,
        IMAGES[3:],
        IMAGES[3:],
        LABELS[3:],
        eps=0.1,
    )
    assert outcome.success is None
    assert outcome.distance is None
