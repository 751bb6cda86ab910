import pytest
import torch

from checks import column
from torchcaps.errors import ArgumentError
from torchcaps.evaluation import label_hits, score_multilabel, top_labels, worst_mistakes
from torchcaps.tasks.metrics import balanced_accuracy, top5_accuracy

# The two largest are: 0 and 1; 1 and 2; 3 and 0; 3 and 2.
ACTIVATIONS = torch.tensor(
    [[0.9, 0.8, 0.1, 0.2], [0.1, 0.7, 0.6, 0.0], [0.4, 0.1, 0.0, 0.5], [0.0, 0.1, 0.8, 0.9]]
)


def shown(*images):
    """0 and 1 for each of four classes, by the classes of each image."""
    return torch.tensor([[int(index in classes) for index in range(4)] for classes in images])


LABELS = shown([1, 0], [1, 3], [0, 3], [0, 1])  # both right; one; both; none


def test_all_three_figures_by_hand():
    scores = score_multilabel(ACTIVATIONS, LABELS)
    assert scores.exact == 0.5
    assert scores.error == 0.5
    assert scores.almost == 0.75
    assert scores.per_digit == pytest.approx(5 / 8)
    assert scores.standard_error == pytest.approx((0.5 * 0.5 / 4) ** 0.5)
    assert (scores.num_samples, scores.num_labels) == (4, 2)
    assert column(scores.table().rows, 1) == ["50.00 %", "75.00 %", "62.50 %", "0.5833"]


def test_images_with_fewer_labels_count_by_as_many_classes():
    labels = shown([0], [2], [0, 3], [3, 2, 1])
    scores = score_multilabel(ACTIVATIONS, labels)
    hits = shown([0], [], [0, 3], [3, 2, 1]).bool()
    assert torch.equal(label_hits(ACTIVATIONS, labels), hits)
    assert (scores.exact, scores.almost) == (0.75, 0.75)
    assert scores.per_digit == pytest.approx(6 / 7)
    assert worst_mistakes(ACTIVATIONS, labels).tolist() == [1]
    for metric, expected in (
        (balanced_accuracy, (1 + 1 + 1 / 2 + 1) / 4),
        (top5_accuracy, 1),
    ):
        assert float(metric(ACTIVATIONS, labels)) == pytest.approx(expected)


def test_auroc_is_the_mean_of_the_classes_that_are_not_in_all_or_no_images():
    labels = shown([1, 0], [1, 3], [1, 0], [1])
    # Class 0: 0.9 and 0.4 against 0.1 and 0; class 3: 0 against 0.2, 0.5 and 0.9.
    assert score_multilabel(ACTIVATIONS, labels).auroc == pytest.approx((1 + 0) / 2)
    assert score_multilabel(ACTIVATIONS, shown(*[[1, 0]] * 4)).auroc is None


def test_composites_of_one_digit_count_as_one_draw():
    # Deviations 1/2, -1/2, 1/2, -1/2 add up to 1 and -1 in the two groups.
    alternating = score_multilabel(ACTIVATIONS, LABELS, groups=torch.tensor([5, 8, 5, 8]))
    assert alternating.standard_error == pytest.approx(2**0.5 / 4)
    # By default each image is its own group, as tosses of a coin are.
    assert score_multilabel(ACTIVATIONS, LABELS).standard_error == pytest.approx(0.5 / 4**0.5)
    mixed = score_multilabel(ACTIVATIONS, LABELS, groups=torch.tensor([5, 5, 8, 8]))
    assert mixed.standard_error == 0


def test_the_most_active_come_first():
    assert top_labels(ACTIVATIONS).tolist() == [[0, 1], [1, 2], [3, 0], [3, 2]]
    assert top_labels(ACTIVATIONS, 1).tolist() == [[0], [1], [3], [3]]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (2 * LABELS, "labels: expected 0 and 1, and a class of each image"),
        (shown([0], [1], [], [2]), "labels: expected 0 and 1, and a class of each image"),
        (LABELS[:3], r"labels: expected \[n=4, classes=4\]"),
    ],
)
def test_labels_that_do_not_fit(labels, message):
    with pytest.raises(ArgumentError, match=message):
        score_multilabel(ACTIVATIONS, labels)


def test_logits_are_refused():
    with pytest.raises(ArgumentError, match="expected between -0.01"):
        score_multilabel(10 * ACTIVATIONS, LABELS)
