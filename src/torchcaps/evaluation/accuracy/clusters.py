"""How well classes can be told from numbers that were found without labels: by clusters, and by a linear map."""

import warnings

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from torchcaps.errors import check_range, check_shape

ROUNDS, STARTS = 50, 10  # of k-means
STEPS, DECAY = 60, 1e-4  # of the linear map


def kmeans(
    points: Float[Tensor, "n dim"], clusters: int, *, generator: Generator
) -> Float[Tensor, "clusters dim"]:
    """Centers of clusters: the best of ten starts of Lloyd's algorithm with k-means++.

    Where there are no more different points than clusters, they are the centers, some of them
    several times. Raises ValueError for points of other axes, or clusters below one.
    """
    from scipy.cluster.vq import kmeans2

    check_shape("points", points, ("n", "dim"))
    check_range("clusters", clusters, low=1)
    values = points.double().numpy()
    distinct = np.unique(values, axis=0)
    if len(distinct) <= clusters:
        return torch.from_numpy(np.resize(distinct, (clusters, values.shape[1]))).float()
    rng = np.random.default_rng(int(torch.randint(2**31, (), generator=generator)))
    best, lowest = values[:0], np.inf
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "One of the clusters is empty")
        for _ in range(STARTS):
            centers, members = kmeans2(values, clusters, iter=ROUNDS, minit="++", seed=rng)
            distortion = np.square(values - centers[members]).sum()
            if distortion < lowest:
                best, lowest = centers, distortion
    return torch.from_numpy(best).float()


def nearest(
    points: Float[Tensor, "n dim"], centers: Float[Tensor, "clusters dim"]
) -> Int64[Tensor, " n"]:
    """The cluster of each point."""
    return torch.cdist(
        points.double(), centers.double(), compute_mode="donot_use_mm_for_euclid_dist"
    ).argmin(dim=1)


def match_clusters(
    clusters: Int64[Tensor, " n"], labels: Int64[Tensor, " n"], count: int
) -> Int64[Tensor, " count"]:
    """The class of each of `count` clusters, one to one, that makes most points right; -1 for a cluster too many."""
    from scipy.optimize import linear_sum_assignment

    check_shape("labels", labels, ("n",), n=len(clusters))
    classes = max(int(labels.max()) + 1, count)
    agreed = (clusters * classes + labels).bincount(minlength=count * classes).view(count, classes)
    classes_of = torch.from_numpy(linear_sum_assignment(agreed.numpy(), maximize=True)[1])
    return torch.where(classes_of <= int(labels.max()), classes_of, -1)


def linear_accuracy(points: Float[Tensor, "n dim"], labels: Int64[Tensor, " n"]) -> float:
    """Share of points that a linear map tells the class of: fitted on every second point and measured on the others,
    both ways; NaN for fewer than two points."""
    check_shape("labels", labels, ("n",), n=len(points))
    if len(points) < 2:
        return float("nan")
    x = points.double()
    x = F.pad((x - x.mean(dim=0)) / x.std(dim=0).clamp(min=1e-6), (0, 1), value=1.0)
    correct = sum(_fitted(x[i::2], labels[i::2], x[1 - i :: 2], labels[1 - i :: 2]) for i in (0, 1))
    return correct / len(points)


def _fitted(x: Tensor, labels: Tensor, others: Tensor, targets: Tensor) -> int:
    """How many of the others are right by the softmax regression of these."""
    with torch.inference_mode(False), torch.enable_grad():
        x, labels = x.clone(), labels.clone()
        weight = torch.zeros(x.shape[1], int(labels.max()) + 1, dtype=x.dtype, requires_grad=True)
        search = torch.optim.LBFGS([weight], max_iter=STEPS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            search.zero_grad()
            value = F.cross_entropy(x @ weight, labels) + DECAY * weight.square().sum()
            value.backward()
            return value

        search.step(loss)
    return int(((others @ weight.detach()).argmax(dim=1) == targets).sum())
