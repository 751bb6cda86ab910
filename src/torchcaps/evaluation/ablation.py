"""What routing is good for: a trained model with its routing taken out, or stopped early.

Paik, Kwak, Kim 2019, arXiv 1907.13327: uniform and random couplings often do as well, and iterating rarely changes the
answer. Gu and Tresp 2020, arXiv 1911.07968, find no gain either. The swap here is at test time only; a network trained
without routing (a recipe with `routing = "uniform"`) is the harder comparison, and both belong beside every figure.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.errors import check_range
from torchcaps.evaluation.checks import check_labels
from torchcaps.evaluation.compare import LEVEL, mcnemar
from torchcaps.evaluation.couplings import coupling_entropy, coupling_shift
from torchcaps.evaluation.recording import recorded_routing, routers_of, swapped_routers
from torchcaps.evaluation.tensors import BATCH, check_labelled, image_activations, share
from torchcaps.nn import DynamicRouting, EMRouting, Recorded, Router, UniformRouting, create_router


@dataclass(frozen=True)
class RoutingAblation:
    """Accuracy of one trained model with its own routing and with none; accuracies are in [0, 1].

    Attributes:
        routed: as trained.
        uniform: with every coupling equal, at test time only.
        random: with fixed random couplings, at test time only; None where a layer's routing has no such variant (EM).
        changed: share of images whose answer routing changes, against uniform couplings.
        p_value: of McNemar's exact test that the model does equally well without its routing.
        num_samples: n.
    """

    routed: float
    uniform: float
    random: float | None
    changed: float
    p_value: float
    num_samples: int

    @property
    def verdict(self) -> str:
        """One sentence."""
        figures = (
            f"{self.routed:.1%} with it, {self.uniform:.1%} without; it changes {self.changed:.1%} of the answers; "
            f"p = {self.p_value:.2g}"
        )
        if self.p_value >= LEVEL:
            return f"These images do not show that this model needs its routing ({figures})."
        if self.routed < self.uniform:
            return f"This model does better without its routing ({figures})."
        return f"This model needs its routing at test time; one trained without may not ({figures})."

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
        rest = f"Iterations 2 to {self.iterations[-1]} change" if self.iterations[-1] > 2 else "Iteration 2 changes"
        return f"{rest} {self.changed[-1]:.1%} of the answers and accuracy by {gain:+.1f} points."

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
    plain = not any(isinstance(router, EMRouting) for router in routers_of(model))
    random = share(answers(lambda router: random_router(router, seed)) == true) if plain else None
    return RoutingAblation(
        routed=share(routed == true),
        uniform=share(uniform == true),
        random=random,
        changed=share(routed != uniform),
        p_value=mcnemar(
            int(((routed == true) & (uniform != true)).sum()), int(((uniform == true) & (routed != true)).sum())
        ),
        num_samples=len(images),
    )


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
    most = max(map(_iterations, routers_of(model)))
    answers: list[Tensor] = []
    entropy, shift = dict[str, list[float]](), dict[str, list[float]]()
    before: dict[str, Recorded] = {}
    for count in range(1, most + 1):
        with swapped_routers(model, lambda router, count=count: stopped_router(router, count)):  # type: ignore[misc]
            found, recorded, _ = recorded_routing(model, images, batch_size=batch_size)
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


def uniform_router(router: Router) -> Router:
    """A router that gives every parent the same share of every child, with what else `router` has learned."""
    if not isinstance(router, DynamicRouting | EMRouting):
        return UniformRouting(impl=_impl(router))
    copy = deepcopy(router)
    copy.iterations = 1
    if isinstance(copy, EMRouting):
        copy.inverse_temperature = copy.inverse_temperature[-1:]
    return copy


def random_router(router: Router, seed: int = 0) -> Router:
    """A router with fixed random couplings, by the same implementation."""
    return create_router("random", seed=seed, impl=_impl(router))


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


def _impl(router: Router) -> Any:
    return getattr(router, "impl", "auto")


def _iterations(router: Router) -> int:
    return int(getattr(router, "iterations", 1))
