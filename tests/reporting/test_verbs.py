"""The verbs of the package on a trained model: a module, a run, or its folder."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import torchcaps as tc
from checks import column
from torchcaps.data import load_dataset
from torchcaps.errors import ArgumentError, RunError
from torchcaps.evaluation import score
from torchcaps.training import Run


@pytest.fixture(scope="module")
def model(trained):
    return tc.load(trained)


@pytest.fixture(scope="module")
def images(bars):
    return load_dataset(str(bars), "test")


def test_a_model_and_a_run_are_evaluated_alike(trained, model, bars, images):
    evaluation = tc.evaluate(trained)
    arrays = (images.images.numpy(), images.labels.numpy())
    for repeated in (
        tc.evaluate(Run(trained)),
        tc.evaluate(model, images),
        tc.evaluate(model, arrays),
        tc.evaluate(model, str(bars)),
        tc.evaluate(trained / "model.safetensors", bars),
    ):
        assert repeated.to_dict() == evaluation.to_dict()
    assert evaluation.accuracy == evaluation.to_dict()["accuracy"]
    assert not (trained / "evaluation.json").exists()


def test_a_model_alone_has_no_data(model):
    with pytest.raises(ArgumentError, match="^data: "):
        tc.evaluate(model)


def test_a_module_that_declares_nothing_is_a_classifier(images):
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(20 * 18, 3))
    assert 0 <= tc.evaluate(linear, images).accuracy <= 1


def test_predictions_in_batches_are_those_of_an_evaluation(model, images):
    rows = tc.predict(model, images.images.numpy(), batch_size=5)
    predictions = map(images.classes.index, column(rows, "label"))
    assert list(predictions) == tc.evaluate(model, images).predictions.tolist()


def test_routing_is_diagnosed(trained, model, images):
    diagnosis = tc.diagnose(trained, count=8)
    assert diagnosis.verdicts() == tc.diagnose(model, images, count=8).verdicts()
    comparison = tc.diagnose(model, images, baseline=trained, count=8)
    assert comparison.baseline is not None
    assert comparison.baseline.difference == 0


def answers(*rows):
    return torch.tensor(rows, dtype=torch.bool)


def test_booleans_are_compared_by_model_and_by_method():
    right = [1] * 300
    wrong = [0] * 300
    comparison = tc.compare(answers(right)[0], answers(wrong)[0])
    assert (comparison.outcome, comparison.difference) == ("first", 1.0)
    assert comparison.interval[0] <= 1.0 <= comparison.interval[1]
    assert comparison.p_value < 0.05
    array = answers(right).numpy()
    assert tc.compare(array, array, margin=0.05).outcome == "equivalent"
    methods = tc.compare(answers(wrong, wrong), answers(right, right))
    assert (methods.outcome, methods.first) == ("second", (0.0, 0.0))


@pytest.mark.parametrize("bad", [torch.ones(3), torch.ones(1, 2, 3, dtype=torch.bool), 5])
def test_answers_that_are_no_table_of_booleans_are_refused(bad):
    with pytest.raises((ArgumentError, TypeError)):
        tc.compare(bad, answers([1, 0, 1]))


def test_evaluations_are_compared_on_the_same_images():
    labels = torch.tensor([0, 1, 0])
    good = score(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.1]]), labels, ("a", "b"))
    bad = score(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.1, 0.7]]), labels, ("a", "b"))
    comparison = tc.compare(good, bad)
    assert (comparison.only_first, comparison.only_second) == (2, 0)
    methods = tc.compare([good, good], [bad, good, bad])
    assert methods.first == (1.0, 1.0)
    assert methods.second == pytest.approx((1 / 3, 1.0, 1 / 3))
    with pytest.raises(ArgumentError):
        tc.compare([good, good], [bad])
    shorter = score(torch.eye(2), labels[:2], ("a", "b"))
    with pytest.raises(ArgumentError, match="^second: "):
        tc.compare(good, shorter)


def test_a_margin_in_percent_is_a_share_of_the_errors_of_the_baseline():
    first, second = torch.ones(2, 1000, dtype=torch.bool)
    second[:50] = False
    assert tc.compare(first, second).margin == pytest.approx(0.1 * 0.05)
    assert tc.compare(first, second, margin="50%").margin == pytest.approx(0.5 * 0.05)
    assert tc.compare(second, first).margin == pytest.approx(0.1 / 1000)  # of at least one error
    assert tc.compare(first, second, margin=0.02).margin == 0.02


@pytest.mark.parametrize("margin", ["10", "x%", "100%"])
def test_a_margin_that_is_no_share_is_refused(margin):
    right = answers([1, 0, 1])
    with pytest.raises(ArgumentError, match="^margin: "):
        tc.compare(right, right, margin=margin)


def test_groups_and_other_tests_of_a_family_decide_less():
    first = torch.arange(400) % 40 < 38
    second = torch.arange(400) % 40 < 36
    single = tc.compare(first, second)
    assert single.outcome == "first"
    toys = [f"toy {number % 4}" for number in range(400)]
    by_toy = tc.compare(first, second, groups=toys)
    assert by_toy.num_groups == 4
    assert by_toy.outcome == "undecided"
    assert "by 4 groups of images" in by_toy.verdict
    others = [1e-12, 0.4]
    adjusted = tc.compare(first, second, adjust=others)
    assert adjusted.p_value == tc.evaluation.holm([single.p_value, *others])[0]
    assert adjusted.unadjusted_p == single.p_value
    assert "adjusted for 3 tests" in adjusted.verdict


def test_an_evaluation_knows_the_groups_of_its_images(model, images):
    grouped = replace(images, groups=torch.arange(len(images)) // 2)
    evaluation = tc.evaluate(model, grouped)
    comparison = tc.compare(evaluation, evaluation)
    assert comparison.num_groups == len(grouped.groups.unique())
    assert tc.compare(evaluation, tc.evaluate(model, images)).num_groups is not None


def test_a_run_is_compared_with_itself(trained):
    comparison = tc.compare(trained, Run(trained), margin=0.5)
    assert comparison.only_first == comparison.only_second == 0
    with pytest.raises(RunError, match="another seed"):
        tc.compare([trained, trained], [trained, trained])
