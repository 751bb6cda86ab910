"""Neighbourhoods of a map of capsules, and the competition for a child among ALL its parents in a convolution.

A child of a convolution feeds the parents of every window that contains it. Its couplings therefore sum to one over
parent types AND positions; most public code lets only the types of one window compete. Letters: n capsule types of the
map, K kernel size, i = (ky, kx, n) a child's place in a window, j parent types.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from torchcaps.errors import UnknownNameError, check_range, check_shape

Convention = Literal["all", "type", "space", "patch"]
CONVENTIONS = get_args(Convention)


@dataclass(frozen=True)
class Windows:
    """Square windows that slide over a map without padding.

    Attributes:
        height: of the map, in positions.
        width: of the map.
        kernel: side of a window, K.
        stride: positions from one window to the next.

    Raises:
        ValueError: for a window larger than the map, or sizes below one.
    """

    height: int
    width: int
    kernel: int
    stride: int = 1

    def __post_init__(self) -> None:
        """Check the sizes."""
        for name in ("kernel", "stride"):
            check_range(name, getattr(self, name), low=1)
        for name in ("height", "width"):
            check_range(name, getattr(self, name), low=self.kernel)

    @property
    def positions(self) -> tuple[int, int]:
        """Rows and columns of windows."""
        return (self.height - self.kernel) // self.stride + 1, (self.width - self.kernel) // self.stride + 1

    def unfold(self, x: Float[Tensor, "batch height width n *rest"]) -> Float[Tensor, "batch rows columns i *rest"]:
        """Each window's capsules: `[batch, height, width, n, ...]` -> `[batch, rows, columns, K * K * n, ...]`."""
        cut = x.unfold(1, self.kernel, self.stride).unfold(2, self.kernel, self.stride)
        return cut.movedim((-2, -1), (3, 4)).flatten(3, 5)

    def fold(self, x: Float[Tensor, "batch rows columns i"]) -> Float[Tensor, "batch height width n"]:
        """Sum over windows with a child: `[batch, rows, columns, K * K * n]` -> `[batch, height, width, n]`.

        The adjoint of `unfold`; 0 for a child that no window contains.
        """
        rows, columns = self.positions
        if len(x) == 0:  # torch's own refuses it
            return x.reshape(0, self.height, self.width, x.shape[-1] // self.kernel**2)
        by_type = x.reshape(len(x), rows * columns, self.kernel**2, -1).permute(0, 3, 2, 1)  # [b, n, K * K, windows]
        size = (self.height, self.width)
        return F.fold(by_type.flatten(1, 2), size, self.kernel, stride=self.stride).permute(0, 2, 3, 1)

    def largest(self, x: Float[Tensor, "batch rows columns i"]) -> Float[Tensor, "batch height width n"]:
        """Like `fold`, with the maximum in place of the sum, and -infinity where no window reaches. No gradient."""
        rows, columns = self.positions
        x = x.detach().unflatten(3, (self.kernel, self.kernel, -1))
        best = x.new_full((len(x), self.height, self.width, x.shape[-1]), -torch.inf)
        for ky in range(self.kernel):
            for kx in range(self.kernel):
                reached = best[:, ky :: self.stride, kx :: self.stride][:, :rows, :columns]
                reached.copy_(torch.maximum(reached, x[:, :, :, ky, kx]))
        return best

    def parents(self) -> Float[Tensor, "height width"]:
        """Number of windows that contain each position; a child there has that many parents of each type."""
        rows, columns = self.positions
        return self.fold(torch.ones(1, rows, columns, self.kernel**2))[0, ..., 0]

    def total(self, x: Float[Tensor, "batch rows columns i j"], convention: Convention = "all") -> Tensor:
        """Sum over the parents that compete for a child, in the place of each; axes of length one where all are equal.

        Args:
            x: `[batch, rows, columns, K * K * n, parents]`.
            convention: see `share`.
        """
        if convention == "type":
            return x.sum(dim=-1, keepdim=True)
        if convention == "patch":
            return x.sum(dim=(1, 2, 4), keepdim=True)
        if convention == "space":
            return _by_type(lambda links: self.unfold(self.fold(links)), x)
        return self.unfold(self.fold(x.sum(dim=-1))).unsqueeze(-1)

    def most(self, x: Float[Tensor, "batch rows columns i j"], convention: Convention = "all") -> Tensor:
        """Like `total`, with the maximum in place of the sum. No gradient."""
        x = x.detach()
        if convention == "type":
            return x.amax(dim=-1, keepdim=True)
        if convention == "patch":
            return x.amax(dim=(1, 2, 4), keepdim=True)
        if convention == "space":
            return _by_type(lambda links: self.unfold(self.largest(links)), x)
        return self.unfold(self.largest(x.amax(dim=-1))).unsqueeze(-1)

    def share(self, log_weight: Float[Tensor, "batch rows columns i j"], convention: Convention = "all") -> Tensor:
        """Softmax over the parents that compete for a child.

        Args:
            log_weight: `[batch, rows, columns, K * K * n, parents]`.
            convention: "all": over types and positions, as in the paper's procedure 1. "type": over the types of each
                window, as in much public code; parents at different positions do not compete. "space": over positions
                for each type, as in the authors' code. "patch": over types and all windows with the place in the window
                in the child's stead, which lumps different children together; for comparison with code that does so.

        Raises:
            ValueError: for another shape or name.
        """
        if convention not in CONVENTIONS:
            raise UnknownNameError("convention", convention, CONVENTIONS)
        check_shape("log_weight", log_weight, ("batch", "rows", "columns", "i", "j"))
        weight = (log_weight - self.most(log_weight, convention)).exp()
        return weight / self.total(weight, convention)

    def first_coupling(self, convention: Convention, like: Float[Tensor, "batch rows columns i j"]) -> Tensor | None:
        """Coupling before the first M-step, where it is not what the competition makes of equal weights, else None.

        The authors' code starts at 1 / parent types, although types do not compete there.
        """
        return torch.full_like(like, 1.0 / like.shape[-1]) if convention == "space" else None


def _by_type(change: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A function of links `[batch, rows, columns, i]`, for each parent type of `[batch, rows, columns, i, j]`."""
    links = x.movedim(-1, 1).flatten(0, 1)
    return change(links).unflatten(0, (len(x), x.shape[-1])).movedim(1, -1)
