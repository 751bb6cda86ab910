"""Matrix votes within windows, then EM routing, as one function: the oracle for kernels that never store the votes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from jaxtyping import Float
from torch import Tensor

from torchcaps.functional.geometry import matrix_votes
from torchcaps.functional.routing.em import em_routing
from torchcaps.functional.squash import full_precision
from torchcaps.functional.windows import Convention, Windows
from torchcaps.types import Routed


def routed_em(
    pose: Float[Tensor, "batch height width n in_dim"],
    activation: Float[Tensor, "batch height width n"],
    weight: Float[Tensor, "i parents inner outer"],
    beta_u: Float[Tensor, " parents"],
    beta_a: Float[Tensor, " parents"],
    shift: Float[Tensor, "i parents dim"] | None = None,
    *,
    windows: Windows,
    iterations: int = 3,
    inverse_temperature: float | Sequence[float] = 0.01,
    convention: Convention = "all",
) -> Routed:
    """Route the capsules of each window to the parents at its place; matrices are shared over windows.

    Args:
        pose: `[batch, height, width, n, rows * inner]`.
        activation: `[batch, height, width, n]` in [0, 1].
        weight: `[K * K * n, parents, inner, outer]`; the first axis is (row, column, type) within a window.
        beta_u: `[parents]`; see `em_routing`.
        beta_a: `[parents]`.
        shift: added to the votes of every window, `[K * K * n or 1, parents or 1, rows * outer]`: a bias, coordinates.
        windows: how they lie on the map.
        iterations: at least 1.
        inverse_temperature: see `em_routing`.
        convention: which parents compete for a child; see `Windows.share`.

    Returns:
        Routed: pose `[batch, rows, columns, parents, dim]`, activation and coupling likewise.
    """
    votes = full_precision(matrix_votes(windows.unfold(pose), weight))
    if shift is not None:
        votes = votes + full_precision(shift)
    return em_routing(
        votes, windows.unfold(full_precision(activation)), beta_u, beta_a, iterations, inverse_temperature,
        normalise=partial(windows.share, convention=convention),
        start=windows.first_coupling(convention, votes[..., 0]),
    )  # fmt: skip
