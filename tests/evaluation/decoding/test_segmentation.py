from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchcaps.evaluation import Segments, match_segments, score_segmentation, segment
from torchcaps.types import Capsules, ModelSpec

# Three digits: a bar above, a bar on the left, a bar below. The first two share a corner.
SHAPES = torch.zeros(3, 1, 4, 4)
SHAPES[0, 0, 0] = SHAPES[1, 0, :, 0] = SHAPES[2, 0, 3] = 1
PAIRS = torch.tensor([[0, 1], [2, 0], [1, 2]])
IMAGES = SHAPES[PAIRS].amax(dim=1)


class PerfectDecoder(nn.Module):
    """Sees which bars there are, and draws the one that it is asked for."""

    spec = ModelSpec(pose=True, activation="length", decoder=True)

    def __init__(self) -> None:
        super().__init__()
        self.shapes = nn.Parameter(SHAPES.clone())

    def capsules(self, images: Tensor) -> Capsules:
        there = torch.einsum("bchw,kchw->bk", images, self.shapes) / 4
        activation = there * torch.tensor([0.9, 0.8, 0.7])
        return Capsules(activation.unsqueeze(-1), activation)

    def forward(self, images: Tensor) -> Tensor:
        return self.capsules(images).activation

    def reconstruct(self, capsules: Capsules, labels: Tensor) -> Tensor:
        return self.shapes[labels]


def test_a_perfect_decoder_has_perfect_scores() -> None:
    drawn = segment(PerfectDecoder(), IMAGES, PAIRS)
    assert torch.equal(drawn.shown, PAIRS)
    found = score_segmentation(drawn.images, SHAPES[PAIRS])
    assert found.error == 0
    assert found.iou == 1
    assert found.ink_right == 1
    assert found.correlation == pytest.approx(1)
    assert found.num_samples == 3


def test_drawings_of_the_other_digit_are_wrong_everywhere() -> None:
    drawn = segment(PerfectDecoder(), IMAGES, PAIRS.flip(1))
    found = score_segmentation(drawn.images, SHAPES[PAIRS])
    # The corner of the first pair and the third pair's belong to both: 1 of 7 pixels; bars above and below share none.
    assert found.iou == pytest.approx((1 / 7 + 0 + 1 / 7) / 3)
    assert found.error == pytest.approx((6 + 8 + 6) / 3 / 16)
    assert found.ink_right == 0
    assert found.correlation is not None
    assert found.correlation < 0


def test_without_labels_the_longest_capsules_are_drawn() -> None:
    drawn = segment(PerfectDecoder(), IMAGES)
    assert drawn.shown.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert drawn.lengths[0].tolist() == pytest.approx([0.9, 0.8])
    assert drawn.images.shape == (3, 2, 1, 4, 4)


def test_found_classes_are_put_in_the_place_of_their_labels() -> None:
    drawn = match_segments(segment(PerfectDecoder(), IMAGES), PAIRS)
    assert torch.equal(drawn.shown, PAIRS)
    assert score_segmentation(drawn.images, SHAPES[PAIRS]).error == 0


@pytest.mark.parametrize(
    ("shown", "labels", "want"),
    [
        ([5, 1], [1, 2], [1, 5]),
        ([2, 5], [1, 2], [5, 2]),
        ([1, 5], [1, 2], [1, 5]),
        ([6, 5], [1, 2], [6, 5]),
    ],
)
def test_a_class_that_is_no_label_takes_the_place_that_is_left(shown, labels, want) -> None:
    images = torch.tensor(shown, dtype=torch.float32).view(1, 2, 1, 1, 1)
    found = match_segments(
        Segments(images, torch.tensor([shown]), torch.zeros(1, 7)), torch.tensor([labels])
    )
    assert found.shown.tolist() == [want]
    assert found.images.flatten().tolist() == want


def test_pixels_of_both_digits_belong_to_both() -> None:
    both = torch.ones(1, 2, 1, 2, 2)
    found = score_segmentation(both, both)
    assert found.ink_right is None
    assert found.correlation is None
    assert found.iou == 1
    empty = score_segmentation(torch.zeros(1, 2, 1, 2, 2), torch.zeros(1, 2, 1, 2, 2))
    assert empty.iou == 1


def test_equally_bright_drawings_decide_nothing() -> None:
    digits = SHAPES[PAIRS]
    assert score_segmentation(torch.full_like(digits, 0.5), digits).ink_right == 0


def test_arguments_that_do_not_fit() -> None:
    with pytest.raises(
        ValueError, match=r"digits: expected \[n=3, k=2, channels=1, height=4, width=4\]"
    ):
        score_segmentation(SHAPES[PAIRS], SHAPES[PAIRS][:, :1])
    with pytest.raises(ValueError, match="threshold: expected between"):
        score_segmentation(SHAPES[PAIRS], SHAPES[PAIRS], threshold=0.0)
    with pytest.raises(ValueError, match=r"labels: expected \[n=3, k\]"):
        segment(PerfectDecoder(), IMAGES, PAIRS[:1])
    with pytest.raises(ValueError, match=r"labels: expected class indices from 0 to 2, got 3"):
        segment(PerfectDecoder(), IMAGES, PAIRS + 1)
