"""Named layers: fully connected, convolutional and class capsules.

Each is one routed layer with its votes and its field.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from torchcaps.errors import check_known, check_positive, check_range
from torchcaps.functional.fields import (
    Convention,
    ConvField,
    ConvTransposeField,
    DenseField,
)
from torchcaps.functional.geometry import coordinate_addition
from torchcaps.nn.routed import MAP, RoutedLayer
from torchcaps.nn.routers import Routing, create_router
from torchcaps.nn.votes import LinearVotes, MatrixVotes
from torchcaps.types import LayerSizes

PoseSize = int | tuple[int, int]
MakeCenters = Callable[[int], Sequence[float]]


class CapsuleLinear(RoutedLayer):
    """Fully connected capsules: `vote_ij = weight[i, j] @ pose_i`, then routing.

    Source: arXiv 1710.09829, equations 1-3.

    Args:
        in_capsules: I, number of children.
        in_dim: dimensions of their poses.
        out_capsules: J, number of parents.
        out_dim: D, dimensions of their poses.
        routing: name of a router (see `list_routers()`), a router, or a function
            `(votes, activation) -> Routed`.
        bias: whether a learned `[J, D]` vector is added to each parent's sum in every iteration
            (0.1 at the start).
        init_std: standard deviation of the weights, above 0. By default `0.4 J / (0.1 sqrt(I D))`,
            which gives `|s| = 0.4` under uniform coupling for children of length 0.1; with a bias
            0.1.
        **routing_options: of the router of that name, such as `iterations=2`.

    Shapes:
        input Capsules (or their pose) `[batch, I, in_dim]`; output Capsules with pose
        `[batch, J, D]` and activation `[batch, J]`. `weight` is `[I, J, D, in_dim]`.

    Raises:
        ArgumentError: sizes below 1, an unknown routing, or children of another shape.
        TypeError: an unknown option.

    Example:
        >>> layer = CapsuleLinear(1152, 8, 10, 16, iterations=2)
        >>> layer(torch.rand(4, 1152, 8)).activation.shape
        torch.Size([4, 10])
    """

    axes = ("batch", "children", "dim")

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
        check_positive(
            in_capsules=in_capsules,
            in_dim=in_dim,
            out_capsules=out_capsules,
            out_dim=out_dim,
        )
        sizes = LayerSizes(in_capsules, in_dim, out_capsules, out_dim)
        super().__init__(
            LinearVotes(sizes, bias=bias, init_std=init_std), routing, **routing_options
        )
        self.in_capsules = in_capsules
        self.in_dim = in_dim
        self.out_capsules = out_capsules
        self.out_dim = out_dim
        self.expected = {"children": in_capsules}


class ConvCaps(RoutedLayer):
    """Convolutional capsules: the capsules of each K x K window vote for the parents at its place.

    The matrices are shared over positions, like the kernel of a convolution.

    Args:
        in_types: B, capsule types of the map.
        out_types: C, capsule types of the parents.
        kernel_size: K, at least 1.
        stride: positions from one window to the next, at least 1.
        padding: rows and columns of absent children on each side of the map, below K.
        routing: name of a router (see `list_routers()`), a router, or a function
            `(votes, activation) -> Routed`.
        pose_size: P, for poses that are P x P matrices; or (in_dim, out_dim), for vectors.
        convention: which parents compete for a child: "all", "type", "space" or "patch"; see
            `functional.ConvField`. By default as the routing was published: over all windows that
            contain a child for "em" and "dynamic".
        bias: whether a learned vector is added to each parent's sum in every iteration (0.1 at the
            start).
        init_std: standard deviation of the weights of vectors, above 0, or of the noise that is
            added to identity matrices (by default 0.1). For vectors by default such that
            `|s| = 0.4` under uniform coupling for children of length 0.1; with a bias 0.1.
        **routing_options: of the router of that name, such as `iterations=2`.

    Shapes:
        input Capsules with pose `[batch, height, width, B, in_dim]`; output Capsules with pose
        `[batch, rows, columns, C, out_dim]` and activation `[batch, rows, columns, C]`, where
        `rows = (height + 2 padding - K) // stride + 1`. `weight` is `[K * K * B, C, P, P]`, or
        `[K * K * B, C, out_dim, in_dim]`. The recorded coupling is
        `[batch, rows, columns, K * K * B, C]`; where the parents of several windows compete for a
        child, it sums to less than one in each.

    Raises:
        ArgumentError: sizes out of range, an unknown routing, or children of another shape.
        TypeError: an unknown option.

    Example:
        >>> layer = ConvCaps(32, 32, kernel_size=3, stride=2, iterations=3)
        >>> parents = layer(children)  # pose [batch, 14, 14, 32, 16] -> [batch, 6, 6, 32, 16]
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
            in_types=in_types,
            out_types=out_types,
            kernel_size=kernel_size,
            stride=stride,
        )
        check_range("padding", padding, low=0, high=kernel_size - 1)
        router = create_router(routing, **routing_options)
        if convention is None:
            convention = router.convention
        check_known("convention", convention, Convention)
        field = partial(
            self._Field,
            kernel=kernel_size,
            stride=stride,
            padding=padding,
            convention=convention,
        )
        windows = self._num_windows(kernel_size, stride, convention == "type")
        sizes = _make_sizes(in_types * kernel_size**2, out_types, pose_size)
        votes = _make_votes(sizes, pose_size, windows, bias=bias, init_std=init_std)
        super().__init__(votes, router, field)
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.convention = convention
        self.expected = {"types": in_types}

    @staticmethod
    def _num_windows(kernel: int, stride: int, is_local: bool) -> float:
        """Number of windows, about, whose parents compete for a child; see `LinearVotes`."""
        if is_local:
            return 1.0
        return max(1.0, (kernel / stride) ** 2)

    def extra_repr(self) -> str:
        padding = f", padding={self.padding}" if self.padding else ""
        windows = f"kernel_size={self.kernel_size}, stride={self.stride}{padding}"
        return f"{super().extra_repr()}, {windows}, convention={self.convention!r}"


class TransposedConvCaps(ConvCaps):
    """`ConvCaps` that enlarges a map: each child votes for the parents of a K x K window.

    The windows are `stride` apart, as in `torch.nn.ConvTranspose2d`.

    Args:
        in_types: B, capsule types of the map.
        out_types: C, capsule types of the parents.
        kernel_size: K, at least 1.
        stride: positions from one child's window of parents to the next, at least 1.
        padding: rows and columns of parents that are left out on each side, below K.
        routing: name of a router (see `list_routers()`), a router, or a function
            `(votes, activation) -> Routed`.
        pose_size: P, for poses that are P x P matrices; or (in_dim, out_dim), for vectors.
        convention: which parents compete for a child; see `functional.ConvField`. By default as the
            routing was published.
        **routing_options: of the router of that name, such as `iterations=2`.
        bias: whether a learned vector is added to each parent's sum in every iteration (0.1 at the
            start).
        init_std: standard deviation of the weights of vectors, above 0, or of the noise that is
            added to identity matrices (by default 0.1). For vectors by default such that
            `|s| = 0.4` under uniform coupling for children of length 0.1; with a bias 0.1.

    Shapes:
        as of `ConvCaps`, with `rows = (height - 1) stride - 2 padding + K`.

    Raises:
        ArgumentError: sizes out of range, an unknown routing, or children of another shape.
        TypeError: an unknown option.

    Example:
        >>> layer = TransposedConvCaps(16, 8, kernel_size=4, stride=2, padding=1)
    """

    _Field = ConvTransposeField

    @staticmethod
    def _num_windows(kernel: int, stride: int, is_local: bool) -> float:
        # Each child votes in the K x K windows around it; of a window's children one in
        # stride x stride is present.
        return min(stride, kernel) * (1.0 if is_local else float(kernel**2))


class ClassCaps(RoutedLayer):
    """Class capsules: every capsule of the map votes for every class, in one routing.

    The matrices belong to capsule types and are shared over positions; coordinate addition gives
    the votes their position.

    Args:
        in_types: D, capsule types of the map.
        classes: E, number of classes.
        routing: name of a router (see `list_routers()`), a router, or a function
            `(votes, activation) -> Routed`.
        pose_size: P, for poses that are P x P matrices; or (in_dim, out_dim), for vectors.
        bias: whether a learned vector is added to each parent's sum in every iteration (0.1 at the
            start).
        centers: (rows, columns): the coordinate of each position of the map, added to two elements
            of the votes; None is without coordinate addition. See `functional.receptive_centers`.
        make_centers: gives them for a side of another number of positions; the map then has any
            size.
        indices: these two elements of the flat vote; by default the first two of the right-hand
            column of a matrix, as in the paper: (3, 7) of 16; of a vector the first two.
        init_std: standard deviation of the weights of vectors, above 0, or of the noise that is
            added to identity matrices (by default 0.1). For vectors by default such that
            `|s| = 0.4` under uniform coupling for children of length 0.1; with a bias 0.1.
        **routing_options: of the router of that name, such as `iterations=2`.

    Shapes:
        input Capsules with pose `[batch, height, width, D, in_dim]`; output Capsules with pose
        `[batch, E, out_dim]` and activation `[batch, E]`. `weight` is `[D, E, P, P]` or
        `[D, E, out_dim, in_dim]`; the recorded coupling is `[batch, height * width * D, E]`.

    Raises:
        ArgumentError: sizes out of range, an unknown routing, or children of another shape.
        TypeError: an unknown option.

    Example:
        >>> centers = receptive_centers(32, [(5, 2), (3, 2), (3, 1)])
        >>> layer = ClassCaps(32, 5, centers=(centers, centers))
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
        make_centers: MakeCenters | None = None,
        indices: tuple[int, int] | None = None,
        bias: bool = False,
        init_std: float | None = None,
        **routing_options: Any,
    ) -> None:
        check_positive(in_types=in_types, classes=classes)
        sizes = _make_sizes(in_types, classes, pose_size)
        options: dict[str, Any] = {"bias": bias, "init_std": init_std}
        expected = {"types": in_types}
        if centers is not None:
            if indices is None:
                indices = (0, 1)
                if isinstance(pose_size, int):
                    indices = (pose_size - 1, 2 * pose_size - 1)
            options["places"] = _make_places(*centers, sizes.dim, indices)
            if make_centers is None:
                expected |= {"height": len(centers[0]), "width": len(centers[1])}
            else:
                options["make_places"] = partial(_places_of, make_centers, sizes.dim, indices)
        super().__init__(
            _make_votes(sizes, pose_size, **options), routing, DenseField, **routing_options
        )
        self.expected = expected

    @property
    def centers(self) -> torch.Tensor | None:
        """The numbers that coordinate addition adds, `[height, width, out_dim]`."""
        return self.votes.places


def _make_places(
    rows: Sequence[float], columns: Sequence[float], dim: int, indices: tuple[int, int]
) -> torch.Tensor:
    """What coordinate addition adds to the votes, `[rows, columns, dim]`."""
    zeros = torch.zeros(len(rows), len(columns), 1, 1, dim)
    places = coordinate_addition(zeros, torch.tensor(rows), torch.tensor(columns), indices)
    # `Module.to(memory_format=...)` takes no buffer of five axes.
    return places.flatten(1, 3)


def _places_of(
    make_centers: MakeCenters,
    dim: int,
    indices: tuple[int, int],
    height: int,
    width: int,
) -> torch.Tensor:
    """The same for a map of any size."""
    return _make_places(make_centers(height), make_centers(width), dim, indices)


def _make_sizes(children: int, parents: int, pose_size: PoseSize) -> LayerSizes:
    """Sizes of a layer whose poses are P x P matrices, or vectors of these dimensions."""
    if isinstance(pose_size, int):
        check_positive(pose_size=pose_size)
        return LayerSizes(children, pose_size**2, parents, pose_size**2)
    in_dim, dim = pose_size
    check_positive(pose_size=min(pose_size))
    return LayerSizes(children, in_dim, parents, dim)


def _make_votes(
    sizes: LayerSizes,
    pose_size: PoseSize,
    windows: float = 1.0,
    **options: Any,
) -> LinearVotes:
    """Votes of poses that are matrices, or vectors; options are those of both."""
    if isinstance(pose_size, int):
        return MatrixVotes(sizes, **options)
    return LinearVotes(sizes, windows=windows, **options)
