"""Activations, poses and reconstructions of a picture (arXiv 1710.09829, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import check_range
from torchcaps.evaluation.forward import evaluating
from torchcaps.explorer.pictures import Picture
from torchcaps.explorer.requests import Request, as_base64, as_lists
from torchcaps.explorer.views._base import View, register_view
from torchcaps.tasks.masks import overlays


class Inference(NamedTuple):
    """What a model makes of one picture. Classes of a model without capsules count as capsules.

    Attributes:
        activation: empty where the task has neither capsules nor classes.
        pose: None for a model without capsules.
        reconstructions: in [0, 1]; None without a decoder.
        shown: capsules drawn: as asked for, or those with the largest activations, largest first.
    """

    activation: Float[Tensor, " capsules"]
    pose: Float[Tensor, "capsules dim"] | None
    reconstructions: Float[Tensor, "shown channels height width"] | None
    shown: tuple[int, ...]

    def to_dict(self, image: Picture) -> dict[str, Any]:
        """The same, and the picture, ready for JSON."""
        drawings = self.reconstructions
        return {
            "activation": as_lists(self.activation),
            "pose": as_lists(self.pose),
            "drawn": None if drawings is None else list(map(as_base64, drawings)),
            "shown": self.shown,
            "image": as_base64(image),
        }


@register_view("infer")
class Infer(View):
    """What the model makes of a picture, turned and moved first where a request says so."""

    batched = True

    def run(
        self,
        image: Picture,
        classes: Sequence[int] = (),
        *,
        uniform: bool = False,
        count: int = 1,
    ) -> Inference:
        """Activations and poses for a picture of the session's shape, and drawings of capsules.

        Args:
            image: `[channels, height, width]`.
            classes: capsules to decode, each by itself; none are the `count` most active ones.
            uniform: give every class the same share of every child.
            count: of capsules decoded, at most as many as there are.

        Raises:
            ValueError: for values that do not fit.
        """
        return self.run_batch([image], [classes], uniform=uniform, count=count)[0]

    def run_batch(
        self,
        images: Sequence[Picture],
        classes: Sequence[Sequence[int]],
        *,
        uniform: bool = False,
        count: int = 1,
    ) -> list[Inference]:
        """`run` of several pictures, each with its own capsules to decode, in one pass."""
        session = self.session
        for labels in classes:
            check_range("classes", len(labels), high=session.MAX_DECODED)
            session.check_class(*labels)
        if session.spec.is_dense:
            return list(map(self._overlay, images, classes))

        activations, poses = session.encode(images, uniform=uniform)
        inferences = []
        for k, activation in enumerate(activations):
            most_active = activation.topk(min(count, len(activation))).indices.tolist()
            labels = tuple(classes[k] or most_active)
            pose = None if poses is None else poses[k]
            drawings = None
            if pose is not None and session.has_decoder:
                rows = len(labels)
                drawings = session.draw(
                    pose.expand(rows, -1, -1), activation.expand(rows, -1), labels
                )
            inferences.append(Inference(activation, pose, drawings, labels))
        return inferences

    def answer_batch(self, requests: Sequence[Request]) -> list[dict[str, Any]]:
        """The answers to requests, by one pass."""
        images = [request.transformed_image() for request in requests]
        classes = [request.classes() for request in requests]
        inferences = self.run_batch(images, classes, uniform=requests[0].uniform)
        return list(map(Inference.to_dict, inferences, images))

    def _overlay(self, image: Picture, classes: Sequence[int]) -> Inference:
        """Of a model of pixels: the share of each class, and what was found over the picture."""
        session = self.session
        with evaluating(session.model):
            shares, drawings = overlays(session.task, session.batch([image]))
        labels = tuple(classes[:1]) or (1 + int(shares[0, 1:].argmax()),)
        return Inference(shares[0], None, drawings, labels)
