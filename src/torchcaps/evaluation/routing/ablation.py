"""Benefit of routing: a trained model with its routing removed, or stopped early.

Paik, Kwak, Kim 2019, arXiv 1907.13327: uniform and random couplings often do as well, and
iterating rarely changes the answer. Gu and Tresp 2020, arXiv 1911.07968, observe no gain either.
The swap here is at test time only; a network trained without routing (a recipe with
`routing = "uniform"`) is the harder comparison, and both belong beside every figure.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller

from torch import Tensor, nn

from torchcaps.errors import ArgumentError
from torchcaps.evaluation.accuracy.multilabel import mean_of_classes
from torchcaps.evaluation.base import (
    EvaluationResult,
    Images,
    Labels,
    Series,
    check_labeled,
    check_labels,
    image_activations,
    proportion,
)
from torchcaps.evaluation.comparison.compare import Comparison, compare_answers, format_points
from torchcaps.evaluation.routing.couplings import coupling_entropy
from torchcaps.evaluation.routing.layers import (
    ROUTED_BATCH,
    route_images,
    routed_layers,
    swapped_routers,
)
from torchcaps.nn import Router

STORED_BATCH = 8  # images whose votes are in memory at once


@dataclass(frozen=True)
class RoutingAblation(EvaluationResult):
    """Accuracy of one trained model with its own routing and with constant couplings.

    All shares are in [0, 1], and all changes at test time only.

    Attributes:
        comparison: as trained, against the same routers with every coupling equal.
        random: accuracy with fixed random couplings.
        changed: share of images whose answer routing changes, against equal couplings.
        agreement: whether activations still depend on the spread of votes, as those of EM and VB
            routing do with any couplings; see `Router.agreement`.
    """

    comparison: Comparison
    random: float
    changed: float
    agreement: bool = False

    derived = ("routed", "uniform", "p_value", "verdict")

    @property
    def routed(self) -> float:
        """Accuracy as trained."""
        return self.comparison.first

    @property
    def uniform(self) -> float:
        """Accuracy with every coupling equal."""
        return self.comparison.second

    @property
    def p_value(self) -> float:
        """Of the hypothesis that both are equally good, by McNemar's test."""
        return self.comparison.p_value

    @property
    def verdict(self) -> str:
        """One sentence; where nothing is decided, a second one on what would have been seen."""
        verdicts = {
            "first": "This model needs its routing at test time; one trained without may not",
            "second": "This model does better without its routing",
            "equivalent": "This model does as well without its routing, within "
            f"{format_points(self.comparison.margin)}",
            "undecided": "These images do not show that this model needs its routing",
        }
        verdict = (
            f"{verdicts[self.comparison.outcome]} ({self.routed:.1%} with it, {self.uniform:.1%} "
            f"without; it changes {self.changed:.1%} of the answers; "
            f"{self.comparison.evidence_text})."
        )
        if self.comparison.outcome == "undecided":
            verdict += f" {self.comparison.power_text}"
        if self.agreement:
            verdict += " Without it, activations still measure how far votes agree."
        return verdict


@dataclass(frozen=True)
class IterationDynamics(EvaluationResult):
    """One trained model stopped after 1, 2, ... routing iterations.

    Attributes:
        iterations: 1 to T.
        accuracy: accuracy after each iteration, in [0, 1].
        changed: share of images whose answer differs from that after one iteration.
        entropy: layer -> mean entropy of its couplings after each iteration, for layers whose
            couplings are shares; see `coupling_entropy`.
        straightness: layer -> mean straightness of the votes for its parents after each iteration,
            for the same layers; see `functional.straightness`.
        class_straightness: after each iteration, the straightness of the votes for each class, a
            mean over the images of this class (None without one). Empty where the parents of the
            last layer are not the classes.
    """

    iterations: tuple[int, ...]
    accuracy: Series
    changed: Series
    entropy: dict[str, Series]
    straightness: dict[str, Series]
    class_straightness: tuple[tuple[float | None, ...], ...]

    derived = ("verdict",)

    @property
    def true_class_straightness(self) -> Series:
        """Mean of `class_straightness` after each iteration; empty without classes."""
        means = map(mean_of_classes, self.class_straightness)
        return tuple(mean for mean in means if mean is not None)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if len(self.iterations) == 1:
            return "There is one pass of routing: no iterations to compare."
        return (
            f"The iterations after the first change {self.changed[-1]:.1%} of the answers and "
            f"accuracy by {100 * (self.accuracy[-1] - self.accuracy[0]):+.1f} points."
        )


def routing_ablation(
    model: nn.Module,
    images: Images,
    labels: Labels,
    *,
    agreement: bool = True,
    seed: int = 0,
) -> RoutingAblation:
    """Compare a model with itself under equal and under random couplings.

    Each router keeps its own mathematics and all that it has learned; see `Router.uniform` and
    `Router.random`. The routers are back afterwards. Random couplings are tried on at most 8
    images at a time, as all their votes are stored.

    Args:
        model: a model with routed layers.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.
        agreement: False takes the spread of votes out of the activations, too, of routers that have
            it there: those of "em" and "vb" are lower for a parent whose votes disagree, whatever
            the couplings are. What is left is how many children a parent has, which equal couplings
            make equal.
        seed: of the random couplings.

    Returns:
        The accuracies with and without routing, compared on the same images.

    Raises:
        ArgumentError: for a model without routed layers, arguments that do not fit, or
            `agreement=False` where no router has agreement in its activations.
        AblationUnsupportedError: for a router that makes its couplings by itself.
    """
    check_labeled(images, labels)
    has_agreement = any(layer.router.agreement for layer in routed_layers(model).values())
    if not agreement and not has_agreement:
        raise ArgumentError(
            "agreement",
            "expected True: with fixed couplings, no activation of this model depends on how far "
            "votes agree",
        )

    def answer(change: Callable[[Router], Router], size: int = ROUTED_BATCH) -> Tensor:
        with swapped_routers(model, change):
            activations = image_activations(model, images, batch_size=size)
        check_labels(labels, activations.shape[1])
        return activations.argmax(dim=1)

    true = labels.cpu()
    routed = answer(lambda router: router)
    uniform = answer(methodcaller("uniform", agreement=agreement))
    random = answer(methodcaller("random", seed, agreement=agreement), STORED_BATCH)
    return RoutingAblation(
        compare_answers(routed == true, uniform == true, seed=seed),
        proportion(random == true),
        proportion(routed != uniform),
        agreement and has_agreement,
    )


def iteration_dynamics(model: nn.Module, images: Images, labels: Labels) -> IterationDynamics:
    """Stop the routing of every layer after 1, 2, ... iterations, up to as many as the model has.

    Routers without iterations stay as they are. The couplings of all images are in memory at once.

    Args:
        model: a model with routed layers.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.

    Returns:
        Accuracy, changed answers, entropy of couplings and straightness of votes after each
        iteration.

    Raises:
        ArgumentError: for a model without routed layers, or arguments that do not fit.
    """
    check_labeled(images, labels)
    layers = routed_layers(model)
    last = max(layer.router.num_iterations for layer in layers.values())
    labels = labels.cpu()
    answers = []
    entropy: defaultdict[str, Series] = defaultdict(tuple)
    straight: defaultdict[str, Series] = defaultdict(tuple)
    straight_by_class = []
    counts = range(1, last + 1)
    for count in counts:
        with swapped_routers(model, methodcaller("with_iterations", count)):
            routed = route_images(model, images)
        answers.append(routed.activation.argmax(dim=1))
        for name, trace in routed.layers.items():
            straightness = trace.extras["straightness"]
            if layers[name].router.normalized:  # couplings of a child sum to one
                entropy[name] += (coupling_entropy(trace).mean,)
                straight[name] += (float(straightness.mean()),)
        if name in straight and trace.activation.shape == routed.activation.shape:
            of_class = [straightness[labels == k, k] for k in range(straightness.shape[1])]
            straight_by_class.append(
                tuple(float(row.mean()) if len(row) else None for row in of_class)
            )
    return IterationDynamics(
        iterations=tuple(counts),
        accuracy=tuple(proportion(answer == labels) for answer in answers),
        changed=tuple(proportion(answer != answers[0]) for answer in answers),
        entropy=dict(entropy),
        straightness=dict(straight),
        class_straightness=tuple(straight_by_class),
    )
