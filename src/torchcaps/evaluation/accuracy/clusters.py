"""How well classes can be told from numbers that were found without labels: by clusters, and by a linear map."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from torchcaps.errors import check_range, check_shape

ROUNDS, STARTS = 100, 10  # of k-means
STEPS, DECAY = 60, 1e-4  # of the linear map


def kmeans(
    points: Float[Tensor, "n dim"], clusters: int, *, generator: Generator
) -> Float[Tensor, "clusters dim"]:
    """Centers of clusters: the best of ten starts of Lloyd's algorithm, which chooses its centers as k-means++ does.
    Where there are fewer points than clusters, centers are equal. Raises ValueError for points of other axes, or
    clusters below one."""
    check_shape("points", points, ("n", "dim"))
    check_range("clusters", clusters, low=1)
    points = points.double()
    found = [_lloyd(points, _spread(points, clusters, generator)) for _ in range(STARTS)]
    return min(found, key=lambda pair: pair[0])[1].float()


def nearest(
    points: Float[Tensor, "n dim"], centers: Float[Tensor, "clusters dim"]
) -> Int64[Tensor, " n"]:
    """The cluster of each point."""
    return torch.cdist(
        points.double(), centers.double(), compute_mode="donot_use_mm_for_euclid_dist"
    ).argmin(dim=1)


def _spread(points: Tensor, clusters: int, generator: Generator) -> Tensor:
    """Points that are far from each other, at random: each by its squared distance to those before it."""
    chosen = [int(torch.randint(len(points), (), generator=generator))]
    distance = torch.full_like(points[:, 0], float("inf"))
    for _ in range(clusters - 1):
        distance = torch.minimum(distance, (points - points[chosen[-1]]).square().sum(dim=1))
        total = distance.cumsum(0)
        place = torch.rand((), generator=generator, dtype=total.dtype) * total[-1]
        chosen.append(min(int(torch.searchsorted(total, place)), len(points) - 1))
    return points[chosen]


def _lloyd(points: Tensor, centers: Tensor) -> tuple[float, Tensor]:
    """The sum of squared distances that is left, and the centers; a cluster without a point stays where it is."""
    taken = torch.full((len(points),), -1)
    for _ in range(ROUNDS):
        before, taken = taken, nearest(points, centers)
        if torch.equal(before, taken):
            break
        sums = torch.zeros_like(centers).index_add_(0, taken, points)
        counts = taken.bincount(minlength=len(centers)).unsqueeze(1)
        centers = torch.where(counts > 0, sums / counts.clamp(min=1), centers)
    return float((points - centers[taken]).square().sum()), centers


def match_clusters(
    clusters: Int64[Tensor, " n"], labels: Int64[Tensor, " n"], count: int
) -> Int64[Tensor, " count"]:
    """The class of each of `count` clusters, one to one, that makes most points right; -1 for a cluster too many."""
    from scipy.optimize import linear_sum_assignment

    check_shape("labels", labels, ("n",), n=len(clusters))
    classes = max(int(labels.max()) + 1, count)
    agreed = (clusters * classes + labels).bincount(minlength=count * classes).view(count, classes)
    taken = torch.from_numpy(linear_sum_assignment(agreed.numpy(), maximize=True)[1])
    return torch.where(taken <= int(labels.max()), taken, -1)


def linear_accuracy(points: Float[Tensor, "n dim"], labels: Int64[Tensor, " n"]) -> float:
    """Share of points that a linear map tells the class of: fitted on every second point and measured on the others,
    both ways; NaN for fewer than two points."""
    check_shape("labels", labels, ("n",), n=len(points))
    if len(points) < 2:
        return float("nan")
    x = points.double()
    x = F.pad((x - x.mean(dim=0)) / x.std(dim=0).clamp(min=1e-6), (0, 1), value=1.0)
    right = sum(_fitted(x[i::2], labels[i::2], x[1 - i :: 2], labels[1 - i :: 2]) for i in (0, 1))
    return right / len(points)


def _fitted(x: Tensor, labels: Tensor, others: Tensor, wanted: Tensor) -> int:
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
    return int(((others @ weight.detach()).argmax(dim=1) == wanted).sum())
