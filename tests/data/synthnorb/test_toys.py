import numpy as np
import pytest

from torchcaps.data.synthnorb.solids import NUM_TOYS, make_toy

CUBE = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])


def outline(category, instance, seed=0):
    """What tells toys apart: how many solids of which kinds, and the logarithms of their sizes."""
    toy = make_toy(category, instance, seed)
    sizes = np.array([np.linalg.norm(solid.frame, axis=0) for solid in toy])
    return [solid.kind for solid in toy], np.log(sizes + 1e-3)


@pytest.mark.parametrize("category", range(5))
def test_toys_stand_on_the_table_and_fill_the_scene(category):
    for instance in range(NUM_TOYS):
        toy = make_toy(category, instance)
        corners = np.concatenate([CUBE @ solid.frame.T + solid.center for solid in toy])
        assert all(abs(np.linalg.det(solid.frame)) > 0 for solid in toy)
        # Corners of a box reach a little lower than what is in it.
        assert -0.2 < corners[:, 2].min() < 0.02
        assert (np.ptp(corners, axis=0) / (1.9, 1.9, 1.5)).max() > 0.95


@pytest.mark.parametrize("category", range(5))
def test_instances_differ_in_parts_or_proportions(category):
    outlines = [outline(category, instance) for instance in range(NUM_TOYS)]
    for k, (kinds, sizes) in enumerate(outlines):
        for other_kinds, other_sizes in outlines[:k]:
            assert kinds != other_kinds or np.abs(sizes - other_sizes).max() > 0.15


def test_the_seed_changes_proportions_a_little():
    kinds, sizes = outline(3, 4)
    other_kinds, other_sizes = outline(3, 4, seed=1)
    assert kinds == other_kinds
    assert 0.001 < np.abs(other_sizes - sizes).max() < 0.2
    np.testing.assert_array_equal(outline(3, 4)[1], sizes)
