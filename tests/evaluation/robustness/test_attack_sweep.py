import pytest
import torch

from torchcaps.evaluation import attack_sweep

from ..stubs import Linear

MODEL = Linear(torch.tensor([1.0]), offset=0.5)  # class 0 for pixels above one half
IMAGES = torch.tensor([0.55, 0.65, 0.9, 0.3]).view(4, 1, 1, 1)
LABELS = torch.tensor([0, 0, 0, 0])  # the last one is answered wrongly as it is


@pytest.mark.parametrize("attack", ["fgsm", "bim", "pgd"])
def test_accuracy_is_over_all_images_and_success_over_those_that_were_right(attack):
    sweep = attack_sweep(MODEL, IMAGES, LABELS, [0.0, 0.1, 0.2, 0.5], attack=attack)
    assert sweep.clean == 0.75
    for k, outcome in enumerate(sweep.outcomes):
        assert outcome.accuracy == (3 - k) / 4
        assert outcome.success == pytest.approx(k / 3)
    assert sweep.mean == pytest.approx(1.5 / 4)
    assert sweep.num_samples == 4


def test_the_norm_is_that_of_successful_changes():
    model = Linear(torch.tensor([3.0, 4.0]), offset=0.5)
    images = torch.tensor([[0.6, 0.6], [1.0, 1.0]]).view(2, 1, 1, 2)
    [outcome] = attack_sweep(model, images, LABELS[:2], [0.3], attack="fgsm").outcomes
    assert outcome.success == 0.5
    assert outcome.distance == pytest.approx(0.3 * 2**0.5)  # over both pixels


def test_without_right_answers_there_is_nothing_to_attack():
    [outcome] = attack_sweep(MODEL, IMAGES[3:], LABELS[3:], [0.1]).outcomes
    assert (outcome.success, outcome.distance) == (None, None)
