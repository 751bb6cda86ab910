"""What routing is good for: a trained model with its routing taken out, or stopped early.

Paik, Kwak, Kim 2019, arXiv 1907.13327: uniform and random couplings often do as well, and iterating rarely changes the
answer. Gu and Tresp 2020, arXiv 1911.07968, find no gain either. The swap here is at test time only; a network trained
without routing (a recipe with `routing = "uniform"`) is the harder comparison, and both belong beside every figure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller

from torch import Tensor, nn

from torchcaps.evaluation.base import (
    BATCH,
    EvaluationResult,
    Images,
    Labels,
    check_labeled,
    check_labels,
)
from torchcaps.evaluation.comparison.compare import Comparison, compare_answers, points
from torchcaps.evaluation.forward import image_activations, proportion
from torchcaps.evaluation.routing.couplings import coupling_entropy
from torchcaps.evaluation.routing.layers import route_images, routers_of, swapped_routers
from torchcaps.nn import Router

STORED = 8  # images whose votes are in memory at once


@dataclass(frozen=True)
class RoutingAblation(EvaluationResult):
    """Accuracy of one trained model with its own routing and with couplings that look at nothing; all in [0, 1]."""

    comparison: Comparison  # as trained, against the same routers with every coupling equal, at test time only
    random: float  # accuracy with fixed random couplings, at test time only
    changed: float  # share of images whose answer routing changes, against equal couplings

    derived = ("routed", "uniform", "verdict")

    @property
    def routed(self) -> float:
        """Accuracy as trained."""
        return self.comparison.first

    @property
    def uniform(self) -> float:
        """Accuracy with every coupling equal."""
        return self.comparison.second

    @property
    def verdict(self) -> str:
        """One sentence; where nothing is decided, a second one on what would have been seen."""
        found = self.comparison
        figures = (
            f"{self.routed:.1%} with it, {self.uniform:.1%} without; it changes {self.changed:.1%} of the answers; "
            f"{found.evidence}"
        )
        match found.outcome:
            case "first":
                return f"This model needs its routing at test time; one trained without may not ({figures})."
            case "second":
                return f"This model does better without its routing ({figures})."
            case "equivalent":
                return f"This model does as well without its routing, within {points(found.margin)} ({figures})."
            case _:
                return f"These images do not show that this model needs its routing ({figures}). {found.power}"


@dataclass(frozen=True)
class IterationDynamics(EvaluationResult):
    """One trained model stopped after 1, 2, ... routing iterations."""

    iterations: tuple[int, ...]  # 1 to T
    accuracy: tuple[float, ...]  # in [0, 1], after each
    changed: tuple[float, ...]  # share of images whose answer differs from that after one iteration
    entropy: dict[
        str, tuple[float, ...]
    ]  # of each layer whose couplings are shares, after each; `coupling_entropy`

    derived = ("verdict",)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if len(self.iterations) == 1:
            return "There is one pass of routing: no iterations to compare."
        gain = 100 * (self.accuracy[-1] - self.accuracy[0])
        rest = (
            f"Iterations 2 to {self.iterations[-1]} change"
            if self.iterations[-1] > 2
            else "Iteration 2 changes"
        )
        return f"{rest} {self.changed[-1]:.1%} of the answers and accuracy by {gain:+.1f} points."


def routing_ablation(
    model: nn.Module, images: Images, labels: Labels, *, seed: int = 0, batch_size: int = BATCH
) -> RoutingAblation:
    """The model as it is, with equal couplings and with random ones, on the same images; its routers are back
    afterwards.

    Each router keeps its own mathematics and all that it has learned; see `Router.uniform` and `Router.random`. Random
    couplings, by `seed`, are tried on at most 8 images at a time, as all their votes are stored. Raises ValueError for
    a model without routed layers, or arguments that do not fit; AblationUnsupportedError for a router
    that makes its couplings by itself."""
    check_labeled(images, labels)

    def answers(change: Callable[[Router], Router], size: int = batch_size) -> Tensor:
        with swapped_routers(model, change):
            found = image_activations(model, images, batch_size=size)
        check_labels(labels, found.shape[1])
        return found.argmax(dim=1)

    true, routed, uniform = labels.cpu(), answers(lambda router: router), answers(Router.uniform)
    random = answers(lambda router: router.random(seed), min(batch_size, STORED))
    comparison = compare_answers(routed == true, uniform == true, seed=seed)
    return RoutingAblation(comparison, proportion(random == true), proportion(routed != uniform))


def iteration_dynamics(
    model: nn.Module, images: Images, labels: Labels, *, batch_size: int = BATCH
) -> IterationDynamics:
    """Stop the routing of every layer after 1, 2, ... iterations, up to as many as the model has. Routers without
    iterations stay as they are; the couplings of all images are in memory at once. Raises ValueError for a model
    without routed layers, or arguments that do not fit."""
    check_labeled(images, labels)
    routers = routers_of(model)
    most = max(router.num_iterations for router in routers.values())
    answers, entropy = list[Tensor](), dict[str, tuple[float, ...]]()
    for count in range(1, most + 1):
        with swapped_routers(model, methodcaller("with_iterations", count)):
            found, recorded, _ = route_images(model, images, batch_size=batch_size)
        answers.append(found.argmax(dim=1))
        for name, layer in recorded.items():
            if routers[name].normalized:
                entropy[name] = (*entropy.get(name, ()), coupling_entropy(layer).mean)
    return IterationDynamics(
        iterations=tuple(range(1, most + 1)),
        accuracy=tuple(proportion(answer == labels.cpu()) for answer in answers),
        changed=tuple(proportion(answer != answers[0]) for answer in answers),
        entropy=entropy,
    )
