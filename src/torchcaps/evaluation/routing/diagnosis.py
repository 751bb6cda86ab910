"""Every measure of one model's routing at once: what each gives, and what that means.

The criticism of capsule networks is collected in nine measures, numbered here as in the
documentation: (1) entropy of couplings, (2) dynamics, (3) parse tree, (4) ablation, (5) dead
capsules, (6) starvation, (7) decay of activations, (8) blindness to sign, (9) a baseline of equal
size.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchcaps.data import Dataset
from torchcaps.errors import AblationUnsupportedError, check_range
from torchcaps.evaluation.base import EvaluationResult, Images, Labels, check_labels
from torchcaps.evaluation.comparison.compare import Comparison, compare_answers
from torchcaps.evaluation.forward import proportion, right_answers
from torchcaps.evaluation.routing import ablation as ablations, couplings
from torchcaps.evaluation.routing.layers import route_images, routers_of
from torchcaps.models.notebook import parameter_count

NUM_SIGN_IMAGES = 64  # images for the test of signs


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

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"verdicts": self.verdicts()}


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
    routers = routers_of(model)
    first = next(iter(traces.values()))
    course = {"children": couplings.capsule_activity(first.extras["children"])}
    layers = []
    for name, trace in traces.items():
        measures: dict[str, Any] = {"starvation": starvation[name]}
        if routers[name].normalized:
            measures["entropy"] = couplings.coupling_entropy(trace)
            measures["dynamics"] = couplings.coupling_dynamics(trace, labels)
            measures["tree"] = couplings.parse_tree(trace, labels, seed=seed)
        if routers[name].activation != "none":
            course[name] = measures["parents"] = couplings.capsule_activity(trace.activation)
            measures["sign"] = signs[name]
        layers.append(LayerDiagnosis(name=name, **measures))

    ablation, refused = _ablate(model, images, labels, seed)
    comparison = None
    if baseline is not None:
        answers = right_answers(baseline, images, labels)
        comparison = compare_answers(correct, answers, seed=seed)
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
