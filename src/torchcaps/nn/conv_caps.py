"""Layers of matrix capsules (Hinton, Sabour, Frosst, ICLR 2018): primary, convolutional and class capsules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import UnknownNameError, check_range, check_shape
from torchcaps.functional.geometry import coordinate_addition
from torchcaps.functional.squash import full_precision
from torchcaps.functional.windows import CONVENTIONS, Convention, Windows
from torchcaps.nn.em import EMRouting
from torchcaps.nn.recording import Recorded, RoutedLayer
from torchcaps.types import Capsules, Routed


class MatrixPrimaryCaps(nn.Module):
    """A 1x1 convolution that gives each position `types` capsules: a linear pose and a sigmoid activation.

    Args:
        in_channels: channels of the feature map.
        types: B, capsule types.
        pose_size: P; a pose is a P x P matrix.

    Shapes:
        input `[batch, in_channels, height, width]`; output Capsules with pose
        `[batch, height, width, types, P * P]` and activation `[batch, height, width, types]` in [0, 1].
    """

    def __init__(self, in_channels: int, types: int, pose_size: int = 4) -> None:
        super().__init__()
        for name, value in (("in_channels", in_channels), ("types", types), ("pose_size", pose_size)):
            check_range(name, value, low=1)
        self.types, self.pose_dim = types, pose_size**2
        self.pose = nn.Conv2d(in_channels, types * self.pose_dim, 1, bias=False)
        self.activation = nn.Conv2d(in_channels, types, 1, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew: poses start twice as large as features, activations about 1/2."""
        nn.init.normal_(self.pose.weight, std=2 * self.pose.in_channels**-0.5)
        self.activation.reset_parameters()

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Capsules:
        """Primary capsules of a feature map."""
        pose = self.pose(x).permute(0, 2, 3, 1).unflatten(-1, (self.types, self.pose_dim))
        return Capsules(full_precision(pose), torch.sigmoid(full_precision(self.activation(x))).permute(0, 2, 3, 1))


class MatrixLayer(RoutedLayer):
    """What convolutional and class capsules share: matrices `[children, parents, P, P]` and the router's costs.

    Args:
        children: of one parent position, for whom there are matrices.
        parents: parent types.
        pose_size: P.
        init_std: standard deviation of the noise that is added to identity matrices.
        router: with costs for `parents`.
        bias: add a learned vector to the votes for each parent. A stack of layers without it gives the same
            activations for poses and their negatives.
    """

    def __init__(
        self, children: int, parents: int, pose_size: int, init_std: float, router: EMRouting, bias: bool
    ) -> None:
        super().__init__()
        for name, value in (("in_types", children), ("out_types", parents), ("pose_size", pose_size)):
            check_range(name, value, low=1)
        self.init_std, self.router = init_std, router
        self.weight = nn.Parameter(torch.empty(children, parents, pose_size, pose_size))
        self.bias = nn.Parameter(torch.empty(parents, pose_size**2)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the matrices anew; a bias becomes 0.1.

        Without the identity, votes of many children cancel, and poses fade from layer to layer.
        """
        nn.init.normal_(self.weight, std=self.init_std)
        with torch.no_grad():
            self.weight.add_(torch.eye(self.weight.shape[2]))
        if self.bias is not None:
            nn.init.constant_(self.bias, 0.1)

    def kept(self, activation: Tensor, routed: Routed) -> Capsules:
        """The parents, written down where somebody records."""
        if self.recorder is not None:
            self.record(Recorded.of(activation, routed))
        return Capsules(routed.pose, routed.activation)

    def _shift(self) -> Tensor | None:
        return None if self.bias is None else self.bias.unsqueeze(0)


class ConvCaps(MatrixLayer):
    """Convolutional capsules: the capsules of each K x K window vote for the parents at its place, by EM routing.

    The matrices are shared over positions, like the kernel of a convolution. A child competes over the parents of all
    windows that contain it.

    Args:
        in_types: B, capsule types of the map.
        out_types: C, parent types.
        kernel_size: K.
        stride: positions from one window to the next.
        pose_size: P; poses are P x P matrices.
        convention: which parents compete for a child: "all", "type", "space" or "patch"; see `Windows.share`.
        bias: add a learned vector to the votes for each parent type.
        init_std: standard deviation of what is added to identity matrices at the start.
        routing_options: of `EMRouting`, such as `iterations=2`.

    Shapes:
        input Capsules with pose `[batch, height, width, B, P * P]`; output Capsules with pose
        `[batch, rows, columns, C, P * P]` and activation `[batch, rows, columns, C]` in [0, 1], where
        `rows = (height - K) // stride + 1`. `weight` is `[K * K * B, C, P, P]`. The coupling on record is
        `[batch, rows, columns, K * K * B, C]`; it sums to one over ALL parents of a child, so to less in one window.

    Raises:
        ValueError: for sizes below one, an unknown convention, or input of another shape.
    """

    def __init__(
        self, in_types: int, out_types: int, kernel_size: int = 3, stride: int = 1, *, pose_size: int = 4,
        convention: Convention = "all", bias: bool = False, init_std: float = 0.1, **routing_options: Any,
    ) -> None:  # fmt: skip
        if convention not in CONVENTIONS:
            raise UnknownNameError("convention", convention, CONVENTIONS)
        for name, value in (("kernel_size", kernel_size), ("stride", stride)):
            check_range(name, value, low=1)
        router = EMRouting(parents=out_types, **routing_options)
        super().__init__(in_types * kernel_size**2, out_types, pose_size, init_std, router, bias)
        self.in_types, self.kernel_size, self.stride, self.convention = in_types, kernel_size, stride, convention

    def forward(self, children: Capsules) -> Capsules:
        """Parents of a map of capsules."""
        pose, activation = children
        axes = ("batch", "height", "width", "types", "dim")
        check_shape("children", pose, axes, types=self.in_types, dim=self.weight.shape[2] ** 2)
        windows = Windows(pose.shape[1], pose.shape[2], self.kernel_size, self.stride)
        routed = self.router.windowed(
            pose, activation, self.weight, self._shift(), windows=windows, convention=self.convention,
            want_coupling=self.recorder is not None,
        )  # fmt: skip
        return self.kept(windows.unfold(activation), routed)

    def extra_repr(self) -> str:
        """Sizes, as the constructor takes them."""
        sizes = f"{self.in_types}, {self.weight.shape[1]}, {self.kernel_size}, stride={self.stride}"
        return f"{sizes}, convention={self.convention!r}, bias={self.bias is not None}"


class ClassCaps(MatrixLayer):
    """Class capsules: every capsule of the map votes for every class, in one EM routing.

    The matrices belong to capsule types and are shared over positions; coordinate addition tells the votes where they
    come from.

    Args:
        in_types: D, capsule types of the map.
        classes: E.
        pose_size: P; poses are P x P matrices.
        centres: (rows, columns): the coordinate of each position of the map, added to two elements of the votes; None
            leaves coordinate addition out. See `functional.receptive_centres`.
        indices: which two elements of the flat pose; by default the first two of the right-hand column, as in the
            paper: (3, 7) of 16.
        bias: add a learned vector to the votes for each class.
        init_std: standard deviation of what is added to identity matrices at the start.
        routing_options: of `EMRouting`, such as `iterations=2`.

    Shapes:
        input Capsules with pose `[batch, height, width, D, P * P]`; output Capsules with pose `[batch, E, P * P]` and
        activation `[batch, E]` in [0, 1]. `weight` is `[D, E, P, P]`; the coupling on record is
        `[batch, height * width * D, E]`.

    Raises:
        ValueError: for sizes below one, or input of another shape.
    """

    centres: Tensor | None

    def __init__(
        self, in_types: int, classes: int, *, pose_size: int = 4,
        centres: tuple[Sequence[float], Sequence[float]] | None = None, indices: tuple[int, int] | None = None,
        bias: bool = False, init_std: float = 0.1, **routing_options: Any,
    ) -> None:  # fmt: skip
        router = EMRouting(parents=classes, **routing_options)
        super().__init__(in_types, classes, pose_size, init_std, router, bias)
        self.in_types = in_types
        places = None
        if centres is not None:
            rows, columns = (torch.tensor([float(c) for c in side]) for side in centres)
            votes = torch.zeros(len(rows), len(columns), 1, 1, pose_size**2)
            places = coordinate_addition(votes, rows, columns, indices or (pose_size - 1, 2 * pose_size - 1))
        self.register_buffer("centres", places, persistent=False)

    def forward(self, children: Capsules) -> Capsules:
        """Class capsules of a map of capsules."""
        pose, activation = children
        axes = ("batch", "height", "width", "types", "dim")
        sizes = {"types": self.in_types, "dim": self.weight.shape[2] ** 2}
        if self.centres is not None:
            sizes |= {"height": self.centres.shape[0], "width": self.centres.shape[1]}
        check_shape("children", pose, axes, **sizes)
        positions = pose.shape[1] * pose.shape[2]
        routed = self.router.matrices(
            pose.flatten(1, 3), activation.flatten(1), self.weight.repeat(positions, 1, 1, 1), self._places(positions),
            want_coupling=self.recorder is not None,
        )  # fmt: skip
        return self.kept(activation.flatten(1), routed)

    def _places(self, positions: int) -> Tensor | None:
        """What is added to the votes, `[positions * D or 1, E or 1, P * P]`."""
        if self.centres is None:
            return self._shift()
        places = self.centres.flatten(0, 1).expand(positions, self.in_types, 1, -1).flatten(0, 1)
        return places if self.bias is None else places + self.bias

    def extra_repr(self) -> str:
        """Sizes, as the constructor takes them."""
        added = "with" if self.centres is not None else "without"
        return f"{self.in_types}, {self.weight.shape[1]}, {added} coordinates, bias={self.bias is not None}"
