import pytest
import torch
from torch import nn

from torchcaps.evaluation import Segments, match_segments, score_segmentation, segment
from torchcaps.types import Capsules

from ..stubs import Decodes

# Three digits: a bar above, a bar on the left, a bar below. The first two share a corner.
SHAPES = torch.zeros(3, 1, 4, 4)
SHAPES[0, 0, 0] = 1
SHAPES[1, 0, :, 0] = 1
SHAPES[2, 0, 3] = 1
PAIRS = torch.tensor([[0, 1], [2, 0], [1, 2]])
DIGITS = SHAPES[PAIRS]
IMAGES = DIGITS.amax(dim=1)


class PerfectDecoder(Decodes):
    """Sees which bars there are, and draws the one that it is asked for."""

    def __init__(self):
        super().__init__()
        self.shapes = nn.Parameter(SHAPES.clone())

    def capsules(self, images):
        presence = torch.einsum("bchw,kchw->bk", images, self.shapes) / 4
        activation = presence * torch.tensor([0.9, 0.8, 0.7])
        return Capsules(activation.unsqueeze(-1), activation)

    def reconstruct(self, capsules, labels):
        return self.shapes[labels]


def test_a_perfect_decoder_has_perfect_scores():
    segments = segment(PerfectDecoder(), IMAGES, PAIRS)
    assert torch.equal(segments.selected, PAIRS)
    scores = score_segmentation(segments.images, DIGITS)
    assert scores.error == 0
    assert scores.iou == 1
    assert scores.ink_right == 1
    assert scores.correlation == pytest.approx(1)
    assert scores.num_samples == 3


def test_drawings_of_the_other_digit_are_wrong_everywhere():
    segments = segment(PerfectDecoder(), IMAGES, PAIRS.flip(1))
    scores = score_segmentation(segments.images, DIGITS)
    # The corner of the first pair and the third pair's belong to both: 1 of 7 pixels; bars above
    # and below share none.
    assert scores.iou == pytest.approx((1 / 7 + 0 + 1 / 7) / 3)
    assert scores.error == pytest.approx((6 + 8 + 6) / 3 / 16)
    assert scores.ink_right == 0
    assert scores.correlation < 0


def test_without_labels_the_longest_capsules_are_decoded():
    segments = segment(PerfectDecoder(), IMAGES)
    assert segments.selected.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert segments.lengths[0].tolist() == pytest.approx([0.9, 0.8])
    matched = match_segments(segments, PAIRS)
    assert torch.equal(matched.selected, PAIRS)
    assert score_segmentation(matched.images, DIGITS).error == 0


@pytest.mark.parametrize(
    ("selected", "labels", "expected"),
    [
        ([5, 1], [1, 2], [1, 5]),
        ([2, 5], [1, 2], [5, 2]),
        ([1, 5], [1, 2], [1, 5]),
        ([6, 5], [1, 2], [6, 5]),
    ],
)
def test_a_class_that_is_no_label_takes_the_place_that_is_left(selected, labels, expected):
    images = torch.tensor(selected, dtype=torch.float32).view(1, 2, 1, 1, 1)
    segments = Segments(images, torch.tensor([selected]), torch.zeros(1, 7))
    matched = match_segments(segments, torch.tensor([labels]))
    assert matched.selected.tolist() == [expected]
    assert matched.images.flatten().tolist() == expected


@pytest.mark.parametrize("brightness", [0.0, 1.0])
def test_digits_without_pixels_of_their_own_have_no_share_of_ink(brightness):
    digits = torch.full((1, 2, 1, 2, 2), brightness)
    scores = score_segmentation(digits, digits)
    assert scores.ink_right is None
    assert scores.correlation is None
    assert scores.iou == 1


def test_equally_bright_drawings_decide_nothing():
    assert score_segmentation(torch.full_like(DIGITS, 0.5), DIGITS).ink_right == 0
