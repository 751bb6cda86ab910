"""Sets of points: the rigid motion between two sets that correspond, and the distance of two that do not."""

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import check_range, check_shape
from torchcaps.functional.bounds import without_autocast
from torchcaps.functional.squash import full_precision

LEAST = 1e-12  # below it a sum of products tells no direction


def procrustes(
    source: Float[Tensor, "batch points dim"], target: Float[Tensor, "batch points dim"]
) -> tuple[Float[Tensor, "batch dim dim"], Float[Tensor, "batch dim"]]:
    """The rotation R (determinant +1) and the translation t that make `sum_k |R source_k + t - target_k|^2` smallest.

    In two dimensions the angle is `atan2(M_01 - M_10, M_00 + M_11)` with `M = sum_k source_k target_k^T`, both
    centered. In three, R comes from a singular value decomposition, whose own gradient is NaN where singular values are
    equal; that of R is not, and is taken from the condition that R is optimal.

    Sets `[batch, points, dim]`, dim 2 or 3, whose points correspond, give R `[batch, dim, dim]` and t `[batch, dim]`,
    in float32 for half precision. Where nothing tells a rotation, such as for points that coincide, it is any one, with
    a finite gradient. ValueError for other shapes.
    """
    axes = ("batch", "points", "dim")
    check_shape("source", source, axes)
    check_range("dim", source.shape[2], low=2, high=3)
    check_shape("target", target, axes, **dict(zip(axes, source.shape, strict=True)))
    with without_autocast(source):
        source, target = full_precision(source), full_precision(target)
        center, goal = source.mean(dim=1), target.mean(dim=1)
        products = (target - goal.unsqueeze(1)).mT @ (source - center.unsqueeze(1))  # M^T
        rotation = _turn(products) if source.shape[2] == 2 else _rotation(products)
        return rotation, goal - (rotation @ center.unsqueeze(2)).squeeze(2)


def _turn(products: Float[Tensor, "batch 2 2"]) -> Float[Tensor, "batch 2 2"]:
    cos = products[:, 0, 0] + products[:, 1, 1]
    sin = products[:, 1, 0] - products[:, 0, 1]
    vague = cos.square() + sin.square() < LEAST
    cos, sin = torch.where(vague, 1.0, cos), torch.where(vague, 0.0, sin)
    length = (cos.square() + sin.square()).sqrt()
    cos, sin = cos / length, sin / length
    return torch.stack([cos, -sin, sin, cos], dim=1).unflatten(1, (2, 2))


def _rotation(products: Float[Tensor, "batch 3 3"]) -> Float[Tensor, "batch 3 3"]:
    with torch.no_grad():
        u, _, v = torch.linalg.svd(products)
        sign = torch.ones_like(products[:, 0])
        sign[:, 2] = torch.linalg.det(u @ v)
        best = (u * sign.unsqueeze(1)) @ v
        stretch = best.mT @ products  # symmetric at the optimum
        eye = torch.eye(3, dtype=best.dtype, device=best.device)
        stiffness = (
            eye * stretch.diagonal(dim1=1, dim2=2).sum(dim=1)[:, None, None]
            - (stretch + stretch.mT) / 2
        )
        values, axes = torch.linalg.eigh(stiffness)
        give = (axes / values.clamp(min=LEAST**0.5).unsqueeze(1)) @ axes.mT
    stretch = best.mT @ products
    twist = torch.stack(
        [stretch[:, i, j] - stretch[:, j, i] for i, j in ((2, 1), (0, 2), (1, 0))], dim=1
    )
    # Zero in value, so that R stays; its gradient is that of the optimum.
    x, y, z = (give @ (twist - twist.detach()).unsqueeze(2)).squeeze(2).unbind(dim=1)
    none = torch.zeros_like(x)
    return best + best @ torch.stack([none, -z, y, z, none, -x, -y, x, none], dim=1).unflatten(
        1, (3, 3)
    )


def chamfer_distance(
    points: Float[Tensor, "batch n dim"], others: Float[Tensor, "batch m dim"]
) -> Float[Tensor, " batch"]:
    """`mean_n min_m |x_n - y_m|^2 + mean_m min_n |x_n - y_m|^2`, in float32 for half precision.

    Sets `[batch, n, dim]` and `[batch, m, dim]` may be of different sizes; ValueError for other shapes.
    """
    check_shape("points", points, ("batch", "n", "dim"))
    check_shape("others", others, ("batch", "m", "dim"), batch=len(points), dim=points.shape[2])
    points, others = full_precision(points), full_precision(others)
    with (
        torch.no_grad(),
        without_autocast(points),
    ):  # which is nearest has no gradient, and the table is large
        table = others.square().sum(dim=2).unsqueeze(1) - 2 * points @ others.mT
        nearest = table.argmin(dim=2)
        back = (table + points.square().sum(dim=2).unsqueeze(2)).argmin(dim=1)
    return _distance(points, others, nearest) + _distance(others, points, back)


def _distance(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
    """The mean squared distance of each x from the y at its place."""
    return (x - y.gather(1, at.unsqueeze(2).expand_as(x))).square().sum(dim=2).mean(dim=1)
