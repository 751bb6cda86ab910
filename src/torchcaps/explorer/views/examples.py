"""Test images to choose from, by number or by class."""

from __future__ import annotations

from typing import Any

from torchcaps.errors import check_range
from torchcaps.explorer.requests import as_base64
from torchcaps.explorer.session import Session
from torchcaps.explorer.views._base import register_view

MAX_EXAMPLES = 60  # of one answer


@register_view(
    "examples",
    missing=lambda session: "there are none here" if session.examples is None else "",
    describe=lambda session: {"count": len(session.examples or ())},
)
def examples(
    session: Session,
    label: int | None = None,
    index: int | None = None,
    count: int = 20,
    start: int = 0,
) -> dict[str, Any]:
    """One example by its index, or `count` of the class `label` from the one at `start` on."""
    check_range("count", count, low=1, high=MAX_EXAMPLES)
    check_range("start", start, low=0)
    indices = [index]
    if index is None:
        indices = session.examples_of(label)[start : start + count].tolist()
    rows = []
    for position in indices:
        image, labels = session.example(position)
        rows.append({"index": position, "labels": labels, "image": as_base64(image)})
    return {"examples": rows}
