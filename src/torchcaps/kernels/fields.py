"""Fields before operators, which take numbers and names: windows on a map with its padding."""

from __future__ import annotations

from torch import Tensor

from torchcaps.functional.fields import Field, Transposed, Windows


def padded_windows(field: Field) -> Windows | None:
    """The same windows on the map with its padding, where all of its children are there; None for another field."""
    if isinstance(field, Transposed):
        field = field.windows
    if not isinstance(field, Windows):
        return None
    return Windows(*field.padded, field.kernel, field.stride, convention=field.convention)


def padded_map(field: Windows | Transposed, x: Tensor) -> Tensor:
    """What the places of that map have, zeros where there is no child: `[batch, *space, n, ...]` -> its size."""
    if isinstance(field, Transposed):
        return field.windows.pad(field.spread(x))
    return field.pad(x)
