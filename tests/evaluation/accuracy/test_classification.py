from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from torchcaps.evaluation import score
from torchcaps.functional import margin_loss

from ..stubs import PixelReader, StubData, data_of, evaluate

CLASSES = ("cat", "dog", "owl", "yak")


@pytest.fixture
def pets() -> StubData:
    """Cats 2 of 3 right (one taken for a dog), dogs 1 of 2 (one taken for an owl), the owl right; no yak."""
    activations = [
        [0.9, 0.1, 0.0, 0.0],
        [0.8, 0.7, 0.1, 0.0],
        [0.3, 0.6, 0.0, 0.1],
        [0.1, 0.9, 0.1, 0.1],
        [0.0, 0.4, 0.5, 0.0],
        [0.1, 0.1, 0.9, 0.1],
    ]
    return data_of(activations, [0, 0, 0, 1, 1, 2], CLASSES)


def test_figures_worked_out_by_hand(pets: StubData) -> None:
    found = evaluate(PixelReader(4), pets)
    assert found.accuracy == pytest.approx(4 / 6)
    assert found.error == pytest.approx(2 / 6)
    assert found.num_samples == 6
    assert found.confusion.tolist() == [[2, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert found.predictions.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.per_class == [
        {"name": "cat", "accuracy": 2 / 3, "correct": 2, "count": 3, "precision": 1.0},
        {"name": "dog", "accuracy": 1 / 2, "correct": 1, "count": 2, "precision": 1 / 2},
        {"name": "owl", "accuracy": 1.0, "correct": 1, "count": 1, "precision": 1 / 2},
        {"name": "yak", "accuracy": None, "correct": 0, "count": 0, "precision": None},
    ]
    # Margin loss: 0; 0.1^2 + 0.6^2 / 2; 0.6^2 + 0.5^2 / 2; 0; 0.5^2 + 0.4^2 / 2; 0.
    assert found.loss == pytest.approx((0.19 + 0.485 + 0.33) / 6)


def test_the_default_loss_is_the_margin_loss_and_another_may_be_given(pets: StubData) -> None:
    found = evaluate(PixelReader(4), pets)
    assert found.loss == pytest.approx(float(margin_loss(found.activations, pets.labels)))
    other = score(
        found.activations, pets.labels, CLASSES, loss=lambda activation, _: activation.max()
    )
    assert other.loss == pytest.approx(0.9)


@pytest.mark.parametrize("batch_size", [1, 4, 6, 100])
def test_the_batch_size_changes_no_figure(pets: StubData, batch_size: int) -> None:
    model = PixelReader(4)
    assert evaluate(model, pets, batch_size).to_dict() == evaluate(PixelReader(4), pets).to_dict()
    assert max(size for size, _, _ in model.seen) == min(batch_size, 6)


def test_to_dict_is_json_with_the_keys_that_users_rely_on(pets: StubData) -> None:
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


def test_table_rows(pets: StubData) -> None:
    rows = evaluate(PixelReader(4), pets).table().lines
    assert rows[0] == ("class", "accuracy", "correct", "count", "precision")
    assert rows[1] == ("cat", "66.67 %", "2", "3", "100.00 %")
    assert rows[4] == ("yak", "-", "0", "0", "-")
    assert rows[5] == ("all", "66.67 %", "4", "6", "")


def test_the_model_keeps_its_mode_and_sees_no_gradients(pets: StubData) -> None:
    model = PixelReader(4).train()
    found = evaluate(model, pets)
    assert model.training
    assert not any(grad for _, _, grad in model.seen)
    assert not found.activations.is_inference()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(2, 12), st.integers(0, 2**31))
def test_the_figures_agree_with_each_other(samples: int, classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    activations = torch.rand(samples, classes, generator=generator)
    labels = torch.randint(classes, (samples,), generator=generator)
    found = score(activations, labels, [f"c{i}" for i in range(classes)])
    assert int(found.confusion.sum()) == samples
    assert int(found.confusion.diagonal().sum()) == sum(row["correct"] for row in found.per_class)
    assert found.accuracy == pytest.approx(int(found.confusion.diagonal().sum()) / samples)
    assert found.accuracy + found.error == pytest.approx(1)
    assert [row["count"] for row in found.per_class] == torch.bincount(
        labels, minlength=classes
    ).tolist()


def test_a_model_with_another_number_of_classes(pets: StubData) -> None:
    wrong = StubData(pets.images, pets.labels, CLASSES[:3])
    with pytest.raises(
        ValueError, match=r"activations: expected \[n=6, classes=3\], got \[n=6, classes=4\]"
    ):
        evaluate(PixelReader(4), wrong)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 0, 0, 1, 1, 4], "labels: expected class indices from 0 to 3, got 4"),
        ([0, 0, 0, 1, 1, -1], "labels: expected class indices from 0 to 3, got -1"),
        ([], "labels: expected at least one sample, got none"),
        ([0.0], "labels: expected int64 class indices, got torch.float32"),
        ([[0]], r"labels: expected \[n\], got \[1, 1\]"),
    ],
)
def test_labels_that_do_not_fit(pets: StubData, labels: list[int], message: str) -> None:
    tensor = torch.tensor(labels) if labels else torch.zeros(0, dtype=torch.int64)
    with pytest.raises(ValueError, match=message):
        evaluate(PixelReader(4), StubData(pets.images, tensor, CLASSES))


@pytest.mark.parametrize("value", [7.5, -3.0, math.nan])
def test_logits_and_nan_are_no_lengths(pets: StubData, value: float) -> None:
    pets.images[2, 0, 0, 1] = value
    with pytest.raises(ValueError, match=r"activations: expected lengths in \[0, 1\], not logits"):
        evaluate(PixelReader(4), pets)
