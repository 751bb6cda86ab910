import json
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from checks import column
from torchcaps.evaluation import score
from torchcaps.functional import margin_loss

from ..stubs import PixelReader, StubData, data_of, evaluate, refuses

CLASSES = ("cat", "dog", "owl", "yak")


@pytest.fixture
def pets() -> StubData:
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
    assert list(map(list, map(dict.values, evaluation.per_class))) == [
        ["cat", 2 / 3, 2, 3, 1.0],
        ["dog", 1 / 2, 1, 2, 1 / 2],
        ["owl", 1.0, 1, 1, 1 / 2],
        ["yak", None, 0, 0, None],
    ]
    # Margin loss: 0; 0.1^2 + 0.6^2 / 2; 0.6^2 + 0.5^2 / 2; 0; 0.5^2 + 0.4^2 / 2; 0.
    assert evaluation.loss == pytest.approx((0.19 + 0.485 + 0.33) / 6)


def test_the_default_loss_is_the_margin_loss_and_another_may_be_given(pets):
    evaluation = evaluate(PixelReader(4), pets)
    assert evaluation.loss == float(margin_loss(evaluation.activations, pets.labels))
    largest = score(
        evaluation.activations,
        pets.labels,
        CLASSES,
        loss=lambda a, _: a.max(),
    )
    assert largest.loss == pytest.approx(0.9)


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


def test_the_table_has_a_row_for_each_class_and_one_for_all(pets):
    rows = evaluate(PixelReader(4), pets).table().rows
    assert rows[0] == ("cat", "66.67 %", "2", "3", "100.00 %")
    assert rows[3] == ("yak", "-", "0", "0", "-")
    assert rows[4] == ("all", "66.67 %", "4", "6", "")


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 30), st.integers(2, 12), st.integers(0, 2**31))
def test_the_figures_agree_with_each_other(num_samples, num_classes, seed):
    generator = torch.Generator().manual_seed(seed)
    activations = torch.rand(num_samples, num_classes, generator=generator)
    labels = torch.randint(num_classes, (num_samples,), generator=generator)
    evaluation = score(activations, labels, ["a class"] * num_classes)
    num_correct = int(evaluation.confusion.diagonal().sum())
    assert int(evaluation.confusion.sum()) == num_samples
    assert num_correct == sum(column(evaluation.per_class, "correct"))
    assert evaluation.accuracy == pytest.approx(num_correct / num_samples)
    assert evaluation.accuracy + evaluation.error == pytest.approx(1)
    counts = torch.bincount(labels, minlength=num_classes).tolist()
    assert column(evaluation.per_class, "count") == counts


def test_another_number_of_classes_is_refused(pets):
    with refuses(r"activations: expected \[n=6, classes=3\], got \[n=6, classes=4\]"):
        evaluate(PixelReader(4), StubData(pets.images, pets.labels, CLASSES[:3]))


@pytest.mark.parametrize("label", [4, -1])
def test_labels_that_are_no_class_are_refused(pets, label):
    pets.labels[-1] = label
    with refuses(f"labels: expected class indices from 0 to 3, got {label}"):
        evaluate(PixelReader(4), pets)


@pytest.mark.parametrize("activation", [7.5, -3.0, math.nan])
def test_logits_and_nan_are_no_lengths(pets, activation):
    pets.images[2, 0, 0, 1] = activation
    with refuses(r"activations: expected lengths in \[0, 1\], not logits"):
        evaluate(PixelReader(4), pets)
