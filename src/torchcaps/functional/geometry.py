"""Votes of matrix poses, coordinate addition, and the receptive fields that it needs.

Source: Hinton, Sabour, Frosst, "Matrix capsules with EM routing", ICLR 2018, section 4. A pose is a
matrix, 4 x 4 in the paper, stored flat and row-major.
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
    """Votes by matrix products: `V_ij = M_i W_ij`, the pose of the child on the left.

    Args:
        pose: row-major matrices `[batch, *space, children, rows * inner]`, computed in the type of
            the weight.
        weight: `[children, parents, inner, outer]`, 4 x 4 in the paper.

    Returns:
        Votes `[batch, *space, children, parents, rows * outer]`; in float32 for weights in float16.

    Raises:
        ArgumentError: shapes that do not fit, or tensors that are not of floating point.
    """
    check_shape("weight", weight, ("children", "parents", "inner", "outer"))
    children, _, inner, _ = weight.shape
    rows = pose.shape[-1] // inner
    axes = ("*batch", "children", "in_dim")
    check_shape("pose", pose, axes, children=children, in_dim=rows * inner)
    matrices = pose.unflatten(-1, (rows, inner))
    return einsum_autocast("...ipr,ijrq->...ijpq", matrices, weight).flatten(-2)


def coordinate_addition(
    votes: Float[Tensor, "*batch height width children parents dim"],
    rows: Float[Tensor, " height"],
    columns: Float[Tensor, " width"],
    indices: tuple[int, int] = (3, 7),
) -> Float[Tensor, "*batch height width children parents dim"]:
    """Add the position of a child to two elements of its votes.

    Votes by matrices that are shared over positions do not depend on the position otherwise.
    Source: section 4 of the paper.

    Args:
        votes: `[batch, height, width, children, parents, dim]`.
        rows: `[height]`, the row coordinate of each position, added to element `indices[0]`.
        columns: `[width]`, the column coordinate, added to element `indices[1]`.
        indices: elements of the flat pose. (3, 7) are the first two of the right-hand column, as in
            the paper; the authors' code has (0, 1).

    Returns:
        Votes of the same shape.

    Raises:
        ArgumentError: shapes that do not fit, or an index out of range.
    """
    height, width, _, _, dim = votes.shape[-5:]
    check_shape("rows", rows, ("height",), height=height)
    check_shape("columns", columns, ("width",), width=width)
    for index in indices:
        check_range("indices", index, low=0, high=dim - 1)
    coordinates = votes.new_zeros(height, width, 1, 1, dim)
    coordinates[..., indices[0]] += rows.to(votes)[:, None, None, None]
    coordinates[..., indices[1]] += columns.to(votes)[None, :, None, None]
    return votes + coordinates


class Slide(NamedTuple):
    """How the window of a layer slides over a map; positions downwards and to the right.

    Attributes:
        kernel: height and width of the window.
        stride: from one window to the next.
        padding: added to the map on each side.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0)


class ReceptiveField(NamedTuple):
    """The pixels that the positions of a map depend on, along one axis.

    Attributes:
        first: center of the field of the first position; the first pixel is 0.
        step: pixels from the field of one position to that of the next.
        size: pixels of a field.
    """

    first: float
    step: int
    size: int


def receptive_field(slides: Sequence[Slide], axis: int = 0) -> ReceptiveField:
    """Receptive field of the last of these layers.

    Args:
        slides: of the layers, from the image on.
        axis: 0 is down, 1 is right.
    """
    first = 0.0
    step = 1
    size = 1
    for slide in slides:
        kernel = slide.kernel[axis]
        # The field of the first position begins `padding` positions before the map.
        first += step * ((kernel - 1) / 2 - slide.padding[axis])
        size += step * (kernel - 1)
        step *= slide.stride[axis]
    return ReceptiveField(first, step, size)


def receptive_centers(size: int, layers: Sequence[tuple[int, int]]) -> list[float]:
    """Centers of the receptive fields of the last of these layers, from the image's center.

    Args:
        size: of the image in pixels, along one axis; the pixel with index `size / 2` is 0, as in
            the authors' code.
        layers: (kernel, stride) of each layer without padding, from the image on.

    Returns:
        The center of each position's field, in pixels.

    Raises:
        ArgumentError: a kernel that is larger than the map it slides over.

    Example:
        >>> receptive_centers(32, [(5, 2), (3, 2), (3, 1)])
        [-8.0, -4.0, 0.0, 4.0]
    """
    num_positions = size
    for kernel, stride in layers:
        check_range("size of the map", num_positions, low=kernel)
        num_positions = (num_positions - kernel) // stride + 1
    field = receptive_field(
        [Slide((kernel, kernel), (stride, stride)) for kernel, stride in layers]
    )
    return [field.first + field.step * k - size / 2 for k in range(num_positions)]
