"""Fields: which children vote for which parents, and which parents compete for a child.

A child of a convolution feeds the parents of every window that contains it. Its couplings therefore sum to one over
parent types AND positions; most public code lets only the types of one window compete. Letters: n capsule types of the
map, K kernel size, i a child of one position of the parents, in a window (ky, kx, n), j parent types.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from torchcaps.errors import check_known, check_positive, check_range

Convention = Literal["all", "type", "space", "patch"]
CONVENTIONS = get_args(Convention)


def spatial_last(
    x: Float[Tensor, "batch height width *rest"],
) -> Float[Tensor, "batch *rest height width"]:
    """`[batch, height, width, *rest]` -> `[batch, *rest, height, width]`, a view."""
    return x.movedim((1, 2), (-2, -1))


def spatial_first(
    x: Float[Tensor, "batch *rest height width"],
) -> Float[Tensor, "batch height width *rest"]:
    """The inverse of `spatial_last`, a view."""
    return x.movedim((-2, -1), (1, 2))


class Field(ABC):
    """Children of a map `[batch, *space, n, ...]` and the positions of their parents."""

    convention: Convention  # the name of the competition; see `ConvField`

    @property
    @abstractmethod
    def positions(self) -> tuple[int, ...]:
        """Of the parents; empty for one set of parents."""

    @property
    def local(self) -> bool:
        """Whether only the parents of one position compete for a child."""
        return self.convention == "type"

    @abstractmethod
    def count(self, types: int) -> int:
        """i: how many children each position has, of `types` capsule types on the map."""

    @abstractmethod
    def gather(self, x: Tensor) -> Tensor:
        """What each position's children have: `[batch, *space, n, ...]` -> `[batch, *positions, i, ...]`."""

    @abstractmethod
    def scatter(self, x: Tensor) -> Tensor:
        """Sum over positions, the adjoint of `gather`: `[batch, *positions, i]` -> `[batch, *space, n]`."""

    def mask(self, types: int) -> Tensor | None:
        """1 for each child that is on the map and 0 for padding, `[1, *positions, i]`; None where all are."""
        return None

    def reduce_competing(self, x: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
        """`reduce` (Tensor.sum or amax) over the parents that compete for a child; axes of one where all are equal."""
        return reduce(x, dim=-1, keepdim=True)

    def softmax(
        self, log_weight: Float[Tensor, "batch *positions i j"], leaky: bool = False
    ) -> Tensor:
        """Softmax over the parents that compete for a child; if leaky, one more competes, of logit 0."""
        if self.local and not leaky:
            return log_weight.softmax(dim=-1)
        high = self.reduce_competing(log_weight.detach(), Tensor.amax)
        high = high.clamp(min=0.0) if leaky else high
        weight = (log_weight - high).exp()
        total = self.reduce_competing(weight, Tensor.sum)
        return weight / (total + (-high).exp() if leaky else total)

    def initial_coupling(self, like: Float[Tensor, "batch *positions i j"]) -> Tensor:
        """Couplings before anything is known of the votes; `like` gives their shape and type."""
        return self.softmax(torch.zeros_like(like))


@dataclass(frozen=True)
class DenseField(Field):
    """Every child of the map votes for every parent.

    Attributes:
        height, width: of the map, in positions; None for children without places.
        positions: where children already stand at the positions of their parents, these; empty otherwise.
    """

    height: int | None = None
    width: int | None = None
    positions: tuple[int, ...] = ()
    convention: Convention = field(default="type", init=False)

    @property
    def space(self) -> tuple[int, ...]:
        """Height and width of the map; empty for children without places."""
        return () if self.height is None or self.width is None else (self.height, self.width)

    def count(self, types: int) -> int:
        return math.prod(self.space) * types

    def gather(self, x: Float[Tensor, "batch *space n *rest"]) -> Float[Tensor, "batch i *rest"]:
        return x if self.positions else x.flatten(1, 1 + len(self.space))

    def scatter(self, x: Float[Tensor, "batch i"]) -> Float[Tensor, "batch *space n"]:
        return x if self.positions else x.unflatten(1, (*self.space, -1))


@dataclass(frozen=True)
class ConvField(Field):
    """Square windows that slide over a map: a convolution. ValueError for windows larger than the padded map.

    Attributes:
        height, width: of the map, in positions.
        kernel: side of a window, K.
        stride: positions from one window to the next.
        padding: rows and columns of absent children (pose and activation 0) on each side of the map, below K.
        convention: which parents compete for a child. "all": over types and positions, as in procedure 1 of the EM
            paper. "type": over the types of each window; parents at different positions do not compete. "space": over
            positions for each type, as in the authors' code. "patch": over types and all windows with the place in the
            window in the child's stead, which lumps different children together; for comparison with code that does so.
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
        edge, _, gap = self.slide
        least = 1 if gap > 1 else max(1, self.kernel - 2 * edge)
        for name in ("height", "width"):
            check_range(name, getattr(self, name), low=least)
        check_known("convention", self.convention, CONVENTIONS)

    @property
    def slide(self) -> tuple[int, int, int]:
        """Absent rows and columns on each side; positions to the next window; and to the map's next place."""
        return self.padding, self.stride, 1

    @property
    def padded(self) -> tuple[int, int]:
        """Height and width with what is absent."""
        edge, _, gap = self.slide
        return (self.height - 1) * gap + 1 + 2 * edge, (self.width - 1) * gap + 1 + 2 * edge

    @property
    def positions(self) -> tuple[int, int]:
        (height, width), (_, step, _) = self.padded, self.slide
        return (height - self.kernel) // step + 1, (width - self.kernel) // step + 1

    def count(self, types: int) -> int:
        return self.kernel**2 * types

    def pad(
        self, x: Float[Tensor, "batch height width *rest"]
    ) -> Float[Tensor, "batch padded1 padded2 *rest"]:
        """The map with zeros where there is no child."""
        edge, _, gap = self.slide
        if gap == 1:
            return F.pad(x, [0, 0] * (x.dim() - 3) + [edge] * 4) if edge else x
        wide = x.new_zeros(len(x), *self.padded, *x.shape[3:])
        self._inside(wide).copy_(x)
        return wide

    def gather(
        self, x: Float[Tensor, "batch height width n *rest"]
    ) -> Float[Tensor, "batch rows columns i *rest"]:
        return self._unfold(self.pad(x))

    def scatter(
        self, x: Float[Tensor, "batch rows columns i"]
    ) -> Float[Tensor, "batch height width n"]:
        return self._inside(self._fold(x))

    def mask(self, types: int) -> Tensor | None:
        if self.padded == (self.height, self.width):
            return None
        return self.gather(torch.ones(1, self.height, self.width, 1)).repeat_interleave(
            types, dim=-1
        )

    def reduce_competing(
        self, x: Float[Tensor, "batch rows columns i j"], reduce: Callable[..., Tensor]
    ) -> Tensor:
        onto_map = (
            self._fold if reduce is Tensor.sum else self._largest
        )  # over the windows with a child
        if self.convention == "type":
            return super().reduce_competing(x, reduce)
        if self.convention == "patch":
            return reduce(x, dim=(1, 2, 4), keepdim=True)
        if self.convention == "all":
            return self._unfold(onto_map(reduce(x, dim=-1))).unsqueeze(-1)
        links = x.movedim(-1, 1).flatten(0, 1)  # of each type alone
        return self._unfold(onto_map(links)).unflatten(0, (len(x), x.shape[-1])).movedim(1, -1)

    def initial_coupling(self, like: Float[Tensor, "batch rows columns i j"]) -> Tensor:
        if (
            self.convention == "space"
        ):  # the authors' code starts so, although types do not compete there
            return torch.full_like(like, 1.0 / like.shape[-1])
        return super().initial_coupling(like)

    def _unfold(self, x: Tensor) -> Tensor:
        """Like `gather`, of what is there for every place of the padded map."""
        cut = x.unfold(1, self.kernel, self.slide[1]).unfold(2, self.kernel, self.slide[1])
        return cut.movedim((-2, -1), (3, 4)).flatten(3, 5)

    def _fold(self, x: Tensor) -> Tensor:
        """The adjoint of `_unfold`: `[batch, rows, columns, K * K * n]` -> the padded map."""
        rows, columns = self.positions
        if len(x) == 0:  # torch's own refuses it
            return x.reshape(0, *self.padded, x.shape[-1] // self.kernel**2)
        by_type = x.reshape(len(x), rows * columns, self.kernel**2, -1).permute(
            0, 3, 2, 1
        )  # [b, n, K * K, windows]
        return F.fold(
            by_type.flatten(1, 2), self.padded, self.kernel, stride=self.slide[1]
        ).permute(0, 2, 3, 1)

    def _largest(self, x: Tensor) -> Tensor:
        """Like `_fold`, with the maximum in place of the sum, and -infinity where no window reaches. No gradient."""
        (rows, columns), (_, step, _) = self.positions, self.slide
        x = x.detach().unflatten(3, (self.kernel, self.kernel, -1))
        best = x.new_full((len(x), *self.padded, x.shape[-1]), -torch.inf)
        for ky in range(self.kernel):
            for kx in range(self.kernel):
                reached = best[:, ky::step, kx::step][:, :rows, :columns]
                reached.copy_(torch.maximum(reached, x[:, :, :, ky, kx]))
        return best

    def _inside(self, x: Tensor) -> Tensor:
        """The places of the map, of the padded map."""
        edge, _, gap = self.slide
        rows, columns = (
            slice(edge, edge + (n - 1) * gap + 1, gap) for n in (self.height, self.width)
        )
        return x[:, rows, columns]


@dataclass(frozen=True)
class ConvTransposeField(ConvField):
    """Windows over a map whose places stand `stride` apart, with absent children between: a transposed convolution.

    A parent at row y has children at the rows r with `0 <= y + padding - r * stride < kernel`, as in
    `torch.nn.functional.conv_transpose2d`; the matrices of the window's row ky are those of its row K - 1 - ky there.
    Attributes and errors are those of `ConvField`, but `stride` is from one child's window of parents to the next, and
    `padding` counts rows and columns of parents that are left out on each side.
    """

    @property
    def slide(self) -> tuple[int, int, int]:
        return self.kernel - 1 - self.padding, 1, self.stride
