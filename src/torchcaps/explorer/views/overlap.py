"""A second picture laid over the first, and the two most active capsules.

See arXiv 1710.09829, section 6.
"""

from __future__ import annotations

from typing import Any

from torchcaps.explorer.pictures import overlay
from torchcaps.explorer.requests import Request
from torchcaps.explorer.session import Session
from torchcaps.explorer.views._base import View, register_view
from torchcaps.explorer.views.infer import Infer


@register_view("overlap")
class Overlap(View):
    """The inference for the sum of two pictures, and that sum."""

    title = "Overlap"
    order = 3

    @classmethod
    def missing(cls, session: Session) -> str:
        return "" if session.has_labels else "this model has no classes"

    def answer(self, request: Request) -> dict[str, Any]:
        limit = max(self.session.shape[1:])
        right = float(request.numbers("right", 0, limit, 0.0))
        down = float(request.numbers("down", 0, limit, 0.0))
        image = overlay(request.image(), request.image("second"), right, down)
        infer = Infer(self.session)
        inference = infer.run(image, request.classes(), uniform=request.uniform, count=2)
        return inference.to_dict(image)
