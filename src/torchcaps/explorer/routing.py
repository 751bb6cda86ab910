"""Routing step by step for one image: couplings, parents, and a map of who voted for a class."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.evaluation.ablation import stopped_router
from torchcaps.evaluation.recording import recorded_routing, routed_layers, routers_of, swapped_routers
from torchcaps.functional import linear_votes, matrix_votes
from torchcaps.nn import CapsuleLinear, ClassCaps, ConvCaps, Recorded, RoutedLayer
from torchcaps.types import Capsules

MOST_STEPS = 10  # iterations shown
TINY = 1e-12


class Step(NamedTuple):
    """The class capsules' layer when routing stops after so many iterations.

    Attributes:
        activation: of the classes, `[classes]` in [0, 1].
        coupling: mean over the children of their coupling to each class, `[classes]`.
        spread: standard deviation over children and classes of the coupling: 0 where all are uniform.
        share: coupling of each child with the class asked for, mean over the types at a place, `[rows, columns]`.
        amount: how much of that class comes from each place, `[rows, columns]`: length of the votes there, each times
            its coupling (and the activation of its child, where poses do not carry it).
        agreement: cosine between those votes and the pose of the class, weighted by amount, `[rows, columns]`.
    """

    activation: Float[Tensor, " classes"]
    coupling: Float[Tensor, " classes"]
    spread: float
    share: Float[Tensor, "rows columns"]
    amount: Float[Tensor, "rows columns"]
    agreement: Float[Tensor, "rows columns"]


class Field(NamedTuple):
    """Where the places of a map look: receptive fields in pixels of the image.

    Attributes:
        first: (down, right) centre of the first place.
        step: pixels from a place to the next.
        size: side of a receptive field.
    """

    first: tuple[float, float]
    step: int
    size: int


class RoutingSteps(NamedTuple):
    """One image through the routing of the class capsules.

    Attributes:
        layer: name of the class capsules' layer.
        children: how many there are.
        steps: one for each iteration; one alone for routing without iterations.
        field: where the places of the maps look; None where it cannot be told from the layers below.
    """

    layer: str
    children: int
    steps: tuple[Step, ...]
    field: Field | None


def routing_steps(model: nn.Module, image: Float[Tensor, "1 channels height width"], label: int) -> RoutingSteps:
    """Stop the routing of every layer after 1, 2, ... iterations, at most `MOST_STEPS`.

    Args:
        model: a capsule network in evaluation mode; its last routed layer makes the class capsules.
        image: one image in [0, 1].
        label: the class whose voters are mapped.

    Raises:
        ValueError: for a model without routed layers, or whose class capsules are of no kind known here.
    """
    name, layer = list(routed_layers(model).items())[-1]
    count = max(int(getattr(router, "iterations", 1)) for router in routers_of(model))
    steps, children, field = [], 0, None
    for iterations in _counts(count):
        # Layers below are stopped too, so that the children and their votes are others at each step.
        stopped = partial(stopped_router, iterations=iterations)
        with swapped_routers(model, stopped), _watched(model, layer) as seen:
            found = recorded_routing(model, image)
        pose, activation, size = _children(seen)
        votes = _votes(layer, pose)  # [children, classes, dim]
        weight = None if isinstance(layer, CapsuleLinear) else activation
        steps.append(_step(found.layers[name], votes, weight, label, size))
        children, field = len(pose), _field(seen, image, size)
    return RoutingSteps(name, children, tuple(steps), field)


def can_step(model: nn.Module) -> bool:
    """Whether the votes for the class capsules of this model can be told."""
    layers = [module for module in model.modules() if isinstance(module, RoutedLayer)]
    return bool(layers) and isinstance(layers[-1], CapsuleLinear | ClassCaps)


def _counts(iterations: int) -> list[int]:
    """Which numbers of iterations to show: all, or the first ones and the last."""
    return list(range(1, iterations + 1)) if iterations <= MOST_STEPS else [*range(1, MOST_STEPS), iterations]


def _step(
    recorded: Recorded, votes: Tensor, child_activation: Tensor | None, label: int, size: tuple[int, int]
) -> Step:
    coupling = recorded.coupling[0].float()  # [children, classes]
    vote, parent = votes[:, label], recorded.pose[0, label].float()  # [children, dim], [dim]
    length = vote.norm(dim=-1)
    amount = coupling[:, label] * length
    if child_activation is not None:
        amount = amount * child_activation
    cosine = (vote @ parent) / (length * parent.norm()).clamp_min(TINY)

    def placed(values: Tensor) -> Tensor:
        return values.reshape(*size, -1).sum(dim=-1)

    whole = placed(amount)
    return Step(
        recorded.activation[0].float(),
        coupling.mean(dim=0),
        float(coupling.std(unbiased=False)),
        coupling[:, label].reshape(*size, -1).mean(dim=-1),
        whole,
        placed(amount * cosine) / whole.clamp_min(TINY),
    )


class _Seen(NamedTuple):
    maps: list[Tensor]  # poses [height, width, types, dim], in the order in which they came about
    windows: list[tuple[int, int]]  # (kernel, stride) of every layer below them that slides over a map
    given: list[Capsules]  # what went into the class capsules


@contextmanager
def _watched(model: nn.Module, last: RoutedLayer) -> Iterator[_Seen]:
    """Keep maps of capsules, and the windows that made them, while the model runs."""
    seen = _Seen([], [], [])

    def leave(module: nn.Module, _: Any, output: Any) -> None:
        kernel = getattr(module, "kernel_size", None)
        if module is not last and isinstance(module, nn.Conv2d | ConvCaps):
            stride: Any = module.stride
            seen.windows.append((_one(kernel), _one(stride)) if _plain(module) else (0, 0))
        if isinstance(output, Capsules) and output.pose.dim() == 5:
            seen.maps.append(output.pose[0])

    def enter(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        children = inputs[0]
        seen.given.append(children if isinstance(children, Capsules) else Capsules(children, children.norm(dim=-1)))

    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(module.register_forward_hook(leave).remove)
        stack.callback(last.register_forward_pre_hook(enter).remove)
        yield seen


def _children(seen: _Seen) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Poses `[children, dim]` and activations of the class capsules' children, and (rows, columns) of their map."""
    pose, activation = seen.given[-1].pose[0], seen.given[-1].activation[0]
    if pose.dim() == 4:
        size = pose.shape[:2]
    else:
        fitting = [m.shape[:2] for m in seen.maps if m.shape[:3].numel() == len(pose)]
        size = fitting[-1] if fitting else torch.Size((1, len(pose)))
    return pose.flatten(0, -2).float(), activation.flatten().float(), (size[0], size[1])


def _votes(layer: RoutedLayer, pose: Float[Tensor, "children dim"]) -> Float[Tensor, "children classes dim"]:
    if isinstance(layer, CapsuleLinear):
        return linear_votes(pose.unsqueeze(0), layer.weight)[0]
    if isinstance(layer, ClassCaps):
        positions = len(pose) // layer.in_types
        votes = matrix_votes(pose.unsqueeze(0), layer.weight.repeat(positions, 1, 1, 1))[0]
        places = layer._places(positions)
        return votes if places is None else votes + places
    raise ValueError(f"model: expected CapsuleLinear or ClassCaps as its last routed layer, got {type(layer).__name__}")


def _field(seen: _Seen, image: Tensor, size: tuple[int, int]) -> Field | None:
    """Receptive fields, from kernels and strides, if they explain the size of the map."""
    sides, reach, step = list(image.shape[2:]), 1, 1
    for kernel, stride in seen.windows:
        if kernel < 1 or stride < 1:
            return None
        reach += step * (kernel - 1)
        step *= stride
        sides = [(side - kernel) // stride + 1 for side in sides]
    if tuple(sides) != size:
        return None
    return Field(((reach - 1) / 2, (reach - 1) / 2), step, reach)


def _one(value: Any) -> int:
    if isinstance(value, int):
        return value
    return int(value[0]) if value[0] == value[1] else 0


def _plain(module: nn.Module) -> bool:
    padding, dilation = getattr(module, "padding", 0), getattr(module, "dilation", 1)
    return padding in (0, (0, 0), "valid") and dilation in (1, (1, 1))
