"""Every measure of one model's routing at once: what each gives, and what that means.

The criticism of capsule networks is collected in nine measures, numbered here as in the
documentation: (1) entropy of couplings, (2) dynamics, (3) parse tree, (4) ablation, (5) dead
capsules, (6) starvation, (7) decay of activations, (8) blindness to sign, (9) a baseline of equal
size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from torchcaps.data import Dataset
from torchcaps.errors import AblationUnsupportedError, check_range
from torchcaps.evaluation.base import (
    EvaluationResult,
    Images,
    Json,
    Labels,
    TextTable,
    check_labels,
    proportion,
    right_answers,
)
from torchcaps.evaluation.comparison.compare import Comparison, compare_answers
from torchcaps.evaluation.routing import ablation as ablations, couplings
from torchcaps.evaluation.routing.layers import route_images, routed_layers
from torchcaps.models.notebook import parameter_count

NUM_SIGN_IMAGES = 64  # images for the test of signs
OUTCOMES = {"first": True, "second": False, "equivalent": False, "undecided": None}
SHARPER = 1.1  # ratio of straightness, last iteration to first, that counts as a rise


class Check(NamedTuple):
    """A question about a network, and what these images answer."""

    passed: bool | None  # None: they do not decide
    question: str
    answer: str  # in a few words

    @property
    def mark(self) -> str:
        """A check mark, a cross or a question mark."""
        return "?" if self.passed is None else "✗✓"[self.passed]


@dataclass(frozen=True, kw_only=True)
class LayerDiagnosis:
    """The measures of one routed layer.

    Measures 1 to 3 are None where couplings are no shares, 5 and 8 where activations mean nothing;
    see `Router`.

    Attributes:
        name: of the layer in the model.
        entropy: how evenly children share themselves out (1).
        dynamics: how much couplings follow the image (2).
        tree: whether children choose parents (3).
        parents: whether its parents live (5).
        starvation: of its children (6).
        sign: whether it sees the sign of poses (8).
    """

    name: str
    entropy: couplings.CouplingEntropy | None = None
    dynamics: couplings.CouplingDynamics | None = None
    tree: couplings.ParseTree | None = None
    parents: couplings.CapsuleActivity | None = None
    starvation: couplings.Starvation
    sign: couplings.SignTest | None = None

    def verdicts(self) -> dict[str, str]:
        """Measure -> one sentence, for those that apply to this layer."""
        return {
            name: measure.verdict
            for name, measure in vars(self).items()
            if name != "name" and measure is not None
        }


@dataclass(frozen=True)
class Diagnosis(EvaluationResult):
    """The measures of one model's routing.

    Attributes:
        accuracy: accuracy on the images that were measured, in [0, 1].
        num_samples: number of these images.
        parameters: numbers that training can change.
        layers: one for each routed layer, in the order of the model.
        iterations: what routing iterations change (2).
        ablation: accuracy without routing (4); None where a router has no ablation.
        refused: why there is no ablation, or an empty text.
        children: whether the children of the first routed layer live (5).
        decay: activations from these children to the last parents (7).
        baseline: against a model without routing, on the same images (9); None where none was
            given.
        baseline_parameters: number of parameters of the baseline; None without one.
    """

    accuracy: float
    num_samples: int
    parameters: int
    layers: tuple[LayerDiagnosis, ...]
    iterations: ablations.IterationDynamics
    ablation: ablations.RoutingAblation | None
    refused: str
    children: couplings.CapsuleActivity
    decay: couplings.ActivationDecay
    baseline: Comparison | None
    baseline_parameters: int | None

    @property
    def verdict(self) -> str:
        """One line: whether this model needs its routing."""
        if self.ablation is None:
            return "The routing of this model cannot be switched off, so its value is not known."
        verdicts = {
            "first": "This model needs its routing",
            "second": "This model does better without its routing",
            "equivalent": "Routing changes nothing that matters here",
            "undecided": f"{self.ablation.comparison.num_samples:,} images do not show whether routing helps",
        }
        return f"{verdicts[self.ablation.comparison.outcome]}: {self._with_and_without}."

    @property
    def _with_and_without(self) -> str:
        if self.ablation is None:
            return "no ablation of this routing"
        return f"{self.ablation.routed:.1%} with it, {self.ablation.uniform:.1%} without"

    def checks(self) -> list[Check]:
        """A question for each measure that applies; of several layers, the answer of the worst."""
        outcome = None if self.ablation is None else OUTCOMES[self.ablation.comparison.outcome]
        checks = [Check(outcome, "Does routing raise accuracy?", self._with_and_without)]
        course = self.iterations
        if len(course.iterations) > 1:
            gain = course.accuracy[-1] - course.accuracy[0]
            changed = course.changed[-1]
            # Of the difference of two answers to the same images.
            deviation = (changed / self.num_samples) ** 0.5
            passed = True if gain > 2 * deviation else None if changed else False
            checks.append(
                Check(
                    passed,
                    "Do the later iterations help?",
                    f"{changed:.1%} of answers change, accuracy {100 * gain:+.1f} points",
                )
            )
            checks += self._straightness()
        checks += [
            *self._worst(
                "entropy",
                "Do children choose a parent?",
                lambda entropy: entropy.mean,
                lambda entropy: (
                    True if entropy.mean < 0.3 else None if entropy.mean < 0.98 else False
                ),
                lambda entropy: f"entropy {entropy.mean:.2f} (1: shared out equally)",
            ),
            *self._worst(
                "dynamics",
                "Do couplings follow the image?",
                lambda dynamics: -dynamics.mean,
                lambda dynamics: dynamics.high >= 0.01,
                lambda dynamics: f"they vary by {dynamics.mean:.3f} on average",
            ),
        ]
        return checks + self._capsule_checks()

    def _capsule_checks(self) -> list[Check]:
        """The checks that are not of routing itself."""
        in_use = max(
            (self.children, *(layer.parents for layer in self.layers if layer.parents)),
            key=lambda activity: activity.constant,
        )
        answer = f"{in_use.dead:.0%} never active, {in_use.constant:.0%} constant"
        checks = [Check(in_use.constant <= 0.5, "Are capsules in use?", answer)]
        checks += self._worst(
            "starvation",
            "Does the gradient reach the children?",
            lambda starvation: starvation.starved,
            lambda starvation: starvation.median > 0 and starvation.starved < 0.1,
            lambda starvation: f"{starvation.starved:.0%} starved",
        )
        checks += self._worst(
            "sign",
            "Does a layer see the sign of poses?",
            lambda sign: -sign.largest,
            lambda sign: not sign.blind,
            lambda sign: f"activations differ by {sign.largest:.2g}",
        )
        top = self.decay.strongest[-1]
        checks.append(Check(top >= 0.1, "Does activation reach the top?", f"{top:.2f} at most"))
        rival = Check(None, "Is it better than a plain network?", "no baseline was given")
        if self.baseline is not None:
            answer = f"{self.baseline.first:.1%} against {self.baseline.second:.1%}"
            rival = Check(OUTCOMES[self.baseline.outcome], rival.question, answer)
        return [*checks, rival]

    def _straightness(self) -> list[Check]:
        """Of the last layer: of the votes for the class that is there, where that is known."""
        course = self.iterations
        straight = course.true_class_straightness
        place = "for the true class"
        if not straight and course.straightness:
            straight = list(course.straightness.values())[-1]
            place = "for a parent"
        if not straight:
            return []
        return [
            Check(
                straight[-1] > SHARPER * straight[0],
                "Does routing bring votes to agree?",
                f"straightness {place}: {' → '.join(f'{figure:.2f}' for figure in straight)}",
            )
        ]

    def _worst(
        self,
        name: str,
        question: str,
        badness: Callable[[Any], float],
        passes: Callable[[Any], bool | None],
        words: Callable[[Any], str],
    ) -> list[Check]:
        """The check of one measure for the layer where it is worst; none if no layer has it."""
        layers = [layer for layer in self.layers if getattr(layer, name) is not None]
        if not layers:
            return []
        worst = max(layers, key=lambda layer: badness(getattr(layer, name)))
        measure = getattr(worst, name)
        place = f", {worst.name}" if len(self.layers) > 1 else ""
        return [Check(passes(measure), question, words(measure) + place)]

    def table(self) -> TextTable:
        """A row for each check."""
        return TextTable(
            ("", "question", "answer"),
            [(check.mark, check.question, check.answer) for check in self.checks()],
        )

    def verdicts(self) -> dict[str, str]:
        """What -> one sentence: for the whole model, then layer by layer."""
        baseline = "No baseline was given, so the accuracy stands alone."
        if self.baseline is not None:
            baseline = (
                f"{self.baseline.verdict} The first is this one: {self.parameters:,} parameters "
                f"against {self.baseline_parameters:,}."
            )
        sentences = {
            "ablation": self.refused if self.ablation is None else self.ablation.verdict,
            "iterations": self.iterations.verdict,
            "decay": self.decay.verdict,
            "children": self.children.verdict,
            "baseline": baseline,
        }
        for layer in self.layers:
            for measure, sentence in layer.verdicts().items():
                sentences[f"{layer.name}: {measure}"] = sentence
        return sentences

    def to_dict(self) -> Json:
        return super().to_dict() | {
            "verdict": self.verdict,
            "checks": [check._asdict() for check in self.checks()],
            "verdicts": self.verdicts(),
        }


def diagnose(
    model: nn.Module,
    dataset: Dataset,
    *,
    baseline: nn.Module | None = None,
    count: int = 256,
    seed: int = 0,
) -> Diagnosis:
    """Measure the routing of one model on one data set.

    Args:
        model: a model with routed layers.
        dataset: held out of training; one label an image.
        baseline: a model to compare with on the same images, such as a CNN of equal size trained
            in the same way.
        count: random images to look at, at least 2, or all where there are fewer. Their couplings
            are in memory at once: see `route_images`.
        seed: of the choice of images, of random couplings and of shuffles.

    Returns:
        All measures, each with a verdict of one sentence.

    Raises:
        ArgumentError: for a model without routed layers, such as a CNN, a layer with fewer than two
            parents, or arguments that do not fit.
    """
    check_range("count", count, low=2)
    check_range("number of images", len(dataset.labels), low=2)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(dataset.labels), generator=generator)[:count]
    images = dataset.float_images(order)
    labels = dataset.labels[order.to(dataset.labels.device)].cpu()

    activation, traces = route_images(model, images)
    check_labels(labels, activation.shape[1])
    correct = activation.argmax(dim=1) == labels
    starvation = couplings.starvation(model, images, labels)
    signs = couplings.sign_test(model, images[:NUM_SIGN_IMAGES])
    routed = routed_layers(model)
    first = next(iter(traces.values()))
    course = {"children": couplings.capsule_activity(first.extras["children"])}
    layers = []
    for name, trace in traces.items():
        measures: Json = {"starvation": starvation[name]}
        if routed[name].router.normalized:
            measures["entropy"] = couplings.coupling_entropy(trace)
            measures["dynamics"] = couplings.coupling_dynamics(trace, labels)
            measures["tree"] = couplings.parse_tree(trace, labels, seed=seed)
        if routed[name].router.activation != "none":
            course[name] = measures["parents"] = couplings.capsule_activity(trace.activation)
            measures["sign"] = signs[name]
        layers.append(LayerDiagnosis(name=name, **measures))

    ablation, refused = _ablate(model, images, labels, seed)
    comparison = None
    if baseline is not None:
        comparison = compare_answers(correct, right_answers(baseline, images, labels), seed=seed)
    return Diagnosis(
        accuracy=proportion(correct),
        num_samples=len(images),
        parameters=parameter_count(model),
        layers=tuple(layers),
        iterations=ablations.iteration_dynamics(model, images, labels),
        ablation=ablation,
        refused=refused,
        children=course["children"],
        decay=couplings.ActivationDecay(
            tuple(course),
            tuple(activity.median for activity in course.values()),
            tuple(activity.strongest for activity in course.values()),
        ),
        baseline=comparison,
        baseline_parameters=None if baseline is None else parameter_count(baseline),
    )


def _ablate(
    model: nn.Module, images: Images, labels: Labels, seed: int
) -> tuple[ablations.RoutingAblation | None, str]:
    """Return the ablation of a model, or why there is none."""
    try:
        return ablations.routing_ablation(model, images, labels, seed=seed), ""
    except AblationUnsupportedError as error:
        return None, str(error)
