import numpy as np
import pytest

from torchcaps.data.synthnorb.solids import INSTANCES, make_toy

TOYS = [(category, instance) for category in range(5) for instance in range(INSTANCES)]


def corners(toy):
    """Points on the box of each solid, `[n, 3]`."""
    unit = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
    return np.concatenate([unit @ solid.frame.T + solid.center for solid in toy])


@pytest.mark.parametrize(("category", "instance"), TOYS)
def test_toys_stand_on_the_table_and_fill_the_scene(category, instance):
    toy = make_toy(category, instance)
    points = corners(toy)
    assert all(abs(np.linalg.det(solid.frame)) > 0 for solid in toy)
    assert (
        -0.2 < points[:, 2].min() < 0.02
    )  # corners of a box reach a little lower than what is in it
    sides = np.ptp(points, axis=0)
    assert max(sides[0] / 1.9, sides[1] / 1.9, sides[2] / 1.5) > 0.95


def outline(category, instance, seed=0):
    """What makes a toy: how many solids of which kinds, and the sizes of all of them."""
    toy = make_toy(category, instance, seed)
    return [solid.kind for solid in toy], np.array(
        [np.linalg.norm(solid.frame, axis=0) for solid in toy]
    )


@pytest.mark.parametrize("category", range(5))
def test_instances_differ_in_parts_or_proportions(category):
    for i in range(INSTANCES):
        for j in range(i):
            (kinds, sizes), (others, other_sizes) = outline(category, i), outline(category, j)
            assert (
                kinds != others
                or np.abs(np.log((sizes + 1e-3) / (other_sizes + 1e-3))).max() > 0.15
            )


def test_the_seed_changes_proportions_a_little():
    kinds, sizes = outline(3, 4)
    others, other_sizes = outline(3, 4, seed=1)
    assert kinds == others
    change = np.abs(np.log(other_sizes / sizes))
    assert 0.001 < change.max() < 0.2
    np.testing.assert_array_equal(outline(3, 4)[1], sizes)
