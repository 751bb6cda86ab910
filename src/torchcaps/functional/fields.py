"""Fields: which children vote for which parents, and which parents compete for a child.

A field maps children, which stand on a map `[batch, *space, n]` with n capsule types, to the
positions of parents. `gather` copies the children of each position next to it. In the layout
`[batch, *positions, i, j]` that results, i is a child of a position and j a type of parent: every
pair (i, j) of a position has a vote and a coupling.

A child of a convolution feeds the parents of every window that contains it, so it appears in the
layout once for each of them. In the EM paper all these parents compete: its couplings sum to one
over parent types AND positions. Most public code lets only the types of one window compete. The
`convention` of a field says which parents compete.

Letters: n capsule types of the map, K kernel size, i a child of one position of the parents, in a
window the element (ky, kx, n) of row ky, column kx and type n, j parent types.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from torchcaps.errors import check_known, check_positive, check_range

# Which parents compete for a child; see `ConvField`.
Convention = Literal["all", "type", "space", "patch"]

Map = Float[Tensor, "batch height width *rest"]
Pairs = Float[Tensor, "batch *positions i j"]  # a number for each child and parent of a position


def spatial_last(x: Map) -> Float[Tensor, "batch *rest height width"]:
    """Move the axes of a map to the end: `[batch, *rest, height, width]`, a view."""
    return x.movedim((1, 2), (-2, -1))


def spatial_first(x: Float[Tensor, "batch *rest height width"]) -> Map:
    """The inverse of `spatial_last`, a view."""
    return x.movedim((-2, -1), (1, 2))


class Field(ABC):
    """Children of a map `[batch, *space, n, ...]` and the positions of their parents.

    Attributes:
        convention: which parents compete for a child; see `ConvField`.
    """

    convention: Convention

    @property
    @abstractmethod
    def positions(self) -> tuple[int, ...]:
        """Positions of the parents along each axis; empty for one set of parents."""

    @property
    def local(self) -> bool:
        """Whether only the parents of one position compete for a child."""
        return self.convention == "type"

    @abstractmethod
    def count(self, types: int) -> int:
        """Number of children of each position of the parents, i.

        Args:
            types: capsule types of the map, n.

        Returns:
            The number; each of them may vote for every parent of the position.
        """

    @abstractmethod
    def gather(self, x: Tensor) -> Tensor:
        """Copy the children of each position of the parents next to each other.

        Args:
            x: numbers of the map's children, `[batch, *space, n, ...]`.

        Returns:
            Numbers of the positions' children, `[batch, *positions, i, ...]`.
        """

    @abstractmethod
    def scatter(self, x: Tensor) -> Tensor:
        """Sum over the positions that a child of the map belongs to: the adjoint of `gather`.

        Args:
            x: numbers of the positions' children, `[batch, *positions, i]`.

        Returns:
            Numbers of the map's children, `[batch, *space, n]`.
        """

    def mask(self, types: int) -> Tensor | None:
        """Which children are on the map.

        Args:
            types: capsule types of the map.

        Returns:
            1 for children on the map and 0 for padding, `[1, *positions, i]`; None without padding.
        """
        return None

    def reduce_competing(self, x: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
        """Reduce numbers over the parents that compete for a child.

        Args:
            x: `[batch, *positions, i, j]`.
            reduce: `Tensor.sum` or `Tensor.amax`.

        Returns:
            What each element of `x` competes with, reduced: a tensor that broadcasts against `x`.
        """
        return reduce(x, dim=-1, keepdim=True)

    def softmax(self, log_weight: Pairs, leaky: bool = False) -> Tensor:
        """Softmax over the parents that compete for a child: `exp(x_j) / sum_k exp(x_k)`.

        Args:
            log_weight: logits `[batch, *positions, i, j]`.
            leaky: let one more parent of logit 0 compete, whose share is dropped.

        Returns:
            Couplings of the same shape.
        """
        if self.local and not leaky:
            return log_weight.softmax(dim=-1)
        # All in units of the exponential of the largest logit, which then cannot overflow.
        max_logit = self.reduce_competing(log_weight.detach(), Tensor.amax)
        if leaky:
            max_logit = max_logit.clamp(min=0.0)
        weight = (log_weight - max_logit).exp()
        total = self.reduce_competing(weight, Tensor.sum)
        if leaky:
            total = total + (-max_logit).exp()
        return weight / total

    def initial_coupling(self, like: Pairs) -> Tensor:
        """Couplings without logits: equal over the parents that compete.

        Args:
            like: gives shape and type, `[batch, *positions, i, j]`.

        Returns:
            Couplings `[batch, *positions, i, j]`.
        """
        if self.local:
            return torch.full_like(like, 1.0 / like.shape[-1])
        return self.softmax(torch.zeros_like(like))


@dataclass(frozen=True)
class DenseField(Field):
    """Every child of the map votes for every parent.

    Attributes:
        height, width: of the map, in positions; None for children without places.
        positions: positions of the parents, where the children already stand at them; else empty.
    """

    height: int | None = None
    width: int | None = None
    positions: tuple[int, ...] = ()
    convention: Convention = field(default="type", init=False)

    @property
    def space(self) -> tuple[int, ...]:
        """Height and width of the map; empty for children without places."""
        if self.height is None or self.width is None:
            return ()
        return self.height, self.width

    def count(self, types: int) -> int:
        return math.prod(self.space) * types

    def gather(self, x: Float[Tensor, "batch *space n *rest"]) -> Float[Tensor, "batch i *rest"]:
        return x if self.positions else x.flatten(1, 1 + len(self.space))

    def scatter(self, x: Float[Tensor, "batch i"]) -> Float[Tensor, "batch *space n"]:
        return x if self.positions else x.unflatten(1, (*self.space, -1))


class Layout(NamedTuple):
    """Where windows and children stand on the padded map.

    The padded map is the map with its positions `spacing` apart, zeros between them, and a border
    of zeros.

    Attributes:
        border: rows and columns without children on each side.
        step: rows or columns from one window to the next.
        spacing: rows or columns from one position of the map to the next.
    """

    border: int
    step: int
    spacing: int


@dataclass(frozen=True)
class ConvField(Field):
    """Square windows that slide over a map: a convolution.

    Attributes:
        height, width: of the map, in positions.
        kernel: side of a window, K.
        stride: positions from one window to the next.
        padding: rows and columns of absent children (pose and activation 0) on each side of the
            map, below K.
        convention: which parents compete for a child. "all": over types and positions, as in
            procedure 1 of the EM paper. "type": over the types of each window; parents at different
            positions do not compete. "space": over positions for each type, as in the authors'
            code. "patch": over types and all windows, where a place in the window stands for a
            child. That lumps different children together; it is for comparison with code that does
            so.

    Raises:
        ArgumentError: windows that are larger than the padded map, or another size out of range.
    """

    height: int
    width: int
    kernel: int
    stride: int = 1
    padding: int = 0
    convention: Convention = "all"

    def __post_init__(self) -> None:
        check_positive(kernel=self.kernel, stride=self.stride)
        check_range("padding", self.padding, low=0, high=self.kernel - 1)
        border, _, spacing = self.layout
        # The smallest map whose padded map holds one window.
        smallest = max(1, 1 - (2 * border + 1 - self.kernel) // spacing)
        check_range("height", self.height, low=smallest)
        check_range("width", self.width, low=smallest)
        check_known("convention", self.convention, Convention)

    @property
    def layout(self) -> Layout:
        """Where windows and children stand on the padded map."""
        return Layout(self.padding, self.stride, 1)

    @property
    def padded(self) -> tuple[int, int]:
        """Height and width of the padded map."""
        border, _, spacing = self.layout
        extra = 2 * border + 1 - spacing
        return self.height * spacing + extra, self.width * spacing + extra

    @property
    def positions(self) -> tuple[int, int]:
        height, width = self.padded
        step = self.layout.step
        return (height - self.kernel) // step + 1, (width - self.kernel) // step + 1

    def count(self, types: int) -> int:
        return self.kernel**2 * types

    def pad(self, x: Map) -> Float[Tensor, "batch padded1 padded2 *rest"]:
        """The padded map, with zeros where there is no child.

        Args:
            x: `[batch, height, width, *rest]`, with any further axes.

        Returns:
            `[batch, *padded, *rest]`.
        """
        border, _, spacing = self.layout
        if spacing == 1 and border == 0:
            return x
        if spacing == 1:
            num_other_axes = x.dim() - 3
            return F.pad(x, [0, 0] * num_other_axes + [border] * 4)
        padded = x.new_zeros(x.shape[:1] + self.padded + x.shape[3:])
        self._crop(padded).copy_(x)
        return padded

    def gather(
        self, x: Float[Tensor, "batch height width n *rest"]
    ) -> Float[Tensor, "batch rows columns i *rest"]:
        return self._unfold(self.pad(x))

    def scatter(
        self, x: Float[Tensor, "batch rows columns i"]
    ) -> Float[Tensor, "batch height width n"]:
        return self._crop(self._fold_sum(x))

    def mask(self, types: int) -> Tensor | None:
        if self.padded == (self.height, self.width):
            return None
        is_present = self.gather(torch.ones(1, self.height, self.width, 1))
        return is_present.repeat_interleave(types, dim=-1)

    def reduce_competing(
        self, x: Float[Tensor, "batch rows columns i j"], reduce: Callable[..., Tensor]
    ) -> Tensor:
        if self.convention == "type":
            return super().reduce_competing(x, reduce)
        if self.convention == "patch":
            return reduce(x, dim=(1, 2, 4), keepdim=True)

        # Reduce over the windows that contain a child, on the padded map, and copy it back to each.
        fold = self._fold_sum if reduce is Tensor.sum else self._fold_max
        if self.convention == "all":
            over_types = reduce(x, dim=-1)  # [batch, rows, columns, i]
            return self._unfold(fold(over_types)).unsqueeze(-1)
        # "space": each parent type by itself.
        by_type = x.movedim(-1, 1)  # [batch, j, rows, columns, i]
        reduced = self._unfold(fold(by_type.flatten(0, 1)))
        return reduced.unflatten(0, by_type.shape[:2]).movedim(1, -1)

    def initial_coupling(self, like: Float[Tensor, "batch rows columns i j"]) -> Tensor:
        # The authors' code starts with equal types, although types do not compete there.
        if self.convention == "space":
            return torch.full_like(like, 1.0 / like.shape[-1])
        return super().initial_coupling(like)

    def _unfold(self, x: Tensor) -> Tensor:
        """Windows of the padded map, `[batch, rows, columns, K * K * n, ...]`."""
        step = self.layout.step
        windows = x.unfold(1, self.kernel, step).unfold(2, self.kernel, step)
        return windows.movedim((-2, -1), (3, 4)).flatten(3, 5)

    def _fold_sum(self, x: Tensor) -> Tensor:
        """Sums over windows, `[batch, rows, columns, K * K * n]` -> the padded map."""
        if x.shape[0] == 0:  # F.fold takes no empty batch
            return x.reshape(0, *self.padded, x.shape[-1] // self.kernel**2)
        windows = x.reshape(x.shape[0], math.prod(self.positions), self.kernel**2, -1)
        columns = windows.permute(0, 3, 2, 1).flatten(1, 2)  # [batch, n * K * K, windows]
        folded = F.fold(columns, self.padded, self.kernel, stride=self.layout.step)
        return folded.permute(0, 2, 3, 1)

    def _fold_max(self, x: Tensor) -> Tensor:
        """Maxima over windows, the lowest number where no window reaches, without a gradient."""
        step = self.layout.step
        most = -(-self.kernel // step)  # windows that contain a row
        missing = most * step - self.kernel
        windows = x.detach().unflatten(3, (self.kernel, self.kernel, -1)).transpose(2, 3)
        padding = [0, 0] + [0, missing, most - 1, most] * 2
        # Not -infinity: ONNX takes a diagonal by products with 0.
        windows = F.pad(windows, padding, value=torch.finfo(x.dtype).min)
        windows = windows.unflatten(4, (most, step)).unflatten(2, (most, step)).flip(2, 5)
        # [batch, rows, ky, columns, kx, n]: row ky of a window is a row of those that ky // step
        # windows before begin with.
        windows = windows.unfold(1, most, 1).diagonal(dim1=2, dim2=-1)
        windows = windows.unfold(3, most, 1).diagonal(dim1=4, dim2=-1)
        height, width = self.padded
        return windows.amax(dim=(-1, -2)).flatten(3, 4).flatten(1, 2)[:, :height, :width]

    def _crop(self, x: Tensor) -> Tensor:
        """The positions of the map out of those of the padded map; a view."""
        border, _, spacing = self.layout
        rows, columns = (
            slice(border, border + (side - 1) * spacing + 1, spacing)
            for side in (self.height, self.width)
        )
        return x[:, rows, columns]


@dataclass(frozen=True)
class ConvTransposeField(ConvField):
    """Windows over a map whose positions are `stride` apart: a transposed convolution.

    Children between the positions are absent. A parent at row y has children at the rows r with
    `0 <= y + padding - r * stride < kernel`, as in `torch.nn.functional.conv_transpose2d`; the
    matrices of the window's row ky are those of its row K - 1 - ky there.

    Attributes:
        height: rows of the map.
        width: columns of the map.
        kernel: side of a window, K.
        stride: positions from one child's window of parents to the next.
        padding: rows and columns of parents that are left out on each side, below K.
        convention: which parents compete for a child; see `ConvField`.

    Raises:
        ArgumentError: a size out of range.
    """

    @property
    def layout(self) -> Layout:
        return Layout(self.kernel - 1 - self.padding, 1, self.stride)
