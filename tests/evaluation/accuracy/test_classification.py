import json
import math

import pytest
import torch

from checks import column
from torchcaps.errors import ArgumentError
from torchcaps.evaluation import score

from ..stubs import PixelReader, data_of, evaluate

CLASSES = ("cat", "dog", "owl", "yak")


@pytest.fixture
def pets():
    """Cats 2 of 3 right (one taken for a dog), dogs 1 of 2 (one for an owl), the owl; no yak."""
    activations = [
        [0.9, 0.1, 0.0, 0.0],
        [0.8, 0.7, 0.1, 0.0],
        [0.3, 0.6, 0.0, 0.1],
        [0.1, 0.9, 0.1, 0.1],
        [0.0, 0.4, 0.5, 0.0],
        [0.1, 0.1, 0.9, 0.1],
    ]
    return data_of(activations, [0, 0, 0, 1, 1, 2], CLASSES)


def test_figures_worked_out_by_hand(pets):
    evaluation = evaluate(PixelReader(4), pets)
    assert evaluation.accuracy == pytest.approx(4 / 6)
    assert evaluation.error == pytest.approx(2 / 6)
    assert evaluation.num_samples == 6
    assert evaluation.confusion.tolist() == [
        [2, 1, 0, 0],
        [0, 1, 1, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 0],
    ]
    assert evaluation.predictions.tolist() == [0, 0, 1, 1, 2, 2]
    # AUROC of dogs: 0.9 is above 0.1, 0.7, 0.6 and 0.1 of the others; 0.4 is above two of them.
    assert list(map(list, map(dict.values, evaluation.per_class))) == [
        ["cat", 2 / 3, 2, 3, 1.0, 4 / 5, 1.0],
        ["dog", 1 / 2, 1, 2, 1 / 2, 2 / 4, 6 / 8],
        ["owl", 1.0, 1, 1, 1 / 2, 2 / 3, 1.0],
        ["yak", None, 0, 0, None, None, None],
    ]
    # Margin loss: 0; 0.1^2 + 0.6^2 / 2; 0.6^2 + 0.5^2 / 2; 0; 0.5^2 + 0.4^2 / 2; 0.
    assert evaluation.loss == pytest.approx((0.19 + 0.485 + 0.33) / 6)


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_the_batch_size_changes_no_figure(pets, batch_size):
    model = PixelReader(4).train()
    evaluation = evaluate(model, pets, batch_size)
    assert evaluation.to_dict() == evaluate(PixelReader(4), pets).to_dict()
    assert model.calls[0] == (min(batch_size, 6), False)
    assert model.training
    assert not evaluation.activations.is_inference()


def test_to_dict_is_json_with_the_keys_that_users_rely_on(pets):
    document = json.loads(json.dumps(evaluate(PixelReader(4), pets).to_dict(), allow_nan=False))
    assert set(document) == {
        "accuracy",
        "error",
        "balanced_accuracy",
        "macro_f1",
        "auroc",
        "never_predicted",
        "per_class",
        "num_samples",
        "confusion_matrix",
        "loss",
        "loss_name",
        "calibration_error",
        "calibration",
        "classes",
    }
    assert document["classes"] == list(CLASSES)
    assert document["calibration_error"] == document["calibration"]["length"]["error"]
    assert sum(document["calibration"]["length"]["count"]) == 6


def test_the_table_has_a_row_for_each_class_one_for_their_means_and_one_for_all(pets):
    rows = evaluate(PixelReader(4), pets).table().rows
    assert rows[0] == ("cat", "66.67 %", "2", "3", "100.00 %", "0.8000", "1.0000")
    assert rows[3] == ("yak", "-", "0", "0", "-", "-", "-")
    assert rows[4] == ("mean of classes", "72.22 %", "", "", "", "0.6556", "0.9167")
    assert rows[5] == ("all", "66.67 %", "4", "6", "", "", "")


def test_f1_counts_a_class_without_samples_that_was_predicted(pets):
    pets.images[5, 0, 0] = torch.tensor([0.1, 0.1, 0.2, 0.9])  # the owl is taken for a yak
    evaluation = evaluate(PixelReader(4), pets)
    assert column(evaluation.per_class, "f1") == [4 / 5, 2 / 4, 0.0, 0.0]
    assert evaluation.macro_f1 == pytest.approx((4 / 5 + 2 / 4) / 4)
    assert evaluation.balanced_accuracy == pytest.approx((2 / 3 + 1 / 2) / 3)


def test_equal_activations_count_half_in_the_area_under_the_curve():
    activations = torch.tensor([[0.5, 0.2], [0.5, 0.5], [0.7, 0.5], [0.3, 0.9]])
    evaluation = score(activations, torch.tensor([0, 0, 1, 1]), ("cat", "dog"))
    # Cats 0.5 and 0.5 against dogs 0.7 and 0.3; dogs 0.5 and 0.9 against cats 0.2 and 0.5.
    assert column(evaluation.per_class, "auroc") == [2 / 4, (1 + 0.5 + 1 + 1) / 4]
    assert evaluation.auroc == pytest.approx((0.5 + 0.875) / 2)
    constant = score(torch.full((4, 2), 0.4), torch.tensor([0, 1, 1, 1]), ("cat", "dog"))
    assert constant.auroc == 0.5


def test_one_class_alone_has_no_area_under_the_curve():
    evaluation = score(
        torch.tensor([[0.9, 0.2], [0.1, 0.3]]), torch.zeros(2).long(), ("cat", "dog")
    )
    assert evaluation.auroc is None
    assert evaluation.balanced_accuracy == evaluation.accuracy == 0.5
    assert evaluation.macro_f1 == pytest.approx((2 / 3 + 0) / 2)
    assert evaluation.table().rows[-2][-1] == "-"


def test_classes_with_samples_that_are_never_predicted_are_named():
    """1,000, 60 and 8 images, and a model that takes all of them for the first class."""
    labels = torch.tensor([0] * 1000 + [1] * 60 + [2] * 8)
    activations = torch.tensor([0.9, 0.2, 0.1, 0.0]).expand(len(labels), 4)
    evaluation = score(activations, labels, CLASSES)
    assert evaluation.accuracy == pytest.approx(1000 / 1068)
    assert evaluation.balanced_accuracy == pytest.approx(1 / 3)
    assert evaluation.macro_f1 == pytest.approx(2000 / 2068 / 3)
    assert evaluation.auroc == 0.5
    assert evaluation.never_predicted == ["dog", "owl"]
    assert evaluation.summary.endswith("1068 images; never predicted: dog, owl")
    assert evaluation.to_dict()["never_predicted"] == ["dog", "owl"]


@pytest.mark.parametrize("label", [4, -1])
def test_labels_that_are_no_class_are_refused(pets, label):
    pets.labels[-1] = label
    with pytest.raises(ArgumentError, match=f"labels: expected between 0 and 3, got {label}"):
        evaluate(PixelReader(4), pets)


@pytest.mark.parametrize("activation", [7.5, -3.0, math.nan])
def test_logits_and_nan_are_no_lengths(pets, activation):
    pets.images[2, 0, 0, 1] = activation
    with pytest.raises(ArgumentError, match=r"activations: expected between -0.01 and 1.01, got"):
        evaluate(PixelReader(4), pets)
