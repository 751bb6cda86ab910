"""State of capsules: dead, constant and starved ones, fading activations, blindness to sign.

Sources of the symptoms: Mitterreiter, Koch, Giesen, Laue, AAAI 2023, arXiv 2301.01583 (starved and
dead capsules); Everett, Mellor, Rice, Rush 2023, arXiv 2305.11178 (activations vanish with depth);
Peer, Stabinger, Rodriguez-Sanchez 2021, arXiv 1905.08744 (without a bias, routing cannot tell x
from -x). The definitions are this library's own.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.base import Images, Labels, check_labeled
from torchcaps.evaluation.forward import batches, device_of, eval_mode, evaluating, proportion
from torchcaps.evaluation.routing.layers import ROUTED_BATCH, children_of
from torchcaps.functional import margin_loss
from torchcaps.types import Capsules

DEAD = 0.01  # activation
STARVED = 0.01  # of the median gradient
BLIND = 1e-4  # difference of activations


@dataclass(frozen=True)
class CapsuleActivity:
    """The activations of one set of capsules over images; each position counts by itself.

    Attributes:
        dead: share of capsules that are never above 0.01.
        constant: share with a standard deviation over images below 0.01, dead ones included.
        median: of all activations, in [0, 1].
        strongest: mean over images of the largest activation, in [0, 1].
        capsules: number of capsules.
    """

    dead: float
    constant: float
    median: float
    strongest: float
    capsules: int

    @property
    def verdict(self) -> str:
        """One sentence."""
        state = "are in use"
        if self.dead > 0.5:
            state = "are never active"
        elif self.constant > 0.5:
            state = "say the same of every image"
        return (
            f"Most capsules {state} ({self.dead:.0%} dead, {self.constant:.0%} constant, "
            f"of {self.capsules})."
        )


@dataclass(frozen=True)
class Starvation:
    """How evenly the gradient of the loss reaches the poses of one set of capsules.

    Attributes:
        starved: share of capsules whose gradient is below 1 % of the median one, or zero.
        median: median over capsules of the norm of the gradient, root mean square over images.
        capsules: number of capsules.
    """

    starved: float
    median: float
    capsules: int

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.median == 0:
            return "No gradient reaches these capsules: nothing below them learns."
        word = "Few" if self.starved < 0.1 else "Many"
        return f"{word} capsules are starved of gradient ({self.starved:.0%} of {self.capsules})."


@dataclass(frozen=True)
class ActivationDecay:
    """The course of activations from the first capsules to the last.

    Attributes:
        layers: names; the first is that of the children of the first routed layer.
        median: median activation of each set; small for class capsules, as one class at a time is
            present.
        strongest: mean over images of the largest activation of each set.
    """

    layers: tuple[str, ...]
    median: tuple[float, ...]
    strongest: tuple[float, ...]

    @property
    def verdict(self) -> str:
        """One sentence."""
        course = " → ".join(f"{activation:.2g}" for activation in self.strongest)
        if self.strongest[-1] < 0.1:
            return f"Activations fade out on their way up ({course})."
        return f"The strongest activations survive to the top ({course})."


@dataclass(frozen=True)
class SignTest:
    """Whether a layer gives the same activations for poses of children and their negatives.

    Attributes:
        change: mean absolute difference of the parents' activations, in [0, 1].
        largest: largest absolute difference.
        blind: whether `largest` is below 1e-4.
    """

    change: float
    largest: float
    blind: bool

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.blind:
            return "The layer cannot tell poses from their negatives; a bias on the votes would let it."
        return (
            "The layer tells poses from their negatives (activations differ by up to "
            f"{self.largest:.2g}, {self.change:.2g} on average)."
        )


def capsule_activity(activation: Float[Tensor, " n *capsules"]) -> CapsuleActivity:
    """Count dead and constant capsules, and measure how strong activations are.

    Args:
        activation: `[n, ..., capsules]` in [0, 1], n at least 1.

    Returns:
        Shares of dead and constant capsules, and the strength of activations.

    Raises:
        ArgumentError: for a tensor with fewer axes, or without images.
    """
    check_shape("activation", activation, ("*batch", "capsules"))
    check_range("number of images", len(activation), low=1)
    a = activation.detach().flatten(1).cpu().double()
    return CapsuleActivity(
        dead=proportion(a.amax(dim=0) < DEAD),
        constant=proportion(a.std(dim=0, correction=0) < DEAD),
        median=float(a.median()),
        strongest=float(a.amax(dim=1).mean()),
        capsules=a.shape[1],
    )


def starvation(model: nn.Module, images: Images, labels: Labels) -> dict[str, Starvation]:
    """Measure the gradient of the margin loss by the poses of the children of each routed layer.

    No parameter gets a gradient.

    Args:
        model: a model with routed layers.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.

    Returns:
        Layer name -> figures, for the layers that ran.

    Raises:
        ArgumentError: for a model without routed layers, or arguments that do not fit.
    """
    check_labeled(images, labels)
    squares = dict[str, Tensor]()
    with eval_mode(model):
        for batch, true in batches(model, images, labels, batch_size=ROUTED_BATCH):
            with torch.enable_grad(), children_of(model) as children:
                x = batch.detach().clone().requires_grad_()
                objective = margin_loss(model(x), true)
                poses = [capsules.pose for capsules in children.values()]
                gradients = torch.autograd.grad(objective, poses, materialize_grads=True)
            for name, gradient in zip(children, gradients, strict=True):
                # The loss is a mean over the batch; this is the gradient of each image's own loss.
                by_image = gradient * len(batch)
                square = by_image.square().sum(dim=(0, -1)).flatten().cpu().double()
                squares[name] = squares.get(name, 0.0) + square / len(images)
    figures = {}
    for name, square in squares.items():
        norm = square.sqrt()
        median = norm.median()
        is_starved = (norm < STARVED * median) | (norm == 0)
        figures[name] = Starvation(proportion(is_starved), float(median), len(norm))
    return figures


def sign_test(model: nn.Module, images: Images) -> dict[str, SignTest]:
    """Compare the activations of each routed layer for poses and for negative poses.

    Args:
        model: a model with routed layers.
        images: `[n, channels, height, width]` in [0, 1]; a few are enough.

    Returns:
        Layer name -> figures, for the layers that ran.

    Raises:
        ArgumentError: for a model without routed layers.
    """
    tests = {}
    with evaluating(model):
        with children_of(model) as children:
            model(images.to(device_of(model)))
        for name, (pose, activation) in children.items():
            layer = model.get_submodule(name)
            parents = [layer(Capsules(sign * pose, activation)).activation for sign in (1, -1)]
            difference = (parents[0] - parents[1]).abs()
            largest = float(difference.max())
            tests[name] = SignTest(float(difference.mean()), largest, largest < BLIND)
    return tests
