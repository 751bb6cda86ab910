"""All that one model can be asked about its routing, at once: what each measure finds, and what that means.

Criticism of capsule networks is collected in one list of nine measures, of which eight need one model; the ninth, a
baseline of equal size on the same images, is `compare`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.errors import check_range
from torchcaps.evaluation.ablation import (
    IterationDynamics,
    RoutingAblation,
    iteration_dynamics,
    recorded_routing,
    routing_ablation,
)
from torchcaps.evaluation.accuracy import Loss
from torchcaps.evaluation.checks import check_labels
from torchcaps.evaluation.couplings import (
    CouplingDynamics,
    CouplingEntropy,
    ParseTree,
    coupling_dynamics,
    coupling_entropy,
    parse_tree,
)
from torchcaps.evaluation.health import (
    ActivationDecay,
    CapsuleActivity,
    SignTest,
    Starvation,
    activation_decay,
    capsule_activity,
    sign_test,
    starvation,
)
from torchcaps.evaluation.tensors import BATCH, check_labelled, share
from torchcaps.nn import Recorded

FEW = 64  # images for the test of signs


@dataclass(frozen=True)
class LayerDiagnosis:
    """What one routed layer does.

    Attributes:
        name: of the layer in the model.
        entropy: how evenly children share themselves out (measure 1).
        dynamics: how much couplings follow the image (2).
        tree: whether children choose parents (3).
        children: whether its children live (5).
        parents: whether its parents live (5).
        starvation: of its children (6).
        sign: whether it sees the sign of poses (8).
    """

    name: str
    entropy: CouplingEntropy
    dynamics: CouplingDynamics
    tree: ParseTree
    children: CapsuleActivity
    parents: CapsuleActivity
    starvation: Starvation
    sign: SignTest

    def verdicts(self) -> dict[str, str]:
        """Measure -> one sentence."""
        return {name: measure.verdict for name, measure in vars(self).items() if name != "name"}


@dataclass(frozen=True)
class Diagnosis:
    """What one model's routing does.

    Attributes:
        accuracy: on the images given, in [0, 1].
        num_samples: n.
        layers: one for each routed layer, in the order of the model.
        iterations: what routing iterations change (2).
        ablation: what is left without routing (4).
        decay: activations from the first capsules to the last (7).
    """

    accuracy: float
    num_samples: int
    layers: tuple[LayerDiagnosis, ...]
    iterations: IterationDynamics
    ablation: RoutingAblation
    decay: ActivationDecay

    def verdicts(self) -> Iterator[tuple[str, str]]:
        """(what, one sentence) for every measure: those of the whole model, then layer by layer."""
        for name in ("ablation", "iterations", "decay"):
            yield name, getattr(self, name).verdict
        for layer in self.layers:
            for measure, text in layer.verdicts().items():
                yield f"{layer.name}: {measure}", text

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self) | {"verdicts": dict(self.verdicts())}


def diagnose(
    model: nn.Module,
    images: Float[Tensor, "n channels height width"],
    labels: Int64[Tensor, " n"],
    *,
    loss: Loss | None = None,
    seed: int = 0,
    batch_size: int = BATCH,
) -> Diagnosis:
    """Run every measure of routing that needs one model.

    Args:
        model: maps images to `[batch, classes]` activations in [0, 1] and holds routed layers; it is left as it was.
        images: `[n, channels, height, width]` in [0, 1], n at least 2, held out of training; a few hundred are enough,
            and their couplings are in memory at once (see `recorded_routing`).
        labels: `[n]` class indices.
        loss: whose gradient is looked at; by default the margin loss.
        seed: of random couplings and shuffles.
        batch_size: images at a time.

    Raises:
        ValueError: for a model without routed layers, a layer with fewer than two parents, or arguments that do not
        fit.
    """
    check_labelled(images, labels)
    check_range("number of images", len(images), low=2)
    found, recorded = recorded_routing(model, images, batch_size=batch_size)
    check_labels(labels, found.shape[1])
    starved = starvation(model, images, labels, loss=loss, batch_size=batch_size)
    signs = sign_test(model, images[:FEW])
    layers = tuple(_layer(name, layer, labels, seed, starved[name], signs[name]) for name, layer in recorded.items())
    first = next(iter(recorded.values()))
    course = {"children": first.child_activation} | {name: layer.activation for name, layer in recorded.items()}
    return Diagnosis(
        accuracy=share(found.argmax(dim=1) == labels.cpu()),
        num_samples=len(images),
        layers=layers,
        iterations=iteration_dynamics(model, images, labels, batch_size=batch_size),
        ablation=routing_ablation(model, images, labels, seed=seed, batch_size=batch_size),
        decay=activation_decay(course),
    )


def _layer(
    name: str, recorded: Recorded, labels: Tensor, seed: int, starved: Starvation, sign: SignTest
) -> LayerDiagnosis:
    return LayerDiagnosis(
        name=name,
        entropy=coupling_entropy(recorded),
        dynamics=coupling_dynamics(recorded, labels),
        tree=parse_tree(recorded, labels, seed=seed),
        children=capsule_activity(recorded.child_activation),
        parents=capsule_activity(recorded.activation),
        starvation=starved,
        sign=sign,
    )
