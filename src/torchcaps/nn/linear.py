"""CapsuleLinear: every child votes for every parent by a matrix of its own, then a router decides."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import check_floating, check_range, check_shape
from torchcaps.functional import safe_norm
from torchcaps.functional.bounds import FACTOR, bounded
from torchcaps.functional.squash import full_precision
from torchcaps.nn.recording import Recorded, RoutedLayer
from torchcaps.nn.routers import RouteFunction, create_router
from torchcaps.types import Capsules

# Length of a fresh primary capsule on images in [0, 1], and of the first parents' s that learns without delay.
_CHILD_LENGTH, _PARENT_LENGTH = 0.1, 0.4


class CapsuleLinear(RoutedLayer):
    """Fully connected capsules (arXiv 1710.09829, equations 1-3): `vote_ij = weight[i, j] @ pose_i`, then routing.

    Args:
        in_capsules: I, number of children.
        in_dim: dimensions of a child's pose.
        out_capsules: J, number of parents.
        out_dim: D, dimensions of a parent's pose.
        routing: a name of `list_routers()`, a router module, or a function `(votes, activation) -> Routed`.
        bias: a learned `[J, D]` vector added inside every iteration (0.1 at the start, as in the authors' code).
        init_std: standard deviation of the weights. By default such that uniform coupling gives `|s| = 0.4` for
            children of length 0.1: `0.4 J / (0.1 sqrt(I D))`; 0.29 for the paper's layer. With a bias it is 0.1, as
            in the authors' code.
        routing_options: passed to the router of that name, e.g. `iterations=2`.

    Shapes:
        input Capsules (or their pose) `[batch, I, in_dim]`; output Capsules with pose `[batch, J, D]` and activation
        `[batch, J]`. `weight` is `[I, J, D, in_dim]`.

    Raises:
        ValueError: for sizes below one, an unknown routing, or input of another shape. TypeError: unknown option.

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
        routing: str | nn.Module | RouteFunction = "dynamic",
        *,
        bias: bool = False,
        init_std: float | None = None,
        **routing_options: Any,
    ) -> None:
        super().__init__()
        self.in_capsules, self.in_dim, self.out_capsules, self.out_dim = in_capsules, in_dim, out_capsules, out_dim
        for name in ("in_capsules", "in_dim", "out_capsules", "out_dim"):
            check_range(name, getattr(self, name), low=1)
        self.init_std = init_std
        self.router = create_router(routing, **routing_options)
        self.weight = nn.Parameter(torch.empty(in_capsules, out_capsules, out_dim, in_dim))
        self.bias = nn.Parameter(torch.empty(out_capsules, out_dim)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew; the bias becomes 0.1."""
        std = self.init_std
        if std is None and self.bias is not None:
            std = 0.1
        elif std is None:
            std = _PARENT_LENGTH * self.out_capsules / (_CHILD_LENGTH * (self.in_capsules * self.out_dim) ** 0.5)
        nn.init.normal_(self.weight, std=std)
        if self.bias is not None:
            nn.init.constant_(self.bias, 0.1)

    def forward(self, children: Capsules | Float[Tensor, "batch children in_dim"]) -> Capsules:
        """Parents of these children; a bare pose tensor is taken as vector capsules."""
        if isinstance(children, Tensor):
            check_floating(children=children)
            children = Capsules(children, safe_norm(bounded(children, FACTOR)))
        pose, activation = children
        check_shape("children", pose, ("batch", "children", "dim"), children=self.in_capsules, dim=self.in_dim)
        recording = self.recorder is not None
        routed = self.router.linear(pose, activation, self.weight, self.bias, want_coupling=recording)
        if recording:
            self.record(Recorded.of(activation, routed))
        return Capsules(routed.pose, full_precision(routed.activation))

    def extra_repr(self) -> str:
        """Sizes, as the constructor takes them."""
        sizes = f"{self.in_capsules}, {self.in_dim}, {self.out_capsules}, {self.out_dim}"
        return f"{sizes}, bias={self.bias is not None}"
