from __future__ import annotations

import torch

from torchcaps.tasks.classify import is_correct


def test_one_label_is_right_where_its_class_is_the_most_active():
    activation = torch.tensor([[0.9, 0.1, 0.2], [0.3, 0.1, 0.2], [0.3, 0.5, 0.2]])
    assert is_correct(activation, torch.tensor([0, 2, 1])).tolist() == [True, False, True]


def test_two_labels_are_right_where_both_are_the_most_active_in_any_order():
    activation = torch.tensor([[0.9, 0.1, 0.8], [0.9, 0.1, 0.8], [0.9, 0.1, 0.8]])
    assert is_correct(activation, torch.tensor([[0, 2], [2, 0], [0, 1]])).tolist() == [
        True,
        True,
        False,
    ]
