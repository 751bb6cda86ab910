from itertools import product

import numpy as np
import pytest

from torchcaps.data.synthnorb.solids import NUM_TOYS, make_toy

CUBE = np.array(list(product((-1, 1), repeat=3)))


def outline(category, instance, seed=0):
    """What tells toys apart: how many solids of which kinds, and the logarithms of their sizes."""
    kinds = []
    sizes = []
    for solid in make_toy(category, instance, seed):
        kinds.append(solid.kind)
        sizes.append(np.linalg.norm(solid.frame, axis=0))
    return kinds, np.log(np.array(sizes) + 1e-3)


@pytest.mark.parametrize("category", range(5))
def test_toys_stand_on_the_table_and_fill_the_scene(category):
    for instance in range(NUM_TOYS):
        corners = []
        for solid in make_toy(category, instance):
            assert np.linalg.det(solid.frame) != 0
            corners.append(CUBE @ solid.frame.T + solid.center)
        corners = np.concatenate(corners)
        # Corners of a box reach a little lower than what is in it.
        assert -0.2 < corners[:, 2].min() < 0.02
        assert (np.ptp(corners, axis=0) / (1.9, 1.9, 1.5)).max() > 0.95


@pytest.mark.parametrize("category", range(5))
def test_instances_differ_in_parts_or_proportions(category):
    for first in range(NUM_TOYS):
        kinds, sizes = outline(category, first)
        for second in range(first):
            second_kinds, second_sizes = outline(category, second)
            assert kinds != second_kinds or np.abs(sizes - second_sizes).max() > 0.15


def test_the_seed_changes_proportions_a_little():
    kinds, sizes = outline(3, 4)
    changed_kinds, changed_sizes = outline(3, 4, seed=1)
    assert kinds == changed_kinds
    assert 0.001 < np.abs(changed_sizes - sizes).max() < 0.2
    np.testing.assert_array_equal(outline(3, 4)[1], sizes)
