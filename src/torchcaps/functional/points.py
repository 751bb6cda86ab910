"""Sets of points: the rigid motion between two sets, and the distance of two sets.

The points of the first two correspond, those of the latter do not.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import check_range, check_shape
from torchcaps.functional.bounds import without_autocast
from torchcaps.functional.squash import full_precision

EPSILON = 1e-12  # below it a sum of products has no direction
AXES = ("batch", "points", "dim")


def procrustes(
    source: Float[Tensor, "batch points dim"], target: Float[Tensor, "batch points dim"]
) -> tuple[Float[Tensor, "batch dim dim"], Float[Tensor, "batch dim"]]:
    """The rotation R and the translation t that minimize `sum_k |R source_k + t - target_k|^2`.

    In two dimensions the angle is `atan2(M_01 - M_10, M_00 + M_11)` with
    `M = sum_k source_k target_k^T`, both centered. In three, R comes from a singular value
    decomposition, whose own gradient is NaN for equal singular values; the gradient of R is finite
    there, and is taken from the condition that R is optimal.

    Args:
        source, target: `[batch, points, dim]`, dim 2 or 3; half precision is computed in float32.

    Returns:
        R `[batch, dim, dim]` of determinant +1, and t `[batch, dim]`. Where many rotations are
        optimal, as for points that coincide, R is one of them, with a finite gradient.

    Raises:
        ArgumentError: other shapes.
    """
    check_shape("source", source, AXES)
    batch, num_points, dim = source.shape
    check_range("dim", dim, low=2, high=3)
    check_shape("target", target, AXES, batch=batch, points=num_points, dim=dim)
    with without_autocast(source):
        source = full_precision(source)
        target = full_precision(target)
        source_center = source.mean(dim=1)
        target_center = target.mean(dim=1)
        centered = source - source_center.unsqueeze(1)
        products = (target - target_center.unsqueeze(1)).mT @ centered  # M^T
        rotation = _rotation_2d(products) if dim == 2 else _rotation_3d(products)
        rotated_center = (rotation @ source_center.unsqueeze(2)).squeeze(2)
        translation = target_center - rotated_center
        return rotation, translation


def _rotation_2d(products: Float[Tensor, "batch 2 2"]) -> Float[Tensor, "batch 2 2"]:
    cos = products[:, 0, 0] + products[:, 1, 1]
    sin = products[:, 1, 0] - products[:, 0, 1]
    squared_length = cos.square() + sin.square()
    is_undefined = squared_length < EPSILON
    cos = torch.where(is_undefined, 1.0, cos)
    sin = torch.where(is_undefined, 0.0, sin)
    length = (cos.square() + sin.square()).sqrt()
    cos = cos / length
    sin = sin / length
    return torch.stack([cos, -sin, sin, cos], dim=1).unflatten(1, (2, 2))


def _rotation_3d(products: Float[Tensor, "batch 3 3"]) -> Float[Tensor, "batch 3 3"]:
    with torch.no_grad():
        u, _, v = torch.linalg.svd(products)
        signs = torch.ones_like(products[:, 0])
        signs[:, 2] = torch.linalg.det(u @ v)
        rotation = (u * signs.unsqueeze(1)) @ v

        # R^T M^T is symmetric at the optimum. The matrix tr(R^T M^T) I - R^T M^T answers a small
        # turn by a torque; its inverse answers a torque by a turn.
        stretch = rotation.mT @ products
        trace = stretch.diagonal(dim1=1, dim2=2).sum(dim=1)
        eye = torch.eye(3, dtype=rotation.dtype, device=rotation.device)
        stiffness = eye * trace[:, None, None] - (stretch + stretch.mT) / 2
        eigenvalues, axes = torch.linalg.eigh(stiffness)
        compliance = (axes / eigenvalues.clamp(min=EPSILON**0.5).unsqueeze(1)) @ axes.mT

    stretch = rotation.mT @ products
    torque = torch.stack(
        [
            stretch[:, 2, 1] - stretch[:, 1, 2],
            stretch[:, 0, 2] - stretch[:, 2, 0],
            stretch[:, 1, 0] - stretch[:, 0, 1],
        ],
        dim=1,
    )
    # The turn is zero in value, so that R stays; its gradient is that of the optimum.
    turn = compliance @ (torque - torque.detach()).unsqueeze(2)
    return rotation + rotation @ _cross_matrix(turn.squeeze(2))


def _cross_matrix(vectors: Float[Tensor, "batch 3"]) -> Float[Tensor, "batch 3 3"]:
    """Matrices that multiply a vector by the cross product with these."""
    x, y, z = vectors.unbind(dim=1)
    zero = torch.zeros_like(x)
    elements = [zero, -z, y, z, zero, -x, -y, x, zero]
    return torch.stack(elements, dim=1).unflatten(1, (3, 3))


def chamfer_distance(
    points: Float[Tensor, "batch n dim"], others: Float[Tensor, "batch m dim"]
) -> Float[Tensor, " batch"]:
    """Chamfer distance: `mean_n min_m |x_n - y_m|^2 + mean_m min_n |x_n - y_m|^2`.

    Args:
        points: x, `[batch, n, dim]`; half precision is computed in float32.
        others: y, `[batch, m, dim]`.

    Returns:
        `[batch]`.

    Raises:
        ArgumentError: other shapes.
    """
    check_shape("points", points, ("batch", "n", "dim"))
    check_shape("others", others, ("batch", "m", "dim"), batch=len(points), dim=points.shape[2])
    points = full_precision(points)
    others = full_precision(others)
    # Which point is nearest has no gradient, and the table of distances is large.
    with torch.no_grad(), without_autocast(points):
        distances = others.square().sum(dim=2).unsqueeze(1) - 2 * points @ others.mT
        nearest_y = distances.argmin(dim=2)
        distances = distances + points.square().sum(dim=2).unsqueeze(2)
        nearest_x = distances.argmin(dim=1)

    distance_x = _mean_distance(points, others, nearest_y)
    distance_y = _mean_distance(others, points, nearest_x)
    return distance_x + distance_y


def _mean_distance(x: Tensor, y: Tensor, nearest: Tensor) -> Tensor:
    """Mean squared distance of each x from its nearest y."""
    nearest_y = y.gather(1, nearest.unsqueeze(2).expand_as(x))
    return (x - nearest_y).square().sum(dim=2).mean(dim=1)
