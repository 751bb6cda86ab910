"""Pictures of digits in eight ways, and of none: what prediction is held to."""

import numpy as np
import pytest
from benchmarks.pictures import DIGITS, OTHERS, measure, others

import torchcaps as tc

COUNT = 30  # pictures of each kind


@pytest.fixture(scope="module")
def predictor():
    return tc.Predictor(tc.create_model("capsnet_small", pretrained=True))


def percent(text):
    return float(text.removesuffix("%"))


@pytest.mark.parametrize("way", DIGITS)
def test_digits_are_answered_and_answers_are_right(predictor, way):
    digits = tc.data.load_dataset("digits", "test")
    random = np.random.default_rng(0)
    pictures = [DIGITS[way](pixels, random) for pixels in digits.images[:COUNT, 0].numpy()]
    labels = [digits.classes[label] for label in digits.labels[:COUNT].tolist()]
    row = measure(predictor, pictures, labels)
    assert percent(row["answered"]) >= 80
    assert percent(row["right"]) >= 95


def test_others_are_unknown(predictor):
    pictures = others(COUNT, None)
    assert {*pictures} == {*OTHERS}
    shares = [percent(measure(predictor, pictures[kind])["unknown"]) for kind in pictures]
    assert np.mean(shares) >= 90
    assert min(shares) >= 75
