"""Test images to choose from, by number or by class."""

from __future__ import annotations

from typing import Any

from torchcaps.explorer.requests import Request, as_base64
from torchcaps.explorer.session import Session
from torchcaps.explorer.views._base import View, register_view

MAX_EXAMPLES = 60  # of one answer


@register_view("examples")
class Examples(View):
    """One example by its index, or `count` of a class from the one at `start` on."""

    @classmethod
    def missing(cls, session: Session) -> str:
        return "there are none here" if session.examples is None else ""

    def describe(self) -> dict[str, Any]:
        examples = self.session.examples
        assert examples is not None
        return super().describe() | {"count": len(examples)}

    def answer(self, request: Request) -> dict[str, Any]:
        if "index" in request.values:
            indices = [request.integer("index")]
        else:
            count = request.integer("count", 1, MAX_EXAMPLES, 20)
            start = request.integer("start", default=0)
            of_class = self.session.examples_of(request.integer("label"))
            indices = of_class[start : start + count].tolist()
        examples = []
        for index in indices:
            image, labels = self.session.example(index)
            example = {"index": index, "labels": labels, "image": as_base64(image)}
            examples.append(example)
        return {"examples": examples}
