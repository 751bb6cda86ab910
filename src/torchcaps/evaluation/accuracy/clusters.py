"""How well features learned without labels separate classes: by clusters, by a linear map."""

import warnings

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from torchcaps.errors import check_positive, check_shape
from torchcaps.evaluation.base import Labels

Points = Float[Tensor, "n dim"]

# k-means.
ITERATIONS = 50
STARTS = 10

# The linear map.
STEPS = 60
DECAY = 1e-4


def kmeans(
    points: Points,
    clusters: int,
    *,
    generator: Generator,
) -> Float[Tensor, "clusters dim"]:
    """Return the centers of clusters: the best of ten starts of Lloyd's algorithm with k-means++.

    Args:
        points: `[n, dim]`. If at most `clusters` of them differ, they are the centers, some of
            them several times.
        clusters: number of clusters, at least 1.
        generator: source of the starts.

    Raises:
        ArgumentError: for points of other axes, or clusters below one.
    """
    from scipy.cluster.vq import kmeans2

    check_shape("points", points, ("n", "dim"))
    check_positive(clusters=clusters)
    coordinates = points.double().numpy()
    distinct = np.unique(coordinates, axis=0)
    if len(distinct) <= clusters:
        return torch.from_numpy(np.resize(distinct, (clusters, points.shape[1]))).float()
    rng = np.random.default_rng(int(torch.randint(2**31, (), generator=generator)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "One of the clusters is empty")
        starts = [
            kmeans2(coordinates, clusters, iter=ITERATIONS, minit="++", seed=rng)
            for _ in range(STARTS)
        ]
    distortions = [np.square(coordinates - centers[members]).sum() for centers, members in starts]
    centers, _ = starts[np.argmin(distortions)]
    return torch.from_numpy(centers).float()


def nearest(
    points: Points,
    centers: Float[Tensor, "clusters dim"],
) -> Labels:
    """Return the index of the nearest center of each point."""
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(points.double(), centers.double(), compute_mode=mode).argmin(dim=1)


def match_clusters(
    clusters: Labels,
    labels: Labels,
    count: int,
) -> Int64[Tensor, " count"]:
    """Return the class of each cluster, one to one, that makes most points right.

    Args:
        clusters: `[n]` cluster of each point.
        labels: `[n]` true classes.
        count: number of clusters.

    Returns:
        `[count]` classes; -1 for a cluster too many.

    Raises:
        ArgumentError: for shapes that do not fit.
    """
    from scipy.optimize import linear_sum_assignment

    check_shape("labels", labels, ("n",), n=len(clusters))
    last = int(labels.max())
    num_columns = max(last + 1, count)
    cells = clusters * num_columns + labels
    matches = cells.bincount(minlength=count * num_columns).view(count, num_columns)
    _, columns = linear_sum_assignment(matches.numpy(), maximize=True)
    class_of = torch.from_numpy(columns)
    return torch.where(class_of <= last, class_of, -1)


def linear_accuracy(points: Points, labels: Labels) -> float:
    """Return the share of points whose class a linear map tells.

    It is fitted on every second point and measured on the others, both ways.

    Args:
        points: `[n, dim]`.
        labels: `[n]` true classes.

    Returns:
        Accuracy in [0, 1]; NaN for fewer than two points.

    Raises:
        ArgumentError: for shapes that do not fit.
    """
    check_shape("labels", labels, ("n",), n=len(points))
    if len(points) < 2:
        return float("nan")
    x = points.double()
    x = (x - x.mean(dim=0)) / x.std(dim=0).clamp(min=1e-6)
    x = F.pad(x, (0, 1), value=1.0)  # a constant for the bias
    num_correct = 0
    for half in (0, 1):
        answers = (x[1 - half :: 2] @ _fit_softmax(x[half::2], labels[half::2])).argmax(dim=1)
        num_correct += int((answers == labels[1 - half :: 2]).sum())
    return num_correct / len(points)


def _fit_softmax(x: Tensor, labels: Tensor) -> Tensor:
    """Return the weights `[dim, classes]` of softmax regression."""
    with torch.inference_mode(False), torch.enable_grad():
        x = x.clone()
        labels = labels.clone()
        weight = torch.zeros(x.shape[1], int(labels.max()) + 1, dtype=x.dtype, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight], max_iter=STEPS, line_search_fn="strong_wolfe")

        def compute_loss() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(x @ weight, labels) + DECAY * weight.square().sum()
            loss.backward()
            return loss

        optimizer.step(compute_loss)
    return weight.detach()
