from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchcaps.evaluation import (
    auroc,
    detect_adversarial,
    detection_threshold,
    reconstruction_distances,
    reject_by_length,
)
from torchcaps.types import Capsules, ModelSpec

from ..stubs import PixelReader


class Painter(nn.Module):
    """Two classes by the first pixel; the decoder paints all of an image in the class: black or white."""

    spec = ModelSpec(pose=True, activation="length", decoder=True)

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def capsules(self, images: Tensor) -> Capsules:
        first = images.flatten(1)[:, :1]
        activation = torch.cat([1 - first, first], dim=1) * self.scale
        return Capsules(activation.unsqueeze(-1), activation)

    def forward(self, images: Tensor) -> Tensor:
        return self.capsules(images).activation

    def reconstruct(self, capsules: Capsules, labels: Tensor) -> Tensor:
        return labels.float().view(-1, 1, 1, 1).expand(-1, 1, 2, 2)


def test_scores_that_tell_nothing_and_everything_apart() -> None:
    some = torch.randn(50)
    assert auroc(some, some) == pytest.approx(0.5)
    assert auroc(some + 100, some) == 1
    assert auroc(some, some + 100) == 0
    assert auroc(torch.zeros(3), torch.zeros(7)) == 0.5


def test_auroc_counts_pairs_and_half_of_ties() -> None:
    first, second = torch.randint(0, 6, (2, 40)).float()
    pairs = (first[:, None] > second).double() + (first[:, None] == second).double() / 2
    assert auroc(first, second) == pytest.approx(float(pairs.mean()))


def test_false_positives_where_one_known_image_in_twenty_may_be_lost() -> None:
    known, other = torch.arange(1.0, 21) / 20, torch.tensor([0.0, 1.5, 2.5, 20.0]) / 20
    found = reject_by_length(PixelReader(1), *(part.view(-1, 1, 1, 1) for part in (known, other)))
    assert found.threshold == pytest.approx(0.1)
    assert found.false_positive_rate == 0.5


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("n", [20, 1000])
def test_the_threshold_flags_its_share_of_what_it_was_set_on(rate: float, n: int) -> None:
    distances = torch.rand(n)
    assert float(
        (distances > detection_threshold(distances, rate)).double().mean()
    ) == pytest.approx(rate)


def test_distances_are_norms() -> None:
    images = torch.tensor([[0.1, 0.0, 0.5, 0.0], [0.8, 1.0, 1.0, 0.5]]).view(2, 1, 2, 2)
    want = [(0.01 + 0.25) ** 0.5, (0.04 + 0.25) ** 0.5]
    assert reconstruction_distances(Painter(), images).tolist() == pytest.approx(want)


def test_an_image_that_changed_sides_is_unlike_itself() -> None:
    images = torch.tensor([0.0, 0.0, 1.0, 1.0]).view(4, 1, 1, 1).expand(4, 1, 2, 2).clone()
    labels, adversarial = torch.tensor([0, 0, 1, 0]), images.clone()  # the last is answered wrongly
    adversarial[0, 0, 0, 0] = 0.9  # turned, and far from white
    adversarial[1] = 0.9  # turned, and near to white: like a one indeed
    adversarial[2, 0, 1, 1] = 0.0  # not turned, but far from white
    found = detect_adversarial(Painter(), images, adversarial, labels, threshold=0.5)
    assert found.false_positives == 0
    assert found.detected == 0.5
    assert found.success == pytest.approx(2 / 3)
    assert found.undetected == pytest.approx(1 / 3)
    assert found.auroc == pytest.approx(
        auroc(reconstruction_distances(Painter(), adversarial), torch.zeros(4))
    )
    assert found.num_samples == 4


def test_long_capsules_mean_known_images() -> None:
    known = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    other = torch.tensor([[0.1, 0.1], [0.3, 0.2]])
    found = reject_by_length(PixelReader(2), *(part.view(-1, 1, 1, 2) for part in (known, other)))
    assert found.auroc == 1
    assert found.false_positive_rate == 0
    assert found.threshold == pytest.approx(0.7)
    assert found.known_length == pytest.approx(0.8)
    assert found.other_length == pytest.approx(0.2)


def test_arguments_that_do_not_fit() -> None:
    images, labels = torch.zeros(2, 1, 2, 2), torch.tensor([0, 0])
    with pytest.raises(ValueError, match="adversarial: expected the shape of images"):
        detect_adversarial(Painter(), images, images[:1], labels, threshold=1.0)
    with pytest.raises(ValueError, match="positive: expected numbers, got NaN"):
        auroc(torch.tensor([float("nan")]), torch.zeros(1))
    with pytest.raises(ValueError, match="number of distances scores: expected at least 1, got 0"):
        detection_threshold(torch.zeros(0))
