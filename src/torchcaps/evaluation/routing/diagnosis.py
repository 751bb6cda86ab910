"""All that one model can be asked about its routing, at once: what each measure finds, and what that means.

The criticism of capsule networks is collected in nine measures, numbered here as in the documentation: (1) entropy of
couplings, (2) dynamics, (3) parse tree, (4) ablation, (5) dead capsules, (6) starvation, (7) decay of activations,
(8) blindness to sign, (9) a baseline of equal size.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.errors import AblationUnsupportedError, check_range
from torchcaps.evaluation.base import EvaluationResult, LabeledImages, check_labels
from torchcaps.evaluation.comparison.compare import Comparison, compare_answers
from torchcaps.evaluation.forward import proportion, right_answers
from torchcaps.evaluation.routing import ablation as ablations, couplings, health
from torchcaps.evaluation.routing.layers import route_images, routers_of
from torchcaps.models.notebook import parameter_count
from torchcaps.nn import Router, RoutingTrace

FEW = 64  # images for the test of signs


@dataclass(frozen=True)
class LayerDiagnosis:
    """What one routed layer does.

    Measures 1 to 3 are None where couplings are no shares, 5 and 8 where activations mean nothing; see `Router`."""

    name: str  # of the layer in the model
    entropy: (
        couplings.CouplingEntropy | None
    )  # how evenly children share themselves out (measure 1)
    dynamics: couplings.CouplingDynamics | None  # how much couplings follow the image (2)
    tree: couplings.ParseTree | None  # whether children choose parents (3)
    parents: health.CapsuleActivity | None  # whether its parents live (5)
    starvation: health.Starvation  # of its children (6)
    sign: health.SignTest | None  # whether it sees the sign of poses (8)

    def verdicts(self) -> dict[str, str]:
        """Measure -> one sentence, for those that say something of this layer."""
        measures = {name: measure for name, measure in vars(self).items() if name != "name"}
        return {name: measure.verdict for name, measure in measures.items() if measure is not None}


@dataclass(frozen=True)
class Diagnosis(EvaluationResult):
    """What one model's routing does."""

    accuracy: float  # on the images looked at, in [0, 1]
    num_samples: int  # how many these were
    parameters: int  # numbers that training can change
    layers: tuple[LayerDiagnosis, ...]  # one for each routed layer, in the order of the model
    iterations: ablations.IterationDynamics  # what routing iterations change (2)
    ablation: (
        ablations.RoutingAblation | None
    )  # what is left without routing (4); None where a router has no ablation
    refused: str  # why not, or an empty text
    children: health.CapsuleActivity  # whether the children of the first routed layer live (5)
    decay: health.ActivationDecay  # activations from these children to the last parents (7)
    baseline: (
        Comparison | None
    )  # against a model without routing, on the same images (9); None where none was given
    baseline_parameters: int | None  # of that model

    def verdicts(self) -> dict[str, str]:
        """What -> one sentence: for the whole model, then layer by layer."""
        found = {"ablation": self.refused if self.ablation is None else self.ablation.verdict}
        found |= {name: getattr(self, name).verdict for name in ("iterations", "decay", "children")}
        found["baseline"] = "No baseline was given, so the accuracy stands alone."
        if self.baseline is not None:
            sizes = f"{self.parameters:,} parameters against {self.baseline_parameters:,}"
            found["baseline"] = f"{self.baseline.verdict} The first is this one: {sizes}."
        for layer in self.layers:
            found |= {
                f"{layer.name}: {measure}": text for measure, text in layer.verdicts().items()
            }
        return found

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"verdicts": self.verdicts()}


def diagnose(
    model: nn.Module,
    dataset: LabeledImages,
    *,
    baseline: nn.Module | None = None,
    count: int = 256,
    seed: int = 0,
    batch_size: int = 64,
) -> Diagnosis:
    """Every measure of routing, for one model and one data set. Raises ValueError for a model without routed layers,
    such as a CNN, a layer with fewer than two parents, or arguments that do not fit.

    Args:
        dataset: held out of training; one label an image.
        baseline: a model to compare with on the same images, such as a CNN of equal size trained in the same way.
        count: random images to look at, at least 2, or all where there are fewer. Their couplings are in memory at
            once: see `route_images`.
        seed: of the choice of images, of random couplings and of shuffles.
    """
    check_labels(dataset.labels, len(dataset.classes))
    check_range("count", count, low=2)
    check_range("number of images", len(dataset.labels), low=2)
    order = torch.randperm(len(dataset.labels), generator=torch.Generator().manual_seed(seed))[
        :count
    ]
    images, labels = (
        dataset.float_images(order),
        dataset.labels[order.to(dataset.labels.device)].cpu(),
    )
    found, recorded, children = route_images(model, images, batch_size=batch_size)
    check_labels(labels, found.shape[1])
    right = found.argmax(dim=1) == labels
    starved = health.starvation(model, images, labels, batch_size=batch_size)
    signs = health.sign_test(model, images[:FEW])
    first = next(iter(children.values()))
    routers = routers_of(model)
    course = {
        name: layer.activation
        for name, layer in recorded.items()
        if routers[name].activation != "none"
    }
    base = None if baseline is None else right_answers(baseline, images, labels, batch_size)
    ablation, refused = None, ""
    try:
        ablation = ablations.routing_ablation(
            model, images, labels, seed=seed, batch_size=batch_size
        )
    except AblationUnsupportedError as error:
        refused = str(error)
    return Diagnosis(
        accuracy=proportion(right),
        num_samples=len(images),
        parameters=parameter_count(model),
        layers=tuple(
            _of_layer(name, routers[name], layer, labels, seed, starved[name], signs[name])
            for name, layer in recorded.items()
        ),
        iterations=ablations.iteration_dynamics(model, images, labels, batch_size=batch_size),
        ablation=ablation,
        refused=refused,
        children=health.capsule_activity(first),
        decay=health.activation_decay({"children": first} | course),
        baseline=None if base is None else compare_answers(right, base, seed=seed),
        baseline_parameters=None if baseline is None else parameter_count(baseline),
    )


def _of_layer(
    name: str,
    router: Router,
    layer: RoutingTrace,
    labels: Tensor,
    seed: int,
    starved: health.Starvation,
    sign: health.SignTest,
) -> LayerDiagnosis:
    """The measures that mean something for what this router declares."""
    shares, present = router.normalized, router.activation != "none"
    return LayerDiagnosis(
        name=name,
        entropy=couplings.coupling_entropy(layer) if shares else None,
        dynamics=couplings.coupling_dynamics(layer, labels) if shares else None,
        tree=couplings.parse_tree(layer, labels, seed=seed) if shares else None,
        parents=health.capsule_activity(layer.activation) if present else None,
        starvation=starved,
        sign=sign if present else None,
    )
