from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings, strategies as st

from torchcaps.evaluation import calibration, reliability


def test_error_of_four_samples_worked_out_by_hand():
    # Ten bins: (0.9, 1] holds 0.92 and 0.98, of which one is right: |1/2 - 0.95|; (0.6, 0.7] holds
    # 0.65, right; (0.5, 0.6] holds 0.55, wrong. (2 * 0.45 + 0.35 + 0.55) / 4 = 0.45.
    confidence = torch.tensor([0.92, 0.98, 0.65, 0.55])
    table = reliability(confidence, torch.tensor([True, False, True, False]), bins=10)
    assert table.error == pytest.approx(0.45)
    assert table.count == [0, 0, 0, 0, 0, 1, 1, 0, 0, 2]
    assert table.accuracy == [None] * 5 + [0.0, 1.0, None, None, 0.5]
    assert table.confidence[:5] == [None] * 5
    assert table.confidence[9] == pytest.approx(0.95)
    assert table.edges == pytest.approx([edge / 10 for edge in range(11)])


def test_an_edge_belongs_to_the_bin_below_it_and_zero_to_the_first():
    confidence = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
    assert reliability(confidence, confidence >= 0, bins=4).count == [2, 1, 1, 1]


def test_both_readings_of_unnormalized_lengths():
    # Sums to one: 0.75 and 0.75, one right, in one bin: |1/2 - 3/4|. Longest: 0.9 right, 0.6 wrong,
    # in two bins: (0.1 + 0.6) / 2.
    activations = torch.tensor([[0.9, 0.3], [0.2, 0.6]], requires_grad=True)
    readings = calibration(activations, torch.tensor([0, 0]))
    assert readings.normalized.error == pytest.approx(0.25)
    assert readings.length.error == pytest.approx(0.35)
    assert len(readings.length.count) == 15


def test_dead_capsules_count_as_an_even_guess():
    readings = calibration(torch.zeros(4, 5), torch.zeros(4, dtype=torch.int64))
    assert readings.normalized.confidence[2] == pytest.approx(0.2)
    assert readings.length.confidence[0] == 0.0


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1, width=32), st.booleans()), min_size=1, max_size=40),
    st.integers(1, 20),
)
def test_the_error_is_that_of_a_plain_loop(samples, bins):
    confidence, correct = map(torch.tensor, zip(*samples, strict=True))
    table = reliability(confidence, correct, bins)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64).tolist()
    error = 0.0
    for low, high in pairwise(edges):
        inside = [right - c for c, right in samples if low < c <= high or c == low == 0]
        error += abs(sum(inside)) / len(samples)
    assert table.error == pytest.approx(error, abs=1e-6)
    assert 0 <= table.error <= 1
    assert sum(table.count) == len(samples)
