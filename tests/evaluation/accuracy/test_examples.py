import torch

from torchcaps.evaluation import example_indices, worst_mistakes

from ..stubs import refuses


def test_the_worst_mistake_has_the_largest_lead_over_the_true_class():
    activations = torch.tensor([[0.9, 0.1], [0.2, 0.3], [0.1, 0.9], [0.8, 0.2], [0.9, 0.95]])
    # Wrong: sample 1 by 0.1, sample 2 by 0.8, sample 3 by 0.6, and the longest, 4, by 0.05.
    assert worst_mistakes(activations, torch.tensor([0, 0, 0, 1, 0])).tolist() == [2, 3, 1, 4]
    assert worst_mistakes(activations, activations.argmax(dim=1)).tolist() == []


def test_a_mistake_with_several_labels_is_one_that_is_missed():
    activations = torch.tensor([[0.9, 0.8, 0.1], [0.9, 0.8, 0.1], [0.2, 0.7, 0.6]])
    labels = torch.tensor([[1, 1, 0], [1, 0, 1], [1, 1, 0]])
    assert worst_mistakes(activations, labels).tolist() == [1, 2]


def test_examples_are_of_each_class_in_turn():
    labels = torch.tensor([2, 0, 2, 5, 0, 2, 0, 0])
    examples = example_indices(labels, 2, seed=1)
    assert labels[examples].tolist() == [0, 0, 2, 2, 5]
    assert len(set(examples.tolist())) == 5
    assert example_indices(labels[:0], 2, seed=0).tolist() == []


def test_the_seed_decides_and_the_global_generator_is_left_alone():
    labels = torch.zeros(1000, dtype=torch.int64)
    state = torch.get_rng_state()
    first = example_indices(labels, 5, seed=3)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first, example_indices(labels, 5, seed=3))
    assert not torch.equal(first, example_indices(labels, 5, seed=4))


def test_arguments_that_do_not_fit():
    labels = torch.zeros(3, dtype=torch.int64)
    with refuses("per_class: expected at least 1, got 0"):
        example_indices(labels, 0, seed=0)
    with refuses(r"labels: expected \[n\]"):
        example_indices(labels.view(3, 1), 1, seed=0)
