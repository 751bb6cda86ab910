"""AffCapsNet: class capsules by one affine map that all primary capsules share, without routing.

Jindong Gu, Volker Tresp, "Improving the Robustness of Capsule Networks to Image Affine
Transformations", CVPR 2020, arXiv 1911.07968. There is no code and no table of sizes: the trunk is
CapsNet's (arXiv 1710.09829), and the constant, the start of the matrices and the training are this
library's.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from torchcaps.errors import check_known
from torchcaps.functional.bounds import without_autocast
from torchcaps.functional.squash import full_precision, safe_norm, squash_with_length
from torchcaps.functional.votes import Votes
from torchcaps.models._registry import ModelInfo, register_model
from torchcaps.models.capsnet import CapsNet
from torchcaps.nn import CapsuleLinear, DynamicRouting
from torchcaps.types import Capsules

Share = Literal["all", "position", "none"]
Constant = Literal["1/K", "1/sqrt(N)", "1/N"]


class AffineCaps(CapsuleLinear):
    """`v_k = squash(c sum_n W_k u_n)`: children that share a matrix are summed before the product.

    It is routing by agreement of the votes `c K W_k u_n`, of which one iteration is the equation,
    and makes no votes. `weight` is `[matrices, K, out_dim, in_dim]`.

    Args:
        in_capsules: N, children.
        in_dim: dimensions of a child.
        out_capsules: K, parents.
        out_dim: dimensions of a parent.
        routing: name of a router (see `list_routers()`), a router, or a function
            `(votes, activation) -> Routed`.
        num_matrices: for each parent, which the children repeat in turn: 1, the types of a
            position, or None for N.
        constant: c, 1 / K being equal couplings.
        options: of `CapsuleLinear`.

    Example:
        >>> AffineCaps(1152, 8, 10, 16, iterations=1)(torch.rand(2, 1152, 8)).pose.shape
        torch.Size([2, 10, 16])
    """

    def __init__(
        self,
        in_capsules: int,
        in_dim: int,
        out_capsules: int,
        out_dim: int,
        routing: str = "dynamic",
        *,
        num_matrices: int | None = 1,
        constant: Constant = "1/sqrt(N)",
        **options: Any,
    ) -> None:
        check_known("constant", constant, Constant)
        num_matrices = num_matrices or in_capsules
        c = in_capsules**-0.5
        std = in_dim**-0.5
        if constant == "1/K":
            c = 1 / out_capsules
            std = 0.1
        elif constant == "1/N":
            c = 1 / in_capsules
        if num_matrices == in_capsules:
            # Votes are independent: as in `LinearVotes`, |s| = 0.4 for children of length 0.1.
            std = 4 / (c * (num_matrices * out_dim) ** 0.5)
        super().__init__(
            num_matrices,
            in_dim,
            out_capsules,
            out_dim,
            routing,
            init_std=std,
            **options,
        )
        self.in_capsules = in_capsules
        self.expected = {"children": in_capsules}
        self.constant = c

    def make_votes(self, children: Capsules | Tensor) -> Votes:
        if isinstance(children, Tensor):
            children = Capsules(children, safe_norm(children))
        pose = children.pose * (self.constant * self.out_capsules)
        return super().make_votes(Capsules(pose, children.activation))

    def forward(
        self,
        children: Capsules | Tensor,
        parents: Capsules | None = None,
        mask: Tensor | None = None,
    ) -> Capsules:
        """Parents of these children, without votes where couplings are equal and not recorded."""
        if mask is not None or not self._is_sum():
            return super().forward(children, parents, mask)
        if isinstance(children, Tensor):
            children = Capsules(children, children[..., 0])
        self.check(children)
        pose = children.pose
        with without_autocast(pose):
            groups = full_precision(pose).unflatten(1, (-1, len(self.weight))).sum(dim=1)
            s = self.constant * torch.einsum("bgi,gkdi->bkd", groups, full_precision(self.weight))
            if self.bias is not None:
                s = s + full_precision(self.bias)
            return squash_with_length(s)

    def _is_sum(self) -> bool:
        """Whether couplings are equal, and nobody looks at them."""
        router = self.router
        return (
            isinstance(router, DynamicRouting)
            and router.over == "parents"
            and not router.leaky
            and router.num_iterations <= 1
            and router.fixed in (None, (0, 0.0))
            and self.recorder is None
        )


# CapsNet with one matrix a class for all primary capsules and no routing: 5.3 million parameters,
# 2.2 to draw.
@register_model(
    ModelInfo(
        title="Improving the Robustness of Capsule Networks to Image Affine Transformations",
        year=2020,
        arxiv="1911.07968",
        img_size=(40, 40),
        parameters=7_578_688,
        published="affNIST accuracy 93.21 %, trained on MNIST",
        purpose="one matrix a class and no routing: digits that are rotated or sheared",
    ),
    name="affcaps",
)
class AffCapsNet(CapsNet):
    """Convolution -> primary capsules -> their sum -> one matrix for each class -> decoder.

    Args:
        sizes: `num_classes`, `in_chans` and `img_size`; see `CapsNet`.
        primary_types: types of primary capsules per pixel.
        share: which primary capsules have a matrix for each class in common: "all", those of one
            type ("position"), or "none", as in CapsNet.
        routing_iters: 1 is no routing: constant couplings.
        constant: factor of the sum of the votes of N primary capsules. "1/K" is equal couplings to
            K classes, "1/N" is the mean; with "1/sqrt(N)" lengths depend least on the size of the
            images.
        options: of `CapsNet`.
    """

    layer = AffineCaps

    def __init__(
        self,
        *sizes: Any,
        primary_types: int = 32,
        share: Share = "all",
        routing_iters: int = 1,
        constant: Constant = "1/sqrt(N)",
        **options: Any,
    ) -> None:
        check_known("share", share, Share)
        num_matrices = {"all": 1, "position": primary_types, "none": None}
        super().__init__(
            *sizes,
            primary_types=primary_types,
            iterations=routing_iters,
            num_matrices=num_matrices[share],
            constant=constant,
            **options,
        )
