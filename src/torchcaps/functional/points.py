"""Sets of points: the rigid motion between two sets, and the distance of two sets.

`procrustes` takes sets in which the points of one index correspond; `chamfer_distance` takes sets
without such an order. Sets are tensors `[batch, points, dim]` of coordinates.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import check_range, check_shape
from torchcaps.functional.bounds import full_precision, without_autocast

EPSILON = 1e-12  # squared length below which a vector has no direction
AXES = ("batch", "points", "dim")


def procrustes(
    source: Float[Tensor, "batch points dim"], target: Float[Tensor, "batch points dim"]
) -> tuple[Float[Tensor, "batch dim dim"], Float[Tensor, "batch dim"]]:
    """The rotation R and the translation t that minimize `sum_k |R source_k + t - target_k|^2`.

    With `M = sum_k source_k target_k^T`, both centered, R maximizes `trace(R M)`, and t moves the
    rotated center of the source to that of the target. In two dimensions R turns by the angle
    `atan2(M_01 - M_10, M_00 + M_11)`. In three it comes from a singular value decomposition
    (Kabsch, 1976). The gradient of a decomposition is NaN for equal singular values. That of R is
    finite there, so it is taken from the condition that R is optimal.

    Args:
        source: `[batch, points, dim]`, dim 2 or 3; half precision is computed in float32.
        target: `[batch, points, dim]`, in the order of the source.

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
        centered_source = source - source_center.unsqueeze(1)
        centered_target = target - target_center.unsqueeze(1)
        covariance = centered_target.mT @ centered_source  # M^T
        rotation = _rotation_2d(covariance) if dim == 2 else _rotation_3d(covariance)
        return rotation, target_center - (rotation @ source_center.unsqueeze(2)).squeeze(2)


def _rotation_2d(covariance: Tensor) -> Tensor:
    """The best rotation in the plane, from M^T; no rotation where every one is as good."""
    # The vector (cos, sin) of the angle, times a length.
    cos = covariance[:, 0, 0] + covariance[:, 1, 1]
    sin = covariance[:, 1, 0] - covariance[:, 0, 1]
    is_undefined = cos.square() + sin.square() < EPSILON
    cos = torch.where(is_undefined, 1.0, cos)
    sin = torch.where(is_undefined, 0.0, sin)

    length = (cos.square() + sin.square()).sqrt()
    cos = cos / length
    sin = sin / length
    return torch.stack([cos, -sin, sin, cos], dim=1).unflatten(1, (2, 2))


def _rotation_3d(covariance: Tensor) -> Tensor:
    """The best rotation R in space, from M^T.

    Its value is `R = U diag(1, 1, det(U V^T)) V^T` of the decomposition `M^T = U S V^T`. At this
    optimum `P = R^T M^T` is symmetric. When M changes, P is no longer symmetric, and the components
    of `P - P^T` are a torque. A turn of R by a small vector w takes away the torque
    `(trace(P) I - P) w`, so R stays optimal if it turns by `w = (trace(P) I - P)^-1 torque`.
    """
    with torch.no_grad():
        u, _, v_transposed = torch.linalg.svd(covariance)
        signs = torch.ones_like(covariance[:, 0])
        signs[:, 2] = torch.linalg.det(u @ v_transposed)
        rotation = (u * signs.unsqueeze(1)) @ v_transposed

        stretch = rotation.mT @ covariance  # P
        trace = stretch.diagonal(dim1=1, dim2=2).sum(dim=1)
        eye = torch.eye(3, dtype=rotation.dtype, device=rotation.device)
        stiffness = eye * trace[:, None, None] - (stretch + stretch.mT) / 2
        eigenvalues, axes = torch.linalg.eigh(stiffness)
        # The inverse, bounded where many rotations are optimal.
        scaled_axes = axes / eigenvalues.clamp(min=EPSILON**0.5).unsqueeze(1)
        compliance = scaled_axes @ axes.mT

    stretch = rotation.mT @ covariance  # P again, as a function of M
    skew = stretch - stretch.mT
    torque = torch.stack([skew[:, 2, 1], skew[:, 0, 2], skew[:, 1, 0]], dim=1)
    # The turn w is zero in value, so that R stays; its gradient is that of the optimum.
    turn = compliance @ (torque - torque.detach()).unsqueeze(2)
    return rotation + rotation @ cross_matrix(turn.squeeze(2))


def cross_matrix(vectors: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3 3"]:
    """Matrices W with `W a` the cross product of a vector and a."""
    x, y, z = vectors.unbind(dim=-1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=-1).unflatten(-1, (3, 3))


def chamfer_distance(
    points: Float[Tensor, "batch n dim"], targets: Float[Tensor, "batch m dim"]
) -> Float[Tensor, " batch"]:
    """Chamfer distance: `mean_n min_m |x_n - y_m|^2 + mean_m min_n |x_n - y_m|^2`.

    The mean squared distance of points from the nearest point of the other set, in both directions.

    Args:
        points: x, `[batch, n, dim]`; half precision is computed in float32.
        targets: y, `[batch, m, dim]`.

    Returns:
        Distances `[batch]`.

    Raises:
        ArgumentError: other shapes.
    """
    check_shape("points", points, ("batch", "n", "dim"))
    check_shape(
        "targets", targets, ("batch", "m", "dim"), batch=points.shape[0], dim=points.shape[2]
    )
    points = full_precision(points)
    targets = full_precision(targets)
    # Which point is nearest has no gradient, and the table [batch, n, m] of distances is large.
    with torch.no_grad(), without_autocast(points):
        # |x - y|^2 = |x|^2 + |y|^2 - 2 <x, y>; for the nearest y of an x, |x|^2 is a constant.
        distances = targets.square().sum(dim=2).unsqueeze(1) - 2 * points @ targets.mT
        nearest_y = distances.argmin(dim=2)
        distances = distances + points.square().sum(dim=2).unsqueeze(2)
        nearest_x = distances.argmin(dim=1)

    distance_x = _mean_distance(points, targets, nearest_y)
    distance_y = _mean_distance(targets, points, nearest_x)
    return distance_x + distance_y


def _mean_distance(x: Tensor, y: Tensor, nearest: Tensor) -> Tensor:
    """Mean squared distance `[batch]` of each x `[batch, n, dim]` from its nearest y.

    Args:
        x: points `[batch, n, dim]`.
        y: points `[batch, m, dim]`.
        nearest: index of the nearest y, `[batch, n]`.
    """
    nearest_y = y.gather(1, nearest.unsqueeze(2).expand_as(x))
    return (x - nearest_y).square().sum(dim=2).mean(dim=1)
