import pytest
import torch
from torch import nn

from torchcaps.evaluation import (
    auroc,
    detect_adversarial,
    detection_threshold,
    reconstruction_distances,
    reject_by_length,
)
from torchcaps.types import Capsules

from ..stubs import Decodes, PixelReader, share


class Painter(Decodes):
    """Two classes by the first pixel; the decoder paints the whole image black or white."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def capsules(self, images):
        first = images.flatten(1)[:, :1]
        activation = torch.cat([1 - first, first], dim=1) * self.scale
        return Capsules(activation.unsqueeze(-1), activation)

    def reconstruct(self, capsules, labels):
        return labels.float().view(-1, 1, 1, 1).expand(-1, 1, 2, 2)


def as_images(activations):
    """Images whose pixels are activations `[n, classes]`."""
    return torch.tensor(activations)[:, None, None, :]


def test_auroc_counts_pairs_and_half_of_ties():
    positive = torch.randint(0, 6, (40,)).float()
    negative = torch.randint(0, 6, (25,)).float()
    difference = positive[:, None] - negative
    expected = share(difference > 0) + share(difference == 0) / 2
    assert auroc(positive, negative) == pytest.approx(expected)


def test_false_positives_at_a_threshold_that_rejects_one_known_image_in_twenty():
    known_images = as_images((torch.arange(1, 21).unsqueeze(1) / 20).tolist())
    unknown_images = as_images([[0.0], [0.075], [0.125], [1.0]])
    rejection = reject_by_length(PixelReader(1), known_images, unknown_images)
    assert rejection.threshold == pytest.approx(0.1)
    assert rejection.false_positive_rate == 0.5


def test_long_capsules_mean_known_images():
    known_images = as_images([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    unknown_images = as_images([[0.1, 0.1], [0.3, 0.2]])
    rejection = reject_by_length(PixelReader(2), known_images, unknown_images)
    assert rejection.auroc == 1
    assert rejection.false_positive_rate == 0
    assert rejection.threshold == pytest.approx(0.7)
    assert rejection.inlier_length == pytest.approx(0.8)
    assert rejection.outlier_length == pytest.approx(0.2)


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("n", [20, 1000])
def test_the_threshold_flags_its_share_of_the_images_it_was_set_on(rate, n):
    distances = torch.rand(n)
    threshold = detection_threshold(distances, rate)
    assert share(distances > threshold) == pytest.approx(rate)


def test_distances_are_norms():
    images = torch.tensor([[0.1, 0.0, 0.5, 0.0], [0.8, 1.0, 1.0, 0.5]]).view(2, 1, 2, 2)
    expected = [(0.01 + 0.25) ** 0.5, (0.04 + 0.25) ** 0.5]
    assert reconstruction_distances(Painter(), images).tolist() == pytest.approx(expected)


def test_an_image_at_the_threshold_is_not_flagged():
    black = torch.zeros(2, 1, 2, 2)  # drawn exactly, at the distance 0
    detection = detect_adversarial(Painter(), black, black, torch.tensor([0, 0]), threshold=0.0)
    assert detection.detected == detection.false_positives == 0


def test_an_image_that_changed_sides_is_unlike_itself():
    images = torch.tensor([0.0, 0.0, 1.0, 1.0]).view(4, 1, 1, 1).expand(4, 1, 2, 2).clone()
    labels = torch.tensor([0, 0, 1, 0])  # the last is answered wrongly
    adversarial = images.clone()
    adversarial[0, 0, 0, 0] = 0.9  # turned, and far from white
    adversarial[1] = 0.9  # turned, and near to white: like a one indeed
    adversarial[2, 0, 1, 1] = 0.0  # not turned, but far from white
    detection = detect_adversarial(
        Painter(),
        images,
        adversarial,
        labels,
        threshold=0.5,
    )
    assert detection.false_positives == 0
    assert detection.detected == 0.5
    assert detection.success == pytest.approx(2 / 3)
    assert detection.undetected == pytest.approx(1 / 3)
    distances = reconstruction_distances(Painter(), adversarial)
    assert detection.auroc == pytest.approx(auroc(distances, torch.zeros(4)))
    assert detection.num_samples == 4
