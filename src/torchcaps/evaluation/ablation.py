"""What routing is good for: a trained model with its routing taken out, or stopped early.

Paik, Kwak, Kim 2019, arXiv 1907.13327: uniform and random couplings often do as well, and iterating rarely changes the
answer. Gu and Tresp 2020, arXiv 1911.07968, find no gain either. The swap here is at test time only; a network trained
without routing (a recipe with `routing = "uniform"`) is the harder comparison, and both belong beside every figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.errors import check_range
from torchcaps.evaluation.checks import check_labels
from torchcaps.evaluation.couplings import coupling_entropy, coupling_shift
from torchcaps.evaluation.forward import device_of, evaluating
from torchcaps.evaluation.tensors import BATCH, check_labelled, image_activations, share
from torchcaps.nn import EMRouting, Recorded, RoutedLayer, Router, UniformRouting, create_router, record_routing


@dataclass(frozen=True)
class RoutingAblation:
    """Accuracy of one trained model with its own routing and with none; accuracies are in [0, 1].

    Attributes:
        routed: as trained.
        uniform: with every coupling equal, at test time only.
        random: with fixed random couplings, at test time only; None where a layer's routing has no such variant (EM).
        changed: share of images whose answer routing changes, against uniform couplings.
        num_samples: n.
    """

    routed: float
    uniform: float
    random: float | None
    changed: float
    num_samples: int

    @property
    def verdict(self) -> str:
        """One sentence."""
        gain = 100 * (self.routed - self.uniform)
        figures = f"{self.routed:.1%} with it, {self.uniform:.1%} without; it changes {self.changed:.1%} of the answers"
        if gain < -0.5:
            return f"This model does better without its routing ({figures})."
        if gain <= 0.5:
            return f"This model hardly needs its routing ({figures})."
        return f"This model needs its routing at test time ({figures}); one trained without may not."

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self) | {"verdict": self.verdict}


@dataclass(frozen=True)
class IterationDynamics:
    """One trained model stopped after 1, 2, ... routing iterations.

    Attributes:
        iterations: 1 to T.
        accuracy: in [0, 1], after each.
        changed: share of images whose answer differs from that after one iteration.
        entropy: layer name -> normalised coupling entropy after each; see `coupling_entropy`.
        shift: layer name -> share of each child that moved since the iteration before; 0 for the first.
    """

    iterations: tuple[int, ...]
    accuracy: tuple[float, ...]
    changed: tuple[float, ...]
    entropy: dict[str, tuple[float, ...]]
    shift: dict[str, tuple[float, ...]]

    @property
    def verdict(self) -> str:
        """One sentence."""
        if len(self.iterations) == 1:
            return "There is one pass of routing: no iterations to compare."
        gain = 100 * (self.accuracy[-1] - self.accuracy[0])
        return (
            f"Iterations 2 to {self.iterations[-1]} change {self.changed[-1]:.1%} of the answers and accuracy by "
            f"{gain:+.1f} points."
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self) | {"verdict": self.verdict}


def routing_ablation(
    model: nn.Module,
    images: Float[Tensor, "n channels height width"],
    labels: Int64[Tensor, " n"],
    *,
    seed: int = 0,
    batch_size: int = BATCH,
) -> RoutingAblation:
    """The model as it is, with uniform couplings and with random ones, on the same images.

    An EM router is stopped after the one iteration that starts from uniform couplings, at its last temperature.

    Args:
        model: holds routed layers; its routers are back in place afterwards, and so is its mode.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` class indices.
        seed: of the random couplings.
        batch_size: images at a time.

    Raises:
        ValueError: for a model without routed layers, or arguments that do not fit.
    """
    check_labelled(images, labels)

    def answers(change: Callable[[Router], Router]) -> Tensor:
        with swapped_routers(model, change):
            found = image_activations(model, images, batch_size=batch_size)
        check_labels(labels, found.shape[1])
        return found.argmax(dim=1)

    true, routed, uniform = labels.cpu(), answers(lambda router: router), answers(uniform_router)
    plain = not any(isinstance(layer.router, EMRouting) for layer in _layers(model))
    random = share(answers(lambda _: create_router("random", seed=seed)) == true) if plain else None
    return RoutingAblation(share(routed == true), share(uniform == true), random, share(routed != uniform), len(images))


def iteration_dynamics(
    model: nn.Module,
    images: Float[Tensor, "n channels height width"],
    labels: Int64[Tensor, " n"],
    *,
    batch_size: int = BATCH,
) -> IterationDynamics:
    """Stop the routing of every layer after 1, 2, ... iterations, up to as many as the model has.

    Args:
        model: holds routed layers; its routers are back in place afterwards. Routers without iterations stay as they
            are.
        images: `[n, channels, height, width]` in [0, 1]; the couplings of all are in memory at once, twice.
        labels: `[n]` class indices.
        batch_size: images at a time.

    Raises:
        ValueError: for a model without routed layers, or arguments that do not fit.
    """
    check_labelled(images, labels)
    most = max(_iterations(layer.router) for layer in _layers(model))
    answers: list[Tensor] = []
    entropy, shift = dict[str, list[float]](), dict[str, list[float]]()
    before: dict[str, Recorded] = {}
    for count in range(1, most + 1):
        with swapped_routers(model, lambda router, count=count: stopped_router(router, count)):  # type: ignore[misc]
            found, recorded = recorded_routing(model, images, batch_size=batch_size)
        answers.append(found.argmax(dim=1))
        for name, layer in recorded.items():
            entropy.setdefault(name, []).append(coupling_entropy(layer).mean)
            shift.setdefault(name, []).append(coupling_shift(before[name], layer) if name in before else 0.0)
        before = recorded
    return IterationDynamics(
        iterations=tuple(range(1, most + 1)),
        accuracy=tuple(share(answer == labels.cpu()) for answer in answers),
        changed=tuple(share(answer != answers[0]) for answer in answers),
        entropy={name: tuple(values) for name, values in entropy.items()},
        shift={name: tuple(values) for name, values in shift.items()},
    )


def recorded_routing(
    model: nn.Module, images: Float[Tensor, "n channels height width"], *, batch_size: int = BATCH
) -> tuple[Float[Tensor, "n classes"], dict[str, Recorded]]:
    """Activations, and what every routed layer did, over all images; on the CPU.

    Couplings take images x children x parents numbers of four bytes a layer: 46 MB for a thousand images in the network
    of 2017, 1.3 GB for as many in that of 2018. A layer that ran more than once counts by its last run.

    Raises:
        ValueError: for a model without routed layers, or images that do not fit.
    """
    check_range("batch_size", batch_size, low=1)
    place, found, parts = device_of(model), list[Tensor](), list[dict[str, Recorded]]()
    with evaluating(model):
        for batch in images.split(batch_size):
            with record_routing(model) as record:
                found.append(model(batch.to(place)).float().cpu())
            parts.append({name: Recorded(*(t.cpu() for t in layer)) for name, layer in record.last().items()})
    joined = {name: Recorded(*map(torch.cat, zip(*(part[name] for part in parts), strict=True))) for name in parts[0]}
    return torch.cat(found), joined


def uniform_router(router: Router) -> Router:
    """A router that gives every parent the same share of every child, with what else `router` has learned."""
    if not isinstance(router, EMRouting):
        return UniformRouting()
    copy = deepcopy(router)
    copy.iterations, copy.inverse_temperature = 1, router.inverse_temperature[-1:]
    return copy


def stopped_router(router: Router, iterations: int) -> Router:
    """A copy of `router` that stops after so many iterations, or after its own number where that is less.

    Raises:
        ValueError: for fewer than one iteration.
    """
    check_range("iterations", iterations, low=1)
    count = min(iterations, _iterations(router))
    if count == _iterations(router):
        return router
    copy: Any = deepcopy(router)
    copy.iterations = count
    if isinstance(router, EMRouting):
        copy.inverse_temperature = router.inverse_temperature[:count]
        # The learned cost is kept as a multiple of the last temperature, which is another one now.
        ratio = copy.inverse_temperature[-1] / router.inverse_temperature[-1]
        copy.beta_a.data.mul_(ratio)
    return copy


@contextmanager
def swapped_routers(model: nn.Module, change: Callable[[Router], Router]) -> Iterator[None]:
    """Put `change(router)` in the place of every routed layer's router while the block runs.

    Raises:
        ValueError: if the model has no routed layer with a router.
    """
    layers = _layers(model)
    before = [layer.router for layer in layers]
    try:
        for layer, router in zip(layers, before, strict=True):
            layer.router = change(router)
        yield
    finally:
        for layer, router in zip(layers, before, strict=True):
            layer.router = router


def _layers(model: nn.Module) -> list[Any]:
    routed = [module for module in model.modules() if isinstance(module, RoutedLayer)]
    layers = [layer for layer in routed if isinstance(getattr(layer, "router", None), Router)]
    if not layers:
        raise ValueError(f"model: expected routed layers with a router, got {type(model).__name__} without one")
    return layers


def _iterations(router: Router) -> int:
    return int(getattr(router, "iterations", 1))
