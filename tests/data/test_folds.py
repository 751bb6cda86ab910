"""Folds are disjoint, cover all images, are even in every class, and never divide a group."""

import torch
from hypothesis import given, settings, strategies as st

from torchcaps.data import stratified_folds
from torchcaps.errors import ArgumentError

from .makers import refusal

LABELS = torch.repeat_interleave(torch.arange(3), torch.tensor([100, 13, 4]))


def counts_by_fold(folds, labels, num_folds):
    """Images of each class in each fold, `[folds, classes]`."""
    cells = folds * (int(labels.max()) + 1) + labels
    return cells.bincount(minlength=num_folds * (int(labels.max()) + 1)).view(num_folds, -1)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=5, max_size=60), st.integers(2, 5), st.integers(0, 9))
def test_folds_differ_by_at_most_one_image_in_all_and_of_each_class(labels, num_folds, seed):
    classes = torch.tensor(labels)
    folds = stratified_folds(classes, num_folds, seed)
    assert folds.shape == classes.shape
    assert 0 <= int(folds.min()) <= int(folds.max()) < num_folds
    counts = counts_by_fold(folds, classes, num_folds)
    assert int((counts.amax(dim=0) - counts.amin(dim=0)).max()) <= 1
    totals = counts.sum(dim=1)
    assert int(totals.min()) > 0
    assert int(totals.max() - totals.min()) <= 1


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=5, max_size=60),
    st.integers(2, 5),
)
def test_no_group_is_in_two_folds_and_no_fold_is_empty(images, num_folds):
    labels, groups = torch.tensor(images).unbind(dim=1)
    if len(groups.unique()) < num_folds:
        with refusal("folds: expected at most", ArgumentError):
            stratified_folds(labels, num_folds, groups=groups)
        return
    folds = stratified_folds(labels, num_folds, groups=groups)
    for group in groups.unique():
        assert len(folds[groups == group].unique()) == 1
    assert len(folds.unique()) == num_folds


def test_groups_of_one_size_are_spread_evenly_over_the_folds_in_every_class():
    """Tracks of five frames each, as in video: 20 of the first class and 5 of the second."""
    groups = torch.arange(25).repeat_interleave(5)
    labels = (groups >= 20).long()
    folds = stratified_folds(labels, 5, groups=groups)
    assert counts_by_fold(folds, labels, 5).tolist() == [[20, 5]] * 5


def test_the_seed_decides_the_folds():
    first = stratified_folds(LABELS, 4, seed=1)
    assert torch.equal(first, stratified_folds(LABELS, 4, seed=1))
    assert not torch.equal(first, stratified_folds(LABELS, 4, seed=2))
    groups = torch.arange(len(LABELS)) // 2
    grouped = stratified_folds(LABELS, 4, seed=1, groups=groups)
    assert not torch.equal(grouped, stratified_folds(LABELS, 4, seed=2, groups=groups))


def test_more_folds_than_images_and_one_fold_are_refused():
    with refusal("folds: expected at most 117, the images, got 118", ArgumentError):
        stratified_folds(LABELS, 118)
    with refusal("folds: expected at least 2, got 1", ArgumentError):
        stratified_folds(LABELS, 1)
    with refusal("folds: expected at most 2, the groups, got 3", ArgumentError):
        stratified_folds(LABELS, 3, groups=LABELS.clamp(max=1))
