"""A second picture laid over the first, and the two most active capsules.

See arXiv 1710.09829, section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchcaps.explorer.pictures import Picture, overlay
from torchcaps.explorer.session import Session
from torchcaps.explorer.views._base import register_view
from torchcaps.explorer.views.infer import infer


@register_view(
    "overlap",
    title="Overlap",
    order=3,
    missing=lambda session: "" if session.has_labels else "this model has no classes",
)
def overlap(
    session: Session,
    image: Picture,
    second: Picture,
    classes: Sequence[int] = (),
    right: float = 0.0,
    down: float = 0.0,
    uniform: bool = False,
) -> dict[str, Any]:
    """`infer` for the sum of two pictures, the second one moved, with two capsules drawn."""
    return infer(session, overlay(image, second, right, down), classes, uniform=uniform, count=2)
