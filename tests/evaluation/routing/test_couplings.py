from __future__ import annotations

import math

import pytest
import torch

from torchcaps.evaluation import coupling_dynamics, coupling_entropy, parse_tree
from torchcaps.nn import RoutingTrace

from ..stubs import recorded

N, CHILDREN, PARENTS = 12, 5, 4
LABELS = torch.arange(N) % 3


def hard(parents: torch.Tensor) -> RoutingTrace:
    """Every child has one parent: `parents [n, children]`."""
    return recorded(torch.nn.functional.one_hot(parents, PARENTS).float())


def test_entropy_is_one_for_uniform_couplings_and_zero_for_a_tree() -> None:
    uniform = coupling_entropy(recorded(torch.full((N, CHILDREN, PARENTS), 1 / PARENTS)))
    assert uniform.mean == pytest.approx(1)
    assert uniform.largest == pytest.approx(1 / PARENTS)
    assert "next to nothing" in uniform.verdict
    tree = coupling_entropy(hard(torch.zeros(N, CHILDREN, dtype=torch.int64)))
    assert tree.mean == pytest.approx(0, abs=1e-9)
    assert tree.largest == 1
    assert "one parent" in tree.verdict


def test_entropy_by_hand() -> None:
    coupling = torch.tensor([[[0.5, 0.5, 0.0, 0.0], [0.25] * 4]])
    found = coupling_entropy(recorded(coupling, torch.tensor([[3.0, 1.0]]) / 4))
    assert found.mean == pytest.approx((3 * 0.5 + 1) / 4)


def test_shares_of_a_window_are_taken_within_it() -> None:
    # Three quarters of the first child lie in other windows; inside, it divides itself like the second.
    found = coupling_entropy(recorded(torch.tensor([[[0.125, 0.125], [0.5, 0.5]]])))
    assert found.mean == pytest.approx(1)


def test_maps_of_parents_are_flattened() -> None:
    coupling = torch.rand(N, 2, 3, CHILDREN, PARENTS).softmax(dim=-1)
    child = torch.rand(N, 2, 3, CHILDREN)
    whole = coupling_entropy(
        RoutingTrace(coupling, coupling[..., 0, :], child, coupling[..., :1, :])
    )
    flat = coupling_entropy(recorded(coupling.flatten(1, 3), child.flatten(1)))
    assert whole.mean == pytest.approx(flat.mean)


def test_couplings_that_never_change_have_no_dynamics() -> None:
    found = coupling_dynamics(hard(torch.arange(CHILDREN).expand(N, -1) % PARENTS), LABELS)
    assert found.mean == found.high == 0
    assert found.explained is None
    assert "same for every image" in found.verdict


def test_dynamics_that_follow_the_class_are_explained_by_it() -> None:
    found = coupling_dynamics(hard(LABELS[:, None].expand(-1, CHILDREN)), LABELS)
    # Each of the first three links is 1 in a third of the images, the last one never.
    deviation = math.sqrt(1 / 3 * 2 / 3)
    assert found.mean == pytest.approx(deviation * 3 / 4)
    assert found.high == pytest.approx(deviation)
    assert found.explained == pytest.approx(1)
    assert found.chance == pytest.approx(2 / 11)


def test_dynamics_without_the_class_are_not_explained_by_it() -> None:
    # Within each class every parent comes as often.
    found = coupling_dynamics(hard((torch.arange(N) // 3)[:, None].expand(-1, CHILDREN)), LABELS)
    assert found.explained == pytest.approx(0)


def test_a_tree_that_depends_on_the_class_tells_all_of_it() -> None:
    found = parse_tree(hard(LABELS[:, None].expand(-1, CHILDREN)), LABELS)
    assert found.support == 1
    assert found.information == pytest.approx(math.log2(3))
    assert found.possible == pytest.approx(math.log2(3))
    assert found.chance < found.information
    assert "depends on the class" in found.verdict
    assert "hardly" not in found.verdict


def test_a_static_tree_tells_nothing() -> None:
    found = parse_tree(hard(torch.ones(N, CHILDREN, dtype=torch.int64)), LABELS)
    assert found.support == 1
    assert found.information == pytest.approx(0)
    assert "hardly depends on the class" in found.verdict


def test_uniform_couplings_are_no_tree() -> None:
    found = parse_tree(recorded(torch.full((N, CHILDREN, PARENTS), 1 / PARENTS)), LABELS)
    assert found.support == 0
    assert found.verdict.startswith("No parse tree")


def test_idle_children_do_not_count() -> None:
    parents = torch.zeros(N, CHILDREN, dtype=torch.int64)
    parents[:, 0] = LABELS
    busy = torch.zeros(N, CHILDREN)
    busy[:, 0] = 0.7
    coupling = torch.nn.functional.one_hot(parents, PARENTS).float()
    assert parse_tree(recorded(coupling, busy), LABELS).information == pytest.approx(math.log2(3))
    assert parse_tree(recorded(coupling), LABELS).information == pytest.approx(
        math.log2(3) / CHILDREN
    )


@pytest.mark.parametrize(
    ("coupling", "labels", "message"),
    [
        (torch.ones(N, CHILDREN, 1), LABELS, "number of parents: expected at least 2, got 1"),
        (torch.ones(1, CHILDREN, 2), LABELS[:1], "number of images: expected at least 2, got 1"),
        (torch.ones(N, CHILDREN, 2), LABELS[:3], r"labels: expected \[n=12\], got \[n=3\]"),
    ],
)
def test_arguments_that_do_not_fit(
    coupling: torch.Tensor, labels: torch.Tensor, message: str
) -> None:
    for measure in (coupling_dynamics, parse_tree):
        with pytest.raises(ValueError, match=message):
            measure(recorded(coupling), labels)
