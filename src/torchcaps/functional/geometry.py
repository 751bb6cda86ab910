"""Matrix poses: votes by matrix products, and coordinate addition (Hinton, Sabour, Frosst, ICLR 2018, section 4).

A pose is a matrix, 4 x 4 in the paper, stored flat and row-major.
"""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import check_range, check_shape
from torchcaps.functional.bounds import einsum_autocast


def matrix_votes(
    pose: Float[Tensor, "*batch children in_dim"],
    weight: Float[Tensor, "children parents inner outer"],
) -> Float[Tensor, "*batch children parents dim"]:
    """`V_ij = M_i W_ij`: the child's pose on the left, its transformation to a parent on the right.

    Poses, row-major matrices, are `[batch, *space, children, rows * inner]`, taken in the type of the weight
    `[children, parents, inner, outer]`, 4 x 4 in the paper. Votes are `[batch, *space, children, parents, rows *
    outer]`, float32 for weights in float16. ValueError for shapes that do not fit, or other than floating point.
    """
    check_shape("weight", weight, ("children", "parents", "inner", "outer"))
    children, _, inner, _ = weight.shape
    rows = pose.shape[-1] // inner
    check_shape(
        "pose", pose, ("*batch", "children", "in_dim"), children=children, in_dim=rows * inner
    )
    return einsum_autocast(
        "...ipr,ijrq->...ijpq", pose.unflatten(-1, (rows, inner)), weight
    ).flatten(-2)


def coordinate_addition(
    votes: Float[Tensor, "*batch height width children parents dim"],
    rows: Float[Tensor, " height"],
    columns: Float[Tensor, " width"],
    indices: tuple[int, int] = (3, 7),
) -> Float[Tensor, "*batch height width children parents dim"]:
    """Add a child's place to two elements of its votes: matrices that are shared over positions do not tell it.

    Source: Hinton, Sabour, Frosst, ICLR 2018, section 4. ValueError for shapes that do not fit, or other indices.

    Args:
        votes: `[batch, height, width, children, parents, dim]`.
        rows: `[height]`, the row coordinate of each position, added to element `indices[0]`.
        columns: `[width]`, the column coordinate, added to element `indices[1]`.
        indices: elements of the flat pose. (3, 7) are the first two of the right-hand column, as in the paper; the
            authors' code takes (0, 1).
    """
    height, width, dim = votes.shape[-5], votes.shape[-4], votes.shape[-1]
    check_shape("rows", rows, ("height",), height=height)
    check_shape("columns", columns, ("width",), width=width)
    for index in indices:
        check_range("indices", index, low=0, high=dim - 1)
    place = votes.new_zeros(height, width, 1, 1, dim)
    place[..., indices[0]] += rows.to(votes)[:, None, None, None]
    place[..., indices[1]] += columns.to(votes)[None, :, None, None]
    return votes + place


class Slide(NamedTuple):
    """How a layer slides over a map, down and right; all in positions."""

    kernel: tuple[int, int]  # sides of its window
    stride: tuple[int, int] = (1, 1)  # from one window to the next
    padding: tuple[int, int] = (0, 0)  # added on each side


class ReceptiveField(NamedTuple):
    """What the positions of a map see along one axis, in pixels."""

    first: float  # the center of the first position's field; the first pixel is 0
    step: int  # from one position to the next
    size: int  # of a field


def receptive_field(slides: Sequence[Slide], axis: int = 0) -> ReceptiveField:
    """Of the last of these layers, from the image on, along one axis: 0 is down, 1 is right."""
    first, step, size = 0.0, 1, 1
    for slide in slides:
        kernel, stride, padding = (side[axis] for side in slide)
        first += step * ((kernel - 1) / 2 - padding)
        size += step * (kernel - 1)
        step *= stride
    return ReceptiveField(first, step, size)


def receptive_centers(size: int, layers: Sequence[tuple[int, int]]) -> list[float]:
    """Where the receptive fields of the last of these layers have their centers, in pixels from the image's center.

    Args:
        size: of the image in pixels, along one axis; the pixel with index `size / 2` is 0, as in the authors' code.
        layers: (kernel, stride) of each layer without padding, from the image on; ValueError for a kernel larger than
            the map it slides over.

    Example:
        >>> receptive_centers(32, [(5, 2), (3, 2), (3, 1)])
        [-8.0, -4.0, 0.0, 4.0]
    """
    positions = size
    for kernel, stride in layers:
        check_range("size of the map", positions, low=kernel)
        positions = (positions - kernel) // stride + 1
    seen = receptive_field([Slide((kernel, kernel), (stride, stride)) for kernel, stride in layers])
    return [seen.first + seen.step * k - size / 2 for k in range(positions)]
