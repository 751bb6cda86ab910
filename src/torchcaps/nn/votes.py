"""Votes as modules: the matrices of a layer, and the lazy votes that they give to a router."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_positive
from torchcaps.functional.fields import Field
from torchcaps.functional.squash import full_precision
from torchcaps.functional.votes import ProductVotes, Votes
from torchcaps.types import Capsules, LayerSizes

# Length of a fresh primary capsule on images in [0, 1], and of the first parents' s that learns without delay.
_CHILD_LENGTH, _PARENT_LENGTH = 0.1, 0.4


class LinearVotes(nn.Module):
    """`vote_ij = weight[i, j] @ pose_i` (arXiv 1710.09829, equation 2); `weight` is `[children, parents, dim, in_dim]`.

    Args:
        sizes: of the layer; ValueError for one below 1.
        bias: a learned `[parents, dim]` vector that the router adds to each parent's sum (0.1 at the start, as in the
            authors' code).
        init_std: standard deviation of the weights. By default such that uniform coupling gives `|s| = 0.4` for
            children of length 0.1: `0.4 J / (0.1 sqrt(I D))`, J being the parents that compete for a child; 0.29 for
            the layer of the paper. With a bias it is 0.1, as in the authors' code.
        places: `[height, width, 1, 1, dim]`, added to the votes from each place of a map whose places share the
            matrices; see `functional.coordinate_addition`.
        windows: how many windows, about, have a child: their parents compete for it.
    """

    places: Tensor | None

    def __init__(
        self,
        sizes: LayerSizes,
        *,
        bias: bool = False,
        init_std: float | None = None,
        places: Tensor | None = None,
        windows: float = 1.0,
    ) -> None:
        super().__init__()
        self.sizes, self.init_std, self.windows = checked(sizes), init_std, windows
        self.weight = nn.Parameter(torch.empty(self.shape))
        self.bias = nn.Parameter(torch.empty(sizes.parents, sizes.dim)) if bias else None
        self.register_buffer("places", places, persistent=False)
        self.reset_parameters()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight."""
        children, in_dim, parents, dim = self.sizes
        return children, parents, dim, in_dim

    def reset_parameters(self) -> None:
        """Draw the weights anew; the bias becomes 0.1."""
        std = self.init_std
        if std is None and self.bias is not None:
            std = 0.1
        elif std is None:
            children, _, parents, dim = self.sizes
            std = (
                _PARENT_LENGTH * parents * self.windows / (_CHILD_LENGTH * (children * dim) ** 0.5)
            )
        nn.init.normal_(self.weight, std=std)
        if self.bias is not None:
            nn.init.constant_(self.bias, 0.1)

    def forward(self, children: Capsules, field: Field) -> Votes:
        return ProductVotes(children, field, self.weight.transpose(2, 3), self.shift(), self.bias)

    def shift(self) -> Float[Tensor, "i 1 dim"] | None:
        """What is added to the votes of each child of a map."""
        if self.places is None:
            return None
        return self.places.flatten(0, 2).repeat_interleave(self.sizes.children, dim=0)


class MatrixVotes(LinearVotes):
    """`V_ij = M_i W_ij`, the pose of a child being a P x P matrix (Hinton, Sabour, Frosst, ICLR 2018, section 3).

    `weight` is `[children, parents, P, P]`; ValueError for poses that are not square matrices of one size. Other
    arguments are those of `LinearVotes`.

    Args:
        bias: a learned `[parents, P * P]` vector for each parent's sum of votes (0.1 at the start). A stack of layers
            without it gives the same activations for poses and their negatives.
        init_std: standard deviation of the noise that is added to identity matrices.
        identity: start from identity matrices; False is from noise alone, which suits routings that normalize poses.
            Of noise alone votes of many children cancel, and poses fade from layer to layer.
    """

    def __init__(
        self,
        sizes: LayerSizes,
        *,
        bias: bool = False,
        init_std: float = 0.1,
        places: Tensor | None = None,
        identity: bool = True,
    ) -> None:
        if not round(sizes.dim**0.5) ** 2 == sizes.dim == sizes.in_dim:
            raise ArgumentError(
                "sizes",
                f"expected poses of P x P numbers, got {sizes.in_dim} and {sizes.dim} numbers",
            )
        self.identity = identity
        super().__init__(sizes, bias=bias, init_std=init_std, places=places)

    @property
    def shape(self) -> tuple[int, ...]:
        children, _, parents, dim = self.sizes
        return children, parents, round(dim**0.5), round(dim**0.5)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.identity:
            with torch.no_grad():
                self.weight.add_(torch.eye(self.weight.shape[2]))

    def forward(self, children: Capsules, field: Field) -> Votes:
        return ProductVotes(children, field, self.weight, self.shift(), self.bias)


class FactorizedVotes(nn.Module):
    """`V_ij = (pose_i * factor_j) @ mix + offset_j`: sums over children need no votes (Heinsen 2022, 2211.11754).

    `factor` is `[parents, in_dim]`, `mix` `[in_dim, dim]`, `offset` `[parents, dim]`. Poses are first multiplied by
    `scale`, by default 1 / sqrt(children), of those that vote. ValueError for sizes below one.
    """

    def __init__(self, sizes: LayerSizes, *, scale: float | None = None) -> None:
        super().__init__()
        self.sizes, self.scale = checked(sizes), scale
        shapes = (
            (sizes.parents, sizes.in_dim),
            (sizes.in_dim, sizes.dim),
            (sizes.parents, sizes.dim),
        )
        self.factor, self.mix, self.offset = (nn.Parameter(torch.empty(shape)) for shape in shapes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the factors anew, as the author does."""
        nn.init.normal_(self.factor)
        nn.init.normal_(self.mix, std=2 * self.sizes.in_dim**-0.5)
        nn.init.zeros_(self.offset)

    def forward(self, children: Capsules, field: Field) -> Votes:
        return _Factorized(children, field, self)


class _Factorized(Votes):
    """Sums of children come before their transformation."""

    def __init__(self, children: Capsules, field: Field, module: FactorizedVotes) -> None:
        super().__init__(children, field, module.sizes.parents, module.sizes.dim)
        self.factor, self.mix, self.offset = (
            full_precision(x) for x in (module.factor, module.mix, module.offset)
        )
        self.scale = self.count**-0.5 if module.scale is None else module.scale

    def _compute(self) -> Tensor:
        poses = full_precision(self.pose).unsqueeze(-2) * self.scale
        return (poses * self.factor) @ self.mix + self.offset

    def weighted(self, coefficients: Tensor) -> Tensor:
        poses = torch.einsum(
            "...ij,...id->...jd", coefficients, full_precision(self.pose) * self.scale
        )
        return (poses * self.factor) @ self.mix + coefficients.sum(dim=-2).unsqueeze(
            -1
        ) * self.offset


def checked(sizes: LayerSizes) -> LayerSizes:
    """The sizes; TypeError for anything else, ValueError for one below 1."""
    if not isinstance(sizes, LayerSizes):
        raise TypeError(
            f"sizes: expected LayerSizes(children, in_dim, parents, dim), got {sizes!r}"
        )
    check_positive(**sizes._asdict())
    return sizes
