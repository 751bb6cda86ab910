"""Named layers: fully connected, convolutional and class capsules. Each is one routed layer with votes and a field."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from torchcaps.errors import check_known, check_positive, check_range, check_shape
from torchcaps.functional.fields import (
    CONVENTIONS,
    Convention,
    ConvField,
    ConvTransposeField,
    DenseField,
)
from torchcaps.functional.geometry import coordinate_addition
from torchcaps.nn.routed import MAP, RoutedLayer
from torchcaps.nn.routers import Routing, create_router
from torchcaps.nn.votes import LinearVotes, MatrixVotes
from torchcaps.types import Capsules, LayerSizes

PoseSize = int | tuple[int, int]


class CapsuleLinear(RoutedLayer):
    """Fully connected capsules (arXiv 1710.09829, equations 1-3): `vote_ij = weight[i, j] @ pose_i`, then routing.

    Args:
        in_capsules, in_dim: I, number of children, and the dimensions of their poses.
        out_capsules, out_dim: J, number of parents, and D, the dimensions of their poses.
        routing: see `RoutedLayer`, and for its `routing_options`, e.g. `iterations=2`.
        bias: a learned `[J, D]` vector added inside every iteration; see `LinearVotes`, and for `init_std`.

    Shapes:
        input Capsules (or their pose) `[batch, I, in_dim]`; output Capsules with pose `[batch, J, D]` and activation
        `[batch, J]`. `weight` is `[I, J, D, in_dim]`. ValueError for others, TypeError for an unknown option.

    Example:
        >>> CapsuleLinear(1152, 8, 10, 16, iterations=2)(torch.rand(4, 1152, 8)).activation.shape
        torch.Size([4, 10])
    """

    def __init__(
        self,
        in_capsules: int,
        in_dim: int,
        out_capsules: int,
        out_dim: int,
        routing: Routing = "dynamic",
        *,
        bias: bool = False,
        init_std: float | None = None,
        **routing_options: Any,
    ) -> None:
        sizes = {
            "in_capsules": in_capsules,
            "in_dim": in_dim,
            "out_capsules": out_capsules,
            "out_dim": out_dim,
        }
        check_positive(**sizes)
        votes = LinearVotes(LayerSizes(*sizes.values()), bias=bias, init_std=init_std)
        super().__init__(votes, routing, **routing_options)
        self.in_capsules, self.in_dim, self.out_capsules, self.out_dim = sizes.values()

    def check(self, children: Capsules) -> None:
        axes = ("batch", "children", "dim")
        check_shape("children", children.pose, axes, children=self.in_capsules, dim=self.in_dim)


class ConvCaps(RoutedLayer):
    """Convolutional capsules: the capsules of each K x K window vote for the parents at its place.

    The matrices are shared over positions, like the kernel of a convolution. Other arguments and errors are those of
    `CapsuleLinear`; `init_std` is of `MatrixVotes` where poses are matrices.

    Args:
        in_types, out_types: B and C, capsule types of the map and of the parents.
        kernel_size: K.
        stride: positions from one window to the next.
        padding: rows and columns of absent children on each side of the map, below K.
        pose_size: P, where poses are P x P matrices; or (in_dim, out_dim), where they are vectors.
        convention: which parents compete for a child: "all", "type", "space" or "patch"; see `functional.ConvField`. By
            default as the routing was published: over all windows with a child for "em" and "dynamic".

    Shapes:
        input Capsules with pose `[batch, height, width, B, in_dim]`; output Capsules with pose
        `[batch, rows, columns, C, out_dim]` and activation `[batch, rows, columns, C]`, where
        `rows = (height + 2 padding - K) // stride + 1`. `weight` is `[K * K * B, C, P, P]`, or
        `[K * K * B, C, out_dim, in_dim]`. The coupling on record is `[batch, rows, columns, K * K * B, C]`; where the
        parents of several windows compete for a child, it sums to less than one in each.
    """

    axes = MAP
    _Field: type[ConvField | ConvTransposeField] = ConvField

    def __init__(
        self,
        in_types: int,
        out_types: int,
        kernel_size: int = 3,
        stride: int = 1,
        *,
        padding: int = 0,
        routing: Routing = "em",
        pose_size: PoseSize = 4,
        convention: Convention | None = None,
        bias: bool = False,
        init_std: float | None = None,
        **routing_options: Any,
    ) -> None:
        check_positive(
            in_types=in_types, out_types=out_types, kernel_size=kernel_size, stride=stride
        )
        check_range("padding", padding, low=0, high=kernel_size - 1)
        router = create_router(routing, **routing_options)
        chosen = router.convention if convention is None else convention
        check_known("convention", chosen, CONVENTIONS)
        windows = self._windows(kernel_size, stride, chosen == "type")
        votes = _votes(
            in_types * kernel_size**2,
            out_types,
            pose_size,
            bias=bias,
            init_std=init_std,
            windows=windows,
        )
        field = partial(
            self._Field, kernel=kernel_size, stride=stride, padding=padding, convention=chosen
        )
        super().__init__(votes, router, field)
        self.in_types, self.kernel_size, self.stride, self.padding = (
            in_types,
            kernel_size,
            stride,
            padding,
        )
        self.convention, self.expected = chosen, {"types": in_types}

    @staticmethod
    def _windows(kernel: int, stride: int, local: bool) -> float:
        """How many windows' parents compete for a child, about; see `LinearVotes`."""
        return 1.0 if local else max(1.0, (kernel / stride) ** 2)

    def extra_repr(self) -> str:
        padding = f", padding={self.padding}" if self.padding else ""
        windows = f"kernel_size={self.kernel_size}, stride={self.stride}{padding}, convention={self.convention!r}"
        return f"{super().extra_repr()}, {windows}"


class TransposedConvCaps(ConvCaps):
    """`ConvCaps` that makes a map larger: each child votes for the parents of a K x K window, windows `stride` apart.

    Arguments as there, but `stride` is from one child's window to the next and `padding` counts rows and columns of
    parents that are left out, as in `torch.nn.ConvTranspose2d`: `rows = (height - 1) stride - 2 padding + K`.
    """

    _Field = ConvTransposeField

    @staticmethod
    def _windows(kernel: int, stride: int, local: bool) -> float:
        """Each child votes in the K x K windows around it; of a window's children one in stride x stride is there."""
        return min(stride, kernel) * (1.0 if local else float(kernel**2))


class ClassCaps(RoutedLayer):
    """Class capsules: every capsule of the map votes for every class, in one routing.

    The matrices belong to capsule types and are shared over positions; coordinate addition tells the votes where they
    come from. Other arguments and errors are those of `ConvCaps`.

    Args:
        in_types, classes: D, capsule types of the map, and E.
        centers: (rows, columns): the coordinate of each position of the map, added to two elements of the votes; None
            leaves coordinate addition out. See `functional.receptive_centers`.
        indices: which two elements of the flat vote; by default the first two of the right-hand column of a matrix, as
            in the paper: (3, 7) of 16; of a vector the first two.

    Shapes:
        input Capsules with pose `[batch, height, width, D, in_dim]`; output Capsules with pose `[batch, E, out_dim]`
        and activation `[batch, E]`. `weight` is `[D, E, P, P]` or `[D, E, out_dim, in_dim]`; the coupling on record is
        `[batch, height * width * D, E]`.
    """

    axes = MAP

    def __init__(
        self,
        in_types: int,
        classes: int,
        *,
        routing: Routing = "em",
        pose_size: PoseSize = 4,
        centers: tuple[Sequence[float], Sequence[float]] | None = None,
        indices: tuple[int, int] | None = None,
        bias: bool = False,
        init_std: float | None = None,
        **routing_options: Any,
    ) -> None:
        check_positive(in_types=in_types, classes=classes)
        places, expected = None, {"types": in_types}
        if centers is not None:
            size = pose_size if isinstance(pose_size, int) else None
            indices = indices or ((0, 1) if size is None else (size - 1, 2 * size - 1))
            rows, columns = (torch.tensor([float(c) for c in side]) for side in centers)
            blank = torch.zeros(len(rows), len(columns), 1, 1, _sizes(1, 1, pose_size).dim)
            places = coordinate_addition(blank, rows, columns, indices)
            expected |= {"height": len(rows), "width": len(columns)}
        votes = _votes(in_types, classes, pose_size, bias=bias, init_std=init_std, places=places)
        super().__init__(votes, routing, DenseField, **routing_options)
        self.in_types, self.expected = in_types, expected

    @property
    def centers(self) -> torch.Tensor | None:
        """What coordinate addition adds to the votes, `[height, width, 1, 1, out_dim]`."""
        return self.votes.places


def _sizes(children: int, parents: int, pose_size: PoseSize) -> LayerSizes:
    """Of poses that are P x P matrices, or vectors of these dimensions."""
    in_dim, dim = (pose_size**2,) * 2 if isinstance(pose_size, int) else pose_size
    for value in (pose_size,) if isinstance(pose_size, int) else pose_size:
        check_range("pose_size", value, low=1)
    return LayerSizes(children, in_dim, parents, dim)


def _votes(
    children: int,
    parents: int,
    pose_size: PoseSize,
    *,
    init_std: float | None,
    windows: float = 1.0,
    **options: Any,
) -> LinearVotes:
    """P x P matrices, or vectors of these dimensions."""
    sizes = _sizes(children, parents, pose_size)
    if isinstance(pose_size, int):
        return MatrixVotes(sizes, init_std=0.1 if init_std is None else init_std, **options)
    return LinearVotes(sizes, init_std=init_std, windows=windows, **options)
