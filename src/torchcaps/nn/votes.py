"""Votes as modules: the matrices of a layer, and the lazy votes that they give to a router."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_positive
from torchcaps.functional.fields import Field
from torchcaps.functional.squash import full_precision
from torchcaps.functional.votes import ProductVotes, Votes, num_voters
from torchcaps.types import Capsules, LayerSizes

CHILD_LENGTH = 0.1  # of a fresh primary capsule on images in [0, 1]
PARENT_LENGTH = 0.4  # of the first parents' sums s, from which a layer learns without delay
BIAS = 0.1  # initial, as in the authors' code
MATRIX_STD = 0.1  # of the noise that is added to identity matrices
MakePlaces = Callable[[int, int], Tensor]


class ModuleVotes(Votes):
    """Votes of a `VotesModule`, which holds their parameters."""

    added: tuple[str, ...] = ("module",)

    def __init__(self, children: Capsules, field: Field, module: Any) -> None:
        sizes = module.sizes
        super().__init__(children, field, sizes.parents, sizes.dim, module.bias)
        self.module = module


class VotesModule(nn.Module):
    """Base of the modules that make votes.

    Args:
        sizes: numbers of children and parents, and the dimensions of their poses.

    Attributes:
        bias: added to the sum of each parent; None where nothing is.

    Raises:
        ArgumentError: a size below 1.
        TypeError: another type than `LayerSizes`.
    """

    lazy_votes: type[ModuleVotes]

    def __init__(self, sizes: LayerSizes) -> None:
        if not isinstance(sizes, LayerSizes):
            raise TypeError(
                f"sizes: expected LayerSizes(children, in_dim, parents, dim), got {sizes!r}"
            )
        check_positive(**sizes._asdict())
        super().__init__()
        self.sizes = sizes
        self.bias: nn.Parameter | None = None

    def reset_parameters(self) -> None:
        """Draw the parameters anew, if there are any."""

    def forward(self, children: Capsules, field: Field) -> Votes:
        """The votes of children, not computed yet.

        Args:
            children: pose `[batch, *space, types, in_dim]` and activation `[batch, *space, types]`.
            field: which children vote for which parents.

        Returns:
            Votes `[batch, *positions, children, parents, dim]`, which a router asks for what it
            needs.
        """
        return self.lazy_votes(children, field, self)


class LinearVotes(VotesModule):
    """`vote_ij = weight[i, j] @ pose_i`; `weight` is `[children, parents, dim, in_dim]`.

    Source: arXiv 1710.09829, equation 2.

    Args:
        sizes: numbers of children and parents, and the dimensions of their poses.
        bias: a learned `[parents, dim]` vector that the router adds to each parent's sum (0.1 at
            the start, as in the authors' code).
        init_std: standard deviation of the weights. By default such that uniform coupling gives
            `|s| = 0.4` for children of length 0.1: `0.4 J / (0.1 sqrt(I D))`, J being the parents
            that compete for a child; 0.29 for the layer of the paper. With a bias it is 0.1, as in
            the authors' code.
        places: `[height, width, dim]`, added to the votes from each position of a map whose
            positions share the matrices; see `functional.coordinate_addition`.
        make_places: gives these numbers for a map of another height and width; None takes one size.
        windows: number of windows, about, that contain a child: their parents compete for it.

    Raises:
        ArgumentError: a size below 1.
    """

    places: Tensor | None

    def __init__(
        self,
        sizes: LayerSizes,
        *,
        bias: bool = False,
        init_std: float | None = None,
        places: Tensor | None = None,
        make_places: MakePlaces | None = None,
        windows: float = 1.0,
    ) -> None:
        super().__init__(sizes)
        self.init_std = init_std
        self.windows = windows
        self.make_places = make_places
        self.weight = nn.Parameter(torch.empty(self.shape))
        self.bias = nn.Parameter(torch.empty(sizes.parents, sizes.dim)) if bias else None
        self.register_buffer("places", places, persistent=False)
        self.reset_parameters()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        children, in_dim, parents, dim = self.sizes
        return children, parents, dim, in_dim

    def reset_parameters(self) -> None:
        """Draw the weights anew; the bias becomes 0.1."""
        std = self.init_std
        if self.bias is not None:
            nn.init.constant_(self.bias, BIAS)
            std = 0.1 if std is None else std
        elif std is None:
            children, _, parents, dim = self.sizes
            competing = parents * self.windows
            std = PARENT_LENGTH * competing / (CHILD_LENGTH * (children * dim) ** 0.5)
        nn.init.normal_(self.weight, std=std)

    def forward(self, children: Capsules, field: Field) -> Votes:
        return ProductVotes(
            children, field, self.weight.transpose(2, 3), self.shift(field), self.bias
        )

    def shift(self, field: Field) -> Float[Tensor, "i 1 dim"] | None:
        """The numbers that are added to the votes of each child of a map, or None.

        Args:
            field: of the map.

        Returns:
            `[i, 1, dim]`; None where nothing is added.
        """
        places = self.places
        if places is None:
            return None
        space = getattr(field, "space", ())
        if self.make_places is not None and space != places.shape[:2]:
            places = self.make_places(*space).to(places)
        return places.flatten(0, 1).unsqueeze(1).repeat_interleave(self.sizes.children, dim=0)


class MatrixVotes(LinearVotes):
    """`V_ij = M_i W_ij`, the pose of a child being a P x P matrix; `weight` `[i, j, P, P]`.

    Source: Hinton, Sabour, Frosst, "Matrix capsules with EM routing", ICLR 2018, section 3.

    Args:
        sizes: numbers of children and parents, and the dimensions of their poses, both P * P.
        init_std: standard deviation of the noise that is added to identity matrices.
        identity: start from identity matrices; False is from noise alone, which suits routings that
            normalize poses. Of noise alone, votes of many children cancel, and poses fade from
            layer to layer.
        options: bias, places and make_places of `LinearVotes`. A stack of layers without a bias
            gives the same activations for poses and their negatives.

    Raises:
        ArgumentError: poses that are not square matrices of one size.
    """

    def __init__(
        self,
        sizes: LayerSizes,
        *,
        init_std: float | None = None,
        identity: bool = True,
        **options: Any,
    ) -> None:
        if not round(sizes.dim**0.5) ** 2 == sizes.dim == sizes.in_dim:
            raise ArgumentError(
                "sizes",
                f"expected poses of P x P numbers, got {sizes.in_dim} and {sizes.dim} numbers",
            )
        self.identity = identity
        super().__init__(sizes, init_std=MATRIX_STD if init_std is None else init_std, **options)

    @property
    def shape(self) -> tuple[int, ...]:
        side = round(self.sizes.dim**0.5)
        return self.sizes.children, self.sizes.parents, side, side

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.identity:
            with torch.no_grad():
                self.weight.add_(torch.eye(self.weight.shape[2]))

    def forward(self, children: Capsules, field: Field) -> Votes:
        return ProductVotes(children, field, self.weight, self.shift(field), self.bias)


class _LazyFactorizedVotes(ModuleVotes):
    """Votes of `FactorizedVotes`: children are summed before they are transformed."""

    added = ("module", "factor", "mix", "offset")

    def __init__(self, children: Capsules, field: Field, module: Any) -> None:
        super().__init__(children, field, module)
        self.factor = full_precision(module.factor)
        self.mix = full_precision(module.mix)
        self.offset = full_precision(module.offset)

    def _scaled(self) -> Tensor:
        scale = self.module.scale
        scale = num_voters(self) ** -0.5 if scale is None else scale
        return full_precision(self.pose) * scale

    def _compute(self) -> Tensor:
        return (self._scaled().unsqueeze(-2) * self.factor) @ self.mix + self.offset

    def weighted(self, coefficients: Tensor) -> Tensor:
        sums = torch.einsum("...ij,...id->...jd", coefficients, self._scaled())
        offsets = coefficients.sum(dim=-2).unsqueeze(-1) * self.offset
        return (sums * self.factor) @ self.mix + offsets


class FactorizedVotes(VotesModule):
    """`V_ij = (pose_i * factor_j) @ mix + offset_j`: sums over children need no votes.

    `factor` is `[parents, in_dim]`, `mix` `[in_dim, dim]`, `offset` `[parents, dim]`. Source:
    Heinsen 2022, arXiv 2211.11754.

    Args:
        sizes: numbers of children and parents, and the dimensions of their poses.
        scale: multiplies the poses first; by default 1 / sqrt(children), of those that vote.

    Raises:
        ArgumentError: a size below 1.
    """

    lazy_votes = _LazyFactorizedVotes

    def __init__(self, sizes: LayerSizes, *, scale: float | None = None) -> None:
        super().__init__(sizes)
        self.scale = scale
        self.factor = nn.Parameter(torch.empty(sizes.parents, sizes.in_dim))
        self.mix = nn.Parameter(torch.empty(sizes.in_dim, sizes.dim))
        self.offset = nn.Parameter(torch.empty(sizes.parents, sizes.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the factors anew, as the author does."""
        nn.init.normal_(self.factor)
        nn.init.normal_(self.mix, std=2 * self.sizes.in_dim**-0.5)
        nn.init.zeros_(self.offset)
