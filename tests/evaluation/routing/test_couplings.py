import math

import pytest
import torch

from torchcaps.errors import ArgumentError
from torchcaps.evaluation import coupling_dynamics, coupling_entropy, parse_tree

from ..stubs import recorded

N = 12
CHILDREN = 5
PARENTS = 4
LABELS = torch.arange(N) % 3
UNIFORM = recorded(torch.full((N, CHILDREN, PARENTS), 1 / PARENTS))


def one_hot(parents):
    return torch.nn.functional.one_hot(parents, PARENTS).float()


def hard_tree(parent_of_image):
    """The couplings of images whose children all have one parent, `[n]`."""
    return recorded(one_hot(parent_of_image[:, None].expand(-1, CHILDREN)))


def test_entropy_is_one_for_uniform_couplings_and_zero_for_a_tree():
    uniform = coupling_entropy(UNIFORM)
    assert uniform.mean == pytest.approx(1)
    assert uniform.largest == pytest.approx(1 / PARENTS)
    assert "next to nothing" in uniform.verdict
    tree = coupling_entropy(hard_tree(torch.zeros(N, dtype=torch.int64)))
    assert tree.mean == pytest.approx(0, abs=1e-9)
    assert tree.largest == 1
    assert "one parent" in tree.verdict


def test_entropy_by_hand():
    coupling = torch.tensor([[[0.5, 0.5, 0.0, 0.0], [0.25] * 4]])
    entropy = coupling_entropy(recorded(coupling, torch.tensor([[3.0, 1.0]]) / 4))
    assert entropy.mean == pytest.approx((3 * 0.5 + 1) / 4)


def test_shares_of_a_window_are_taken_within_it():
    # Three quarters of the first child lie in other windows; inside, it divides itself like the
    # second.
    coupling = torch.tensor([[[0.125, 0.125], [1.0, 0.0]]])
    assert coupling_entropy(recorded(coupling)).mean == pytest.approx((0.25 * 1 + 0) / 1.25)


def test_couplings_that_never_change_have_no_dynamics():
    parents = torch.arange(CHILDREN).expand(N, -1) % PARENTS
    dynamics = coupling_dynamics(recorded(one_hot(parents)), LABELS)
    assert dynamics.mean == dynamics.high == 0
    assert dynamics.explained is None
    assert "same for every image" in dynamics.verdict


def test_dynamics_that_follow_the_class_are_explained_by_it():
    dynamics = coupling_dynamics(hard_tree(LABELS), LABELS)
    # Each of the first three links is 1 in a third of the images, the last one never.
    deviation = math.sqrt(1 / 3 * 2 / 3)
    assert dynamics.mean == pytest.approx(deviation * 3 / 4)
    assert dynamics.high == pytest.approx(deviation)
    assert dynamics.explained == pytest.approx(1)
    assert dynamics.chance == pytest.approx(2 / 11)


def test_few_links_that_move_are_in_the_highest_twentieth():
    parents = torch.zeros(N, CHILDREN, dtype=torch.int64)
    parents[:, 0] = LABELS  # three links of twenty
    dynamics = coupling_dynamics(recorded(one_hot(parents)), LABELS)
    assert dynamics.high == pytest.approx(math.sqrt(2) / 3)
    assert dynamics.mean == pytest.approx(3 / 20 * math.sqrt(2) / 3)


def test_dynamics_without_the_class_are_not_explained_by_it():
    # Within each class every parent comes as often.
    dynamics = coupling_dynamics(hard_tree(torch.arange(N) // 3), LABELS)
    assert dynamics.explained == pytest.approx(0)


def test_a_tree_that_depends_on_the_class_tells_all_of_it():
    tree = parse_tree(hard_tree(LABELS), LABELS)
    assert tree.support == 1
    assert tree.information == pytest.approx(math.log2(3))
    assert tree.possible == pytest.approx(math.log2(3))
    assert tree.chance < tree.information
    assert "one depends on the class" in tree.verdict


def test_a_static_tree_tells_nothing():
    tree = parse_tree(hard_tree(torch.ones(N, dtype=torch.int64)), LABELS)
    assert tree.support == 1
    assert tree.information == pytest.approx(0)
    assert "hardly depends on the class" in tree.verdict


def test_uniform_couplings_are_no_tree():
    tree = parse_tree(UNIFORM, LABELS)
    assert tree.support == 0
    assert tree.verdict.startswith("No parse tree")


def test_idle_children_do_not_count():
    parents = torch.zeros(N, CHILDREN, dtype=torch.int64)
    parents[:, 0] = LABELS
    activation = torch.zeros(N, CHILDREN)
    activation[:, 0] = 0.7
    coupling = one_hot(parents)
    tree = parse_tree(recorded(coupling, activation), LABELS)
    assert tree.information == pytest.approx(math.log2(3))
    diluted = parse_tree(recorded(coupling), LABELS)
    assert diluted.information == pytest.approx(math.log2(3) / CHILDREN)


@pytest.mark.parametrize("measure", [coupling_dynamics, parse_tree])
@pytest.mark.parametrize(
    ("shape", "num_labels", "message"),
    [
        ((N, CHILDREN, 1), N, "number of parents: expected at least 2, got 1"),
        ((1, CHILDREN, 2), 1, "number of images: expected at least 2, got 1"),
        ((N, CHILDREN, 2), 3, r"labels: expected \[n=12\], got \[n=3\]"),
    ],
)
def test_arguments_that_do_not_fit(measure, shape, num_labels, message):
    with pytest.raises(ArgumentError, match=message):
        measure(recorded(torch.ones(shape)), LABELS[:num_labels])
