"""Clusters and a linear map, on points whose classes are known."""

from itertools import permutations

import torch

from torchcaps.evaluation.accuracy.clusters import linear_accuracy, match_clusters
from torchcaps.testing import seeded


def test_a_linear_map_tells_nothing_of_random_points():
    """Forty points of thirty dimensions: on the points that it was fitted to it would be right."""
    generator = seeded(0)
    points = torch.randn(40, 30, generator=generator)
    labels = torch.randint(2, (40,), generator=generator)
    assert linear_accuracy(points, labels) < 0.75


def test_clusters_are_matched_as_by_trying_all_permutations():
    generator = seeded(1)
    clusters, labels = torch.randint(4, (2, 30), generator=generator)
    num_right = int((match_clusters(clusters, labels, 4)[clusters] == labels).sum())
    best = max(int((torch.tensor(p)[clusters] == labels).sum()) for p in permutations(range(4)))
    assert num_right == best
