"""Splits keep the proportions of classes, and are the same on every machine."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from torchcaps.data import ReadRequest, few_labels, stratified_split
from torchcaps.data.classes import group_strata
from torchcaps.data.entries import in_split

from .makers import refusal

RANDOM_LABELS = st.lists(st.integers(0, 5), min_size=2, max_size=80).map(torch.tensor)
LABELS = torch.tensor([0] * 30 + [1] * 20 + [2] * 25)


def assert_complete(train, test, count):
    """Every index is on one side."""
    assert torch.equal(torch.cat([train, test]).sort().values, torch.arange(count))


@settings(deadline=None, max_examples=50)
@given(labels=RANDOM_LABELS, count=st.integers(1, 79), seed=st.integers(0, 1000))
def test_a_count_is_met_and_divided_in_proportion(labels, count, seed):
    count = min(count, len(labels) - 1)
    train, test = stratified_split(labels, count, seed)
    assert len(test) == count
    assert_complete(train, test, len(labels))
    for label in labels.unique():
        exact = count * int((labels == label).sum()) / len(labels)
        assert abs(int((labels[test] == label).sum()) - exact) < 1


@settings(deadline=None, max_examples=50)
@given(labels=RANDOM_LABELS, fraction=st.floats(0.01, 0.99))
def test_a_fraction_of_every_class(labels, fraction):
    sizes = labels.bincount()
    if sizes.max() < 2:
        with refusal("leaves nothing on one side"):
            stratified_split(labels, fraction)
        return
    train, test = stratified_split(labels, fraction)
    assert_complete(train, test, len(labels))
    for label, size in enumerate(sizes.tolist()):
        quota = min(max(round(size * fraction), 1), size - 1) if size else 0
        assert int((labels[test] == label).sum()) == quota


def test_the_split_is_frozen():
    # Written down once: a change of numpy or torch must not move an image between splits.
    _, test = stratified_split(torch.arange(20) % 2, 0.3, seed=7)
    assert test.tolist() == [0, 3, 5, 7, 10, 16]


@pytest.mark.parametrize("amount", [0, 4, -1, 0.0, 1.0, 1.5, float("nan")])
def test_an_amount_out_of_range_is_refused(amount):
    with refusal(r"expected a (count from 1 to 3|fraction between 0 and 1)"):
        stratified_split(torch.tensor([0, 1, 0, 1]), amount)


def test_groups_of_a_class_are_never_split():
    labels = torch.arange(120) % 3
    groups = torch.arange(120) // 3 % 10  # ten of each class, numbered alike
    train, test = stratified_split(labels, 0.3, seed=1, groups=groups)
    assert_complete(train, test, 120)
    pairs = torch.stack([labels, groups], dim=1)
    test_members = pairs[test].unique(dim=0)
    assert not {*map(tuple, pairs[train].tolist())} & {*map(tuple, test_members.tolist())}
    assert test_members[:, 0].bincount().tolist() == [3, 3, 3]
    _, test_of_seed_2 = stratified_split(labels, 0.3, seed=2, groups=groups)
    assert not torch.equal(test, test_of_seed_2)
    _, test_of_24 = stratified_split(labels, 24, groups=groups)
    assert len(test_of_24) == 24


def test_few_labels_of_each_class_are_part_of_more():
    small = few_labels(LABELS, 4, seed=3)
    large = few_labels(LABELS, 20, seed=3)
    assert LABELS[large].bincount().tolist() == [20, 20, 20]
    assert torch.isin(small, large).all()
    assert torch.equal(small, small.sort().values)
    assert torch.equal(small, few_labels(LABELS, 4, seed=3))
    assert not torch.equal(small, few_labels(LABELS, 4, seed=4))


def test_a_class_with_too_few_images():
    message = "per_class: expected at most 20, the images of class 1, got 21"
    with refusal(message, ValueError):
        few_labels(LABELS, 21)


def test_a_group_of_several_classes_counts_for_its_rarest_one():
    labels = torch.zeros(100, dtype=torch.int64)
    labels[[0, 5]] = 1  # of the first two groups of five
    groups = torch.arange(100) // 5
    strata = group_strata(labels, groups)
    assert strata.tolist() == [1] * 10 + [0] * 90
    for split in ("train", "test"):
        chosen = in_split("set", labels, ReadRequest(split), groups=groups)
        assert labels[chosen].sum() == 1  # the rare class is on both sides
