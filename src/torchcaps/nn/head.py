"""Class capsules on the features of any backbone, such as a pretrained one.

The head has a linear layer for the primary capsules of each position, as one-layer heads of the
field have (arXiv 1710.09829, Hahn et al. 2019), and one routing to the classes, whose matrices
belong to capsule types and are shared over positions (matrix capsules, ICLR 2018). Its number of
weights follows the features and the classes, not the size of the image.
"""

from math import isqrt
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_floating, check_positive, check_shape
from torchcaps.functional.squash import full_precision, squash_with_length
from torchcaps.nn.routed import RoutedLayer, check_mask
from torchcaps.nn.routers import FunctionRouter, Router, Routing, create_router
from torchcaps.nn.self_routing import PoseVotes
from torchcaps.nn.votes import LinearVotes, MatrixVotes
from torchcaps.types import Capsules, LayerSizes

MAX_POSITIONS = 16
CHILD_SUM = 0.4  # length of a class's first sum of votes, if all positions agree
# Axes of features by their number.
AXES = {
    2: ("batch", "features"),
    3: ("batch", "length", "features"),
    4: ("batch", "features", "height", "width"),
}


class CapsuleHead(nn.Module):
    """Feature maps, sequences or vectors -> capsules at each position -> one capsule a class.

    Poses are vectors, squashed, where the router's activation is a length; otherwise they are
    square matrices, with an activation of their own if the router weighs children by it. Where a
    router says nothing of presence, as attention does, the activation of a class is a softmax over
    classes of a learned function of its pose.

    Args:
        in_features: channels of the maps, or dimensions of the vectors.
        num_classes: number of class capsules.
        routing: name of a router (see `list_routers()`), a router, or a function
            `(votes, activation) -> Routed`.
        types: capsules at each position.
        dim: of a pose; a square number for matrices.
        max_positions: maps and sequences of more positions are averaged over neighboring ones; a
            map then has at most as many rows and columns as the root of this number.
        **routing_options: of the router of that name, such as `iterations=2`.

    Attributes:
        options: all arguments but the numbers of features and classes, by name.

    Shapes:
        input `[batch, in_features, height, width]`, `[batch, length, in_features]` or
        `[batch, in_features]`, and with sequences optionally a mask `[batch, length]`, True for
        positions that are present; output Capsules with pose `[batch, num_classes, dim]` and activation
        `[batch, num_classes]` in [0, 1].

    Raises:
        ArgumentError: a size below 1, a `dim` that makes no square matrix, an unknown routing, or
            features or a mask of another shape.
        TypeError: an unknown option.

    Example:
        >>> CapsuleHead(1280, 10)(torch.rand(2, 1280, 4, 4)).pose.shape
        torch.Size([2, 10, 16])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        routing: Routing = "dynamic",
        *,
        types: int = 16,
        dim: int = 16,
        max_positions: int = MAX_POSITIONS,
        **routing_options: Any,
    ) -> None:
        super().__init__()
        check_positive(
            in_features=in_features,
            num_classes=num_classes,
            types=types,
            dim=dim,
            max_positions=max_positions,
        )
        self.in_features = in_features
        self.num_classes = num_classes
        self.types = types
        self.max_positions = max_positions
        self.options = {
            "routing": routing,
            "types": types,
            "dim": dim,
            "max_positions": max_positions,
            **routing_options,
        }
        router = create_router(routing, **routing_options)
        self.activation = router.activation
        self.norm = nn.LayerNorm(in_features)
        self.primary = nn.Linear(in_features + 2, types * dim)  # 2: of the place on the map
        has_presence = router.activation == "probability"
        self.presence = nn.Linear(in_features, types) if has_presence else None
        votes = _make_votes(router, LayerSizes(types, dim, num_classes, dim), max_positions)
        self.class_capsules = RoutedLayer(votes, router)
        self.score = nn.Linear(dim, 1) if router.activation == "none" else None

    def forward(
        self, features: Tensor, mask: Bool[Tensor, "batch length"] | None = None
    ) -> Capsules:
        """Class capsules of features.

        Args:
            features: `[batch, in_features, height, width]`, `[batch, length, in_features]` or
                `[batch, in_features]`.
            mask: of sequences that are padded to one length, True for positions that are present.
                The others change nothing, whatever numbers they hold.

        Returns:
            Pose `[batch, num_classes, dim]`, activation `[batch, num_classes]` in [0, 1]; zeros for
            a sequence without any position.

        Raises:
            ArgumentError: features or a mask of another shape or type.
        """
        check_features(features, features=self.in_features)
        if mask is None:
            x = self.norm(as_map(pool_positions(features, self.max_positions)))
            return self._classes(_with_places(x), x, None)

        if features.dim() != 3:
            raise ArgumentError("mask", "expected None beside features that are no sequence")
        check_mask(mask, features.shape[:2])
        pooled, counts = pool_sequences(features, mask, self.max_positions)
        x = self.norm(as_map(pooled))
        is_present = torch.arange(x.shape[2], device=x.device) < counts  # [batch, positions]
        places = _with_places(x, counts.clamp(min=1))
        classes = self._classes(places, x, is_present[:, None, :, None])
        is_empty = counts == 0  # [batch, 1]
        return Capsules(
            classes.pose.masked_fill(is_empty.unsqueeze(-1), 0),
            classes.activation.masked_fill(is_empty, 0),
        )

    def _classes(self, places: Tensor, x: Tensor, mask: Tensor | None) -> Capsules:
        """Class capsules of features with and without their places; `[batch, 1, length, 1]`."""
        pose = self.primary(places).unflatten(-1, (self.types, -1))
        if mask is not None:
            mask = mask.expand(pose.shape[:-1])
        if self.activation == "length":
            return self.class_capsules(squash_with_length(pose), mask=mask)

        pose = full_precision(pose)
        activation = torch.ones_like(pose[..., 0])
        if self.presence is not None:
            activation = full_precision(self.presence(x)).sigmoid()
        classes = self.class_capsules(Capsules(pose, activation), mask=mask)
        if self.score is None:
            return classes
        scores = full_precision(self.score(classes.pose.to(self.score.weight.dtype)))
        return Capsules(classes.pose, scores.squeeze(-1).softmax(dim=-1))


def check_features(x: Tensor, **sizes: int) -> None:
    """Raise ArgumentError unless these are maps, sequences or vectors of features of such sizes."""
    check_floating(features=x)
    if x.dim() not in AXES:
        raise ArgumentError(
            "features",
            "expected [batch, features], [batch, length, features] or "
            f"[batch, features, height, width], got {list(x.shape)}",
        )
    check_shape("features", x, AXES[x.dim()], **sizes)


def pool_positions(features: Tensor, max_positions: int) -> Tensor:
    """Features averaged over neighboring positions, where there are more than `max_positions`.

    Args:
        features: maps, sequences or vectors; see `CapsuleHead`.
        max_positions: at least 1.

    Returns:
        Features with the same axes.
    """
    if features.dim() == 4:
        height, width = features.shape[2:]
        if height * width > max_positions:
            side = isqrt(max_positions)
            return nn.functional.adaptive_avg_pool2d(
                features, (min(height, side), min(width, side))
            )
    if features.dim() == 3 and features.shape[1] > max_positions:
        return nn.functional.adaptive_avg_pool1d(features.mT, max_positions).mT
    return features


def pool_sequences(
    features: Float[Tensor, "batch length features"],
    mask: Bool[Tensor, "batch length"],
    max_positions: int,
) -> tuple[Float[Tensor, "batch positions features"], Int64[Tensor, "batch 1"]]:
    """The present positions of each sequence in their order, pooled as `pool_positions` does.

    Args:
        features: padded to one length.
        mask: True for positions that are present.
        max_positions: at least 1.

    Returns:
        Features, and their number of positions; those after it are zeros.
    """
    steps = torch.arange(min(mask.shape[1], max_positions), device=mask.device)
    lengths = mask.sum(dim=1, keepdim=True)
    counts = lengths.clamp(max=max_positions)
    # Position k is the mean of those from floor(k n / m) on, to below ceil((k + 1) n / m).
    divisor = counts.clamp(min=1)
    first = (steps * lengths // divisor).unsqueeze(-1)
    end = -(-(steps + 1) * lengths // divisor).unsqueeze(-1)
    rank = (mask.cumsum(dim=1) - 1).unsqueeze(1)
    is_member = mask.unsqueeze(1) & (rank >= first) & (rank < end)
    # [batch, positions, length]; positions after the last one begin behind all ranks.
    weights = is_member.to(features) / (end - first).clamp(min=1)
    return weights @ features.masked_fill(~mask.unsqueeze(-1), 0), counts


def as_map(features: Tensor) -> Tensor:
    """Features at their positions, `[batch, rows, columns, features]`.

    Of a sequence they are a map of one row, of a vector one position.
    """
    if features.dim() == 4:
        return features.movedim(1, -1)
    if features.dim() == 3:
        return features.unsqueeze(1)
    return features[:, None, None]


def _with_places(
    x: Float[Tensor, "batch rows columns features"],
    counts: Int64[Tensor, "batch 1"] | None = None,
) -> Float[Tensor, "batch rows columns features_and_2"]:
    """Features with the row and the column of each position, from -1 to 1; 0 in the middle.

    The columns are those of the map, or as many as `counts` says of each sequence.
    """
    batch, rows, columns, _ = x.shape
    row = _centers(rows, x).view(1, rows, 1, 1).expand(batch, rows, columns, 1)
    column = _centers(columns, x, counts).view(-1, 1, columns, 1).expand(batch, rows, columns, 1)
    return torch.cat([x, row, column], dim=-1)


def _centers(size: int, like: Tensor, counts: Tensor | None = None) -> Tensor:
    steps = torch.arange(size, device=like.device, dtype=like.dtype)
    return (2 * steps + 1) / (size if counts is None else counts) - 1


def _make_votes(router: Router, sizes: LayerSizes, max_positions: int) -> nn.Module:
    """Matrices that suit a router; `sizes.children` types share them over positions."""
    if not router.needs_votes:
        return PoseVotes(sizes)
    if router.activation != "length":
        return MatrixVotes(sizes)
    # Matrices are small, so that even equal children at all positions add little to the bias: a
    # class starts at a length of about 0.2, from which it learns, whatever the number of positions.
    # Functions of users take no bias.
    has_bias = router.adds_bias and not isinstance(router, FunctionRouter)
    init_std = CHILD_SUM * sizes.parents / (max_positions * (sizes.children * sizes.dim) ** 0.5)
    return LinearVotes(sizes, bias=has_bias, init_std=init_std)
