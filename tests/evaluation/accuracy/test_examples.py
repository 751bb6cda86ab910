from __future__ import annotations

import pytest
import torch

from torchcaps.evaluation import example_indices, worst_mistakes


def test_worst_mistakes_come_first() -> None:
    activations = torch.tensor([[0.9, 0.1], [0.2, 0.3], [0.1, 0.9], [0.8, 0.2]])
    # Wrong: sample 1 by 0.1, sample 2 by 0.8, sample 3 by 0.6.
    assert worst_mistakes(activations, torch.tensor([0, 0, 0, 1])).tolist() == [2, 3, 1]
    assert worst_mistakes(activations, torch.tensor([0, 1, 1, 0])).tolist() == []


def test_a_mistake_with_several_labels_is_one_that_is_missed() -> None:
    activations = torch.tensor([[0.9, 0.8, 0.1], [0.9, 0.8, 0.1], [0.2, 0.7, 0.6]])
    labels = torch.tensor([[1, 0], [2, 0], [0, 1]])
    assert worst_mistakes(activations, labels).tolist() == [1, 2]


def test_examples_of_each_class_in_turn() -> None:
    labels = torch.tensor([2, 0, 2, 5, 0, 2, 0, 0])
    chosen = example_indices(labels, 2, seed=1)
    assert labels[chosen].tolist() == [0, 0, 2, 2, 5]
    assert len(set(chosen.tolist())) == 5


def test_the_seed_decides_and_the_global_generator_is_left_alone() -> None:
    labels = torch.zeros(1000, dtype=torch.int64)
    state = torch.get_rng_state()
    first = example_indices(labels, 5, seed=3)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first, example_indices(labels, 5, seed=3))
    assert not torch.equal(first, example_indices(labels, 5, seed=4))


def test_no_samples_and_bad_arguments() -> None:
    assert example_indices(torch.zeros(0, dtype=torch.int64), 2, seed=0).tolist() == []
    with pytest.raises(ValueError, match="per_class: expected at least 1, got 0"):
        example_indices(torch.zeros(3, dtype=torch.int64), 0, seed=0)
    with pytest.raises(ValueError, match=r"labels: expected \[n\]"):
        example_indices(torch.zeros(3, 1, dtype=torch.int64), 1, seed=0)
