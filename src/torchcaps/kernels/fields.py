"""Fields before operators, which take numbers and names: windows on a map with its padding."""

from __future__ import annotations

from torchcaps.functional.fields import Field, Windows


def padded_windows(field: Field) -> Windows | None:
    """The same windows on the map that `field.pad` makes, where no child is absent; None for another field."""
    if not isinstance(field, Windows):
        return None
    return Windows(*field.padded, field.kernel, field.step, convention=field.convention)
