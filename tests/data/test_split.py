import pytest
import torch
from hypothesis import given, settings, strategies as st

from torchcaps.data import few_labels, stratified_split
from torchcaps.errors import DataError

LABELS = st.lists(st.integers(0, 5), min_size=2, max_size=80).map(torch.tensor)


@settings(deadline=None)
@given(labels=LABELS, count=st.integers(1, 79), seed=st.integers(0, 1000))
def test_a_count_is_met_and_shared_in_proportion(labels, count, seed):
    count = min(count, len(labels) - 1)
    kept, held = stratified_split(labels, count, seed)
    assert len(held) == count
    assert torch.equal(torch.cat([kept, held]).sort().values, torch.arange(len(labels)))
    for label in labels.unique():
        exact = count * int((labels == label).sum()) / len(labels)
        assert abs(int((labels[held] == label).sum()) - exact) < 1


@settings(deadline=None)
@given(labels=LABELS, fraction=st.floats(0.01, 0.99))
def test_a_fraction_of_every_class(labels, fraction):
    sizes = labels.bincount()
    if sizes.max() < 2:
        with pytest.raises(DataError, match="leaves nothing on one side"):
            stratified_split(labels, fraction)
        return
    kept, held = stratified_split(labels, fraction)
    for label, size in enumerate(sizes.tolist()):
        wanted = min(max(round(size * fraction), 1), size - 1) if size else 0
        assert int((labels[held] == label).sum()) == wanted
    assert torch.equal(torch.cat([kept, held]).sort().values, torch.arange(len(labels)))


def test_the_split_is_frozen():
    # Written down once: a change of numpy or torch must not move an image between splits.
    kept, held = stratified_split(torch.arange(20) % 2, 0.3, seed=7)
    assert held.tolist() == [0, 3, 5, 7, 10, 16]
    assert sorted(kept.tolist() + held.tolist()) == list(range(20))


def test_seeds_differ():
    labels = torch.arange(200) % 4
    assert not torch.equal(stratified_split(labels, 0.5, 0)[1], stratified_split(labels, 0.5, 1)[1])


@pytest.mark.parametrize("bad", [0, 4, -1, 0.0, 1.0, 1.5, float("nan")])
def test_bad_amounts(bad):
    with pytest.raises(DataError, match=r"expected a (count from 1 to 3|fraction between 0 and 1)"):
        stratified_split(torch.tensor([0, 1, 0, 1]), bad)


SOME = torch.tensor([0] * 30 + [1] * 20 + [2] * 25)


def test_as_many_of_each_class_and_small_subsets_in_larger_ones() -> None:
    small, large = (few_labels(SOME, count, seed=3) for count in (4, 20))
    assert torch.bincount(SOME[large]).tolist() == [20, 20, 20]
    assert torch.isin(small, large).all()
    assert torch.equal(small, small.sort().values)
    assert torch.equal(small, few_labels(SOME, 4, seed=3))
    assert not torch.equal(small, few_labels(SOME, 4, seed=4))


def test_a_class_with_too_few() -> None:
    with pytest.raises(
        ValueError, match="per_class: expected at most 20, the images of class 1, got 21"
    ):
        few_labels(SOME, 21)


def test_groups_of_a_class_are_never_parted():
    labels = torch.arange(120) % 3
    groups = torch.arange(120) // 3 % 10  # ten of each class, numbered alike
    kept, held = stratified_split(labels, 0.3, seed=1, groups=groups)
    sides = [set(zip(labels[i].tolist(), groups[i].tolist(), strict=True)) for i in (kept, held)]
    assert not sides[0] & sides[1]
    assert [sum(label == c for label, _ in sides[1]) for c in range(3)] == [3, 3, 3]
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(120))
    assert not torch.equal(held, stratified_split(labels, 0.3, seed=2, groups=groups)[1])
    assert len(stratified_split(labels, 24, groups=groups)[1]) == 24


def test_one_group_alone_cannot_be_parted():
    with pytest.raises(DataError, match="leaves nothing on one side"):
        stratified_split(torch.tensor([0, 0, 1, 1]), 0.5, groups=torch.zeros(4, dtype=torch.int64))
