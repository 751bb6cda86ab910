"""Routing step by step for one picture: couplings, parents, and a map of the votes for a class."""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller
from typing import Any

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
from torchcaps.explorer.session import Picture, Session
from torchcaps.explorer.views._base import register_view
from torchcaps.functional import DenseField
from torchcaps.functional.geometry import receptive_field
from torchcaps.nn import RoutingTrace

MAX_STEPS = 10  # iterations shown
TINY = 1e-12


def _missing(session: Session) -> str:
    if session.has_routing:
        layer = list(routed_layers(session.model).values())[-1]
        if layer.router.normalized and layer.field is DenseField:
            return ""
    return "the votes for this model's classes cannot be shown step by step"


def _describe(session: Session) -> dict[str, Any]:
    for uniform in (False, True):  # what is compiled is compiled before somebody waits for it
        routing(session, session.blank, 0, uniform)
    return {}


@register_view("routing", title="Routing", order=2, missing=_missing, describe=_describe)
def routing(session: Session, image: Picture, label: int, uniform: bool = False) -> dict[str, Any]:
    """Stop every layer's routing after 1, 2, ... iterations and map the votes for a class.

    Args:
        session: the model.
        image: `[channels, height, width]`.
        label: the class.
        uniform: give every class the same share of every child.

    Returns:
        "layer", the name of the class capsules' layer; "children", how many there are; "steps",
        one for each iteration, see `_step`; and "fields", what the places of the maps see, down
        and right, None where the layers below do not tell it.

    Raises:
        ValueError: for values that do not fit.
    """
    session.check_class(label)
    model = session.model
    pixels = session.batch([image])
    steps = []
    with evaluating(model), session.routed(uniform):
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
                class_votes = votes.dense()[0, :, label].float()
                steps.append(_step(trace, class_votes, weight, label, size))
    fields = None
    if children is not None and children.slides is not None:
        fields = [receptive_field(children.slides, axis)._asdict() for axis in (0, 1)]
    return {"layer": name, "children": votes.count, "steps": steps, "fields": fields}


def _step(
    trace: RoutingTrace,
    votes: Float[Tensor, "children dim"],
    weight: Tensor | float,
    label: int,
    size: Sequence[int],
) -> dict[str, Any]:
    """The class capsules' layer when routing stops after so many iterations.

    Args:
        trace: of the class capsules' layer.
        votes: for the class `label`.
        weight: of each child, where its pose does not carry its activation.
        label: the class.
        size: (rows, columns) of the places of the children.

    Returns:
        "activation" `[classes]` in [0, 1]; "coupling" `[classes]`, mean over the children;
        "spread", standard deviation of the coupling over children and classes, 0 where it is
        uniform; and maps `[rows, columns]` for the class: "share", the coupling, mean over the
        types at a place; "amount", how much of the class comes from each place: length of the votes
        there, each times its coupling (and the activation of its child, where poses do not carry
        it); "agreement", cosine between those votes and the pose of the class, weighted by amount.
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
    return {
        "activation": trace.activation[0].float(),
        "coupling": coupling.mean(dim=0),
        "spread": float(coupling.std(unbiased=False)),
        "share": share.mean(dim=-1),
        "amount": total,
        "agreement": support.sum(dim=-1) / total.clamp_min(TINY),
    }
