"""Routing step by step for one picture: couplings, parents, and a map of the votes for a class."""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.evaluation.forward import evaluating
from torchcaps.evaluation.routing.coupling_maps import places_of
from torchcaps.evaluation.routing.layers import (
    children_of,
    route_images,
    routed_layers,
    routers_of,
    swapped_routers,
)
from torchcaps.explorer.pictures import Picture
from torchcaps.explorer.requests import Request, as_lists
from torchcaps.explorer.session import Session
from torchcaps.explorer.views._base import View, register_view
from torchcaps.functional import DenseField
from torchcaps.functional.geometry import ReceptiveField, receptive_field
from torchcaps.nn import RoutingTrace

MAX_STEPS = 10  # iterations shown
TINY = 1e-12


class Step(NamedTuple):
    """The class capsules' layer when routing stops after so many iterations.

    Attributes:
        activation: in [0, 1].
        coupling: to each class, mean over the children.
        spread: standard deviation of the coupling over children and classes; 0 where it is uniform.
        share: coupling with the class asked for, mean over the types at a place.
        amount: how much of that class comes from each place: length of the votes there, each times
            its coupling (and the activation of its child, where poses do not carry it).
        agreement: cosine between those votes and the pose of the class, weighted by amount.
    """

    activation: Float[Tensor, " classes"]
    coupling: Float[Tensor, " classes"]
    spread: float
    share: Float[Tensor, "rows columns"]
    amount: Float[Tensor, "rows columns"]
    agreement: Float[Tensor, "rows columns"]


class RoutingSteps(NamedTuple):
    """One picture through the routing of the class capsules.

    Attributes:
        layer: name of the class capsules' layer.
        children: how many there are.
        steps: one for each iteration; one alone for routing without iterations.
        fields: what the places of the maps see, down and right; None where the layers below do
            not tell it.
    """

    layer: str
    children: int
    steps: tuple[Step, ...]
    fields: tuple[ReceptiveField, ReceptiveField] | None


@register_view("routing")
class Routing(View):
    """How the class capsules came about, and which places of the picture voted for one of them."""

    title = "Routing"
    order = 2

    @classmethod
    def missing(cls, session: Session) -> str:
        if session.has_routing:
            layer = list(routed_layers(session.model).values())[-1]
            if layer.router.normalized and layer.field is DenseField:
                return ""
        return "the votes for this model's classes cannot be shown step by step"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        for uniform in (False, True):  # what is compiled is compiled before somebody waits for it
            self.run(session.blank, 0, uniform=uniform)

    def run(self, image: Picture, label: int, *, uniform: bool = False) -> RoutingSteps:
        """Stop every layer's routing after 1, 2, ... iterations and map the votes for a class.

        Args:
            image: `[channels, height, width]`.
            label: the class.
            uniform: give every class the same share of every child.

        Raises:
            ValueError: for values that do not fit.
        """
        self.session.check_class(label)
        model = self.session.model
        pixels = self.session.batch([image])
        steps = []
        with evaluating(model), self.session.routed(uniform):
            name, layer = list(routed_layers(model).items())[-1]
            last = max(router.num_iterations for router in routers_of(model).values())
            for iterations in [*range(1, min(last, MAX_STEPS)), last]:
                # Layers below are stopped too: the children and their votes are others at each step.
                stopped = methodcaller("with_iterations", iterations)
                with (
                    swapped_routers(model, stopped),
                    places_of(model) as places,
                    children_of(model) as inputs,
                ):
                    trace = route_images(model, pixels).layers[name]
                votes = layer.make_votes(inputs[name])
                children = places.map_of(inputs[name])
                size = (1, votes.count) if children is None else children.capsules.pose.shape[1:3]
                has_weights = layer.router.activation == "probability"
                weight = votes.activation[0].float() if has_weights else 1.0
                with torch.inference_mode():
                    steps.append(
                        _step(trace, votes.dense()[0, :, label].float(), weight, label, size)
                    )
        fields = None
        if children is not None and children.slides is not None:
            fields = receptive_field(children.slides, 0), receptive_field(children.slides, 1)
        return RoutingSteps(name, votes.count, tuple(steps), fields)

    def answer(self, request: Request) -> dict[str, Any]:
        routing = self.run(request.image(), request.integer("label"), uniform=request.uniform)
        steps = []
        for step in routing.steps:
            numbers = step._asdict()
            tensors = {name: as_lists(numbers[name]) for name in numbers if name != "spread"}
            steps.append(numbers | tensors)
        fields = routing.fields and [field._asdict() for field in routing.fields]
        return routing._asdict() | {"steps": steps, "fields": fields}


def _step(
    trace: RoutingTrace,
    votes: Float[Tensor, "children dim"],
    weight: Tensor | float,
    label: int,
    size: Sequence[int],
) -> Step:
    """One step of the routing.

    Args:
        trace: of the class capsules' layer.
        votes: for the class `label`.
        weight: of each child, where its pose does not carry its activation.
        label: the class.
        size: (rows, columns) of the places of the children.
    """
    coupling = trace.coupling[0].float()  # [children, classes]
    parent = trace.pose[0, label].float()
    length = votes.norm(dim=-1)
    amount = coupling[:, label] * length * weight
    cosine = (votes @ parent) / (length * parent.norm()).clamp_min(TINY)

    # [rows, columns, types]
    share, amount, support = (
        by_child.unflatten(0, (*size, -1))
        for by_child in (coupling[:, label], amount, amount * cosine)
    )
    total = amount.sum(dim=-1)
    return Step(
        activation=trace.activation[0].float(),
        coupling=coupling.mean(dim=0),
        spread=float(coupling.std(unbiased=False)),
        share=share.mean(dim=-1),
        amount=total,
        agreement=support.sum(dim=-1) / total.clamp_min(TINY),
    )
