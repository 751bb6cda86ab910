"""Routing step by step for one image: couplings, parents, and a map of the votes for a class."""

from operator import methodcaller
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.evaluation.routing.layers import (
    children_of,
    route_images,
    routed_layers,
    routers_of,
    swapped_routers,
)
from torchcaps.evaluation.routing.places import places_of
from torchcaps.functional import DenseField
from torchcaps.functional.geometry import receptive_field
from torchcaps.nn import RoutedLayer, RoutingTrace

MOST_STEPS = 10  # iterations shown
TINY = 1e-12


class Step(NamedTuple):
    """The class capsules' layer when routing stops after so many iterations."""

    activation: Float[Tensor, " classes"]  # in [0, 1]
    coupling: Float[Tensor, " classes"]  # mean over the children of their coupling to each class
    spread: float  # standard deviation over children and classes of the coupling: 0 where all are uniform
    share: Float[
        Tensor, "rows columns"
    ]  # coupling with the class asked for, mean over the types at a place
    # How much of that class comes from each place: length of the votes there, each times its coupling (and the
    # activation of its child, where poses do not carry it).
    amount: Float[Tensor, "rows columns"]
    agreement: Float[
        Tensor, "rows columns"
    ]  # cosine between those votes and the pose of the class, weighted by amount


class ReceptiveField(NamedTuple):
    """Receptive fields of the places of a map, in pixels of the image."""

    first: tuple[float, float]  # center of the first place: down, right
    step: int  # from a place to the next
    size: int  # side of a receptive field


class RoutingSteps(NamedTuple):
    """One image through the routing of the class capsules."""

    layer: str  # name of the class capsules' layer
    children: int  # how many there are
    steps: tuple[Step, ...]  # one for each iteration; one alone for routing without iterations
    sight: ReceptiveField | None  # None where the layers below do not tell it


def routing_steps(
    model: nn.Module, image: Float[Tensor, "1 channels height width"], label: int
) -> RoutingSteps:
    """Stop the routing of every layer after 1, 2, ... iterations, at most `MOST_STEPS`, and map the votes for a class.

    The model is one that `can_step`, the image in [0, 1].
    """
    name, layer = list(routed_layers(model).items())[-1]
    most = max(router.passes for router in routers_of(model).values())
    steps, children, sight = [], 0, None
    for iterations in [
        *range(1, min(most, MOST_STEPS)),
        most,
    ]:  # all, or the first ones and the last
        # Layers below are stopped too, so that the children and their votes are others at each step.
        stopped = methodcaller("stopped", iterations)
        with swapped_routers(model, stopped), places_of(model) as seen, children_of(model) as given:
            found = route_images(model, image)
        votes, own = layer.ask(given[name]), seen.map_of(given[name])
        children = votes.count
        size = (1, children) if own is None else tuple(own.capsules.pose.shape[1:3])
        weight = votes.activation[0].float() if layer.router.activation == "probability" else 1.0
        with torch.inference_mode():
            steps.append(_step(found.layers[name], votes.dense()[0].float(), weight, label, size))
        sight = None
        if own is not None and own.slides is not None:
            down, right = (receptive_field(own.slides, axis) for axis in (0, 1))
            if down.step == right.step and down.size == right.size:
                sight = ReceptiveField((down.first, right.first), down.step, down.size)
    return RoutingSteps(name, children, tuple(steps), sight)


def can_step(model: nn.Module) -> bool:
    """Whether the votes for the class capsules of this model are known."""
    layers = [module for module in model.modules() if isinstance(module, RoutedLayer)]
    return (
        bool(layers) and layers[-1].router.coupling == "shares" and layers[-1].field is DenseField
    )


def _step(
    recorded: RoutingTrace, votes: Tensor, weight: Tensor | float, label: int, size: tuple[int, ...]
) -> Step:
    coupling = recorded.coupling[0].float()  # [children, classes]
    vote, parent = votes[:, label], recorded.pose[0, label].float()  # [children, dim], [dim]
    length = vote.norm(dim=-1)
    amount = coupling[:, label] * length * weight
    cosine = (vote @ parent) / (length * parent.norm()).clamp_min(TINY)
    share, total, agreed = (
        x.reshape(*size, -1) for x in (coupling[:, label], amount, amount * cosine)
    )
    total = total.sum(dim=-1)
    agreement = agreed.sum(dim=-1) / total.clamp_min(TINY)
    spread, activation = float(coupling.std(unbiased=False)), recorded.activation[0].float()
    return Step(activation, coupling.mean(dim=0), spread, share.mean(dim=-1), total, agreement)
