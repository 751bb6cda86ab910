"""Whether the capsules of a network live: dead and constant ones, starved ones, activations that fade, blindness to
sign.

Sources of the symptoms: Mitterreiter, Koch, Giesen, Laue, AAAI 2023, arXiv 2301.01583 (starved and dead capsules);
Everett, Mellor, Rice, Rush 2023, arXiv 2305.11178 (activations vanish with depth); Peer, Stabinger, Rodriguez-Sanchez
2021, arXiv 1905.08744 (without a bias, routing cannot tell x from -x). The definitions are this library's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.base import BATCH, Images, Labels, Loss, check_labeled
from torchcaps.evaluation.forward import batches, device_of, eval_mode, evaluating, proportion
from torchcaps.evaluation.routing.layers import children_of
from torchcaps.functional import margin_loss
from torchcaps.types import Capsules

DEAD, STARVED, BLIND = 0.01, 0.01, 1e-4


@dataclass(frozen=True)
class CapsuleActivity:
    """The activations of one set of capsules over images; a capsule at each position counts by itself."""

    dead: float  # share of capsules that are never above 0.01
    constant: float  # share with a standard deviation over images below 0.01, dead ones included
    median: float  # of all activations, in [0, 1]
    strongest: float  # mean over images of the largest activation, in [0, 1]
    capsules: int  # how many there are

    @property
    def verdict(self) -> str:
        """One sentence."""
        figures = f"{self.dead:.0%} dead, {self.constant:.0%} constant, of {self.capsules}"
        if self.dead > 0.5:
            return f"Most capsules are never active ({figures})."
        if self.constant > 0.5:
            return f"Most capsules say the same of every image ({figures})."
        return f"Most capsules are in use ({figures})."


@dataclass(frozen=True)
class Starvation:
    """How evenly the gradient of the loss reaches the poses of one set of capsules."""

    starved: float  # share of capsules whose gradient is below 1 % of the median one, or zero
    median: float  # median over capsules of the norm of the gradient, root mean square over images
    capsules: int  # how many there are

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.median == 0:
            return (
                "No gradient reaches these capsules: nothing below them learns from these images."
            )
        word = "Few" if self.starved < 0.1 else "Many"
        return f"{word} capsules are starved of gradient ({self.starved:.0%} of {self.capsules})."


@dataclass(frozen=True)
class ActivationDecay:
    """The course of activations from the first capsules to the last."""

    layers: tuple[str, ...]  # names; the first is that of the children of the first routed layer
    median: tuple[
        float, ...
    ]  # of each set; small for class capsules, as one class at a time is present
    strongest: tuple[float, ...]  # mean over images of the largest

    @property
    def verdict(self) -> str:
        """One sentence."""
        course = " → ".join(f"{value:.2g}" for value in self.strongest)
        if self.strongest[-1] < 0.1:
            return f"Activations fade out on their way up ({course})."
        return f"The strongest activations survive to the top ({course})."


@dataclass(frozen=True)
class SignTest:
    """Whether a layer gives the same activations for the poses of its children and for their negatives."""

    change: float  # mean absolute difference of the parents' activations, in [0, 1]
    largest: float  # largest absolute difference
    blind: bool  # whether `largest` is below 1e-4

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.blind:
            return "The layer cannot tell poses from their negatives; a bias on the votes would let it."
        return (
            "The layer tells poses from their negatives "
            f"(activations differ by up to {self.largest:.2g}, {self.change:.2g} on average)."
        )


def capsule_activity(activation: Float[Tensor, " n *capsules"]) -> CapsuleActivity:
    """Dead and constant capsules, and how strong activations `[n, ..., capsules]` in [0, 1] are. Raises ValueError for
    a tensor with fewer axes, or without images."""
    check_shape("activation", activation, ("*batch", "capsules"))
    check_range("number of images", len(activation), low=1)
    a = activation.detach().flatten(1).double().cpu()
    return CapsuleActivity(
        dead=proportion(a.amax(dim=0) < DEAD),
        constant=proportion(a.std(dim=0, correction=0) < DEAD),
        median=float(a.median()),
        strongest=float(a.amax(dim=1).mean()),
        capsules=a.shape[1],
    )


def activation_decay(activations: Mapping[str, Float[Tensor, " n *capsules"]]) -> ActivationDecay:
    """Median and strongest activation of each set of capsules, in the order given: from input to output. Raises
    ValueError for no set, or tensors that do not fit."""
    check_range("number of layers", len(activations), low=1)
    found = [capsule_activity(activation) for activation in activations.values()]
    return ActivationDecay(
        tuple(activations), tuple(a.median for a in found), tuple(a.strongest for a in found)
    )


def starvation(
    model: nn.Module,
    images: Images,
    labels: Labels,
    *,
    loss: Loss | None = None,
    batch_size: int = BATCH,
) -> dict[str, Starvation]:
    """The gradient of the loss by the poses of the children of each routed layer that ran, by its name; no parameter
    gets one. The loss maps activations `[batch, classes]` and labels to their mean loss; by default it is the margin
    loss. Raises ValueError for a model without routed layers, or arguments that do not fit."""
    check_labeled(images, labels)
    squares = dict[str, Tensor]()
    with eval_mode(model):
        for batch, true in batches(model, images, labels, batch_size=batch_size):
            with torch.enable_grad(), children_of(model) as seen:
                x = batch.detach().clone().requires_grad_()
                value = (loss or margin_loss)(model(x), true)
                poses = {name: children.pose for name, children in seen.items()}
                gradients = torch.autograd.grad(value, list(poses.values()), allow_unused=True)
            for (name, pose), gradient in zip(poses.items(), gradients, strict=True):
                # The loss is a mean over the batch: its gradient is undone to that of each image.
                each = torch.zeros_like(pose) if gradient is None else gradient * len(batch)
                size = each.square().sum(dim=(0, -1)).flatten().double().cpu()
                squares[name] = squares.get(name, 0.0) + size / len(images)
    found = {}
    for name, norm in ((name, square.sqrt()) for name, square in squares.items()):
        starved = (norm < STARVED * norm.median()) | (norm == 0)
        found[name] = Starvation(proportion(starved), float(norm.median()), len(norm))
    return found


def sign_test(model: nn.Module, images: Images) -> dict[str, SignTest]:
    """Each routed layer that runs, by name, on the children it gets from these images, and on the same with negative
    poses. A few images are enough. Raises ValueError for a model without routed layers."""
    found = {}
    with evaluating(model):
        with children_of(model) as seen:
            model(images.to(device_of(model)))
        for name, (pose, activation) in seen.items():
            layer = model.get_submodule(name)
            difference = (
                layer(Capsules(pose, activation))[1] - layer(Capsules(-pose, activation))[1]
            ).abs()
            found[name] = SignTest(
                float(difference.mean()), float(difference.max()), bool(difference.max() < BLIND)
            )
    return found
