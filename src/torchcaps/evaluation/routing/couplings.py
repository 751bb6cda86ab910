"""The couplings of routed layers, and the state of their capsules.

Of couplings: how sharp, how much by the image, whether they are a tree. The measures answer
Mitterreiter, Koch, Giesen, Laue, AAAI 2023, arXiv 2301.01583 (no parse tree, routing nearly static;
starved and dead capsules) and Paik, Kwak, Kim 2019, arXiv 1907.13327 (iterations make couplings
extreme and rarely change the answer). Of capsules: dead, constant and starved ones, fading
activations, blindness to sign; Everett, Mellor, Rice, Rush 2023, arXiv 2305.11178 (activations vanish
with depth), Peer, Stabinger, Rodriguez-Sanchez 2021, arXiv 1905.08744 (without a bias, routing
cannot tell x from -x). The definitions are this library's own. Letters: c_ij coupling of child i to
parent j, K parents, a_i activation of a child.

Couplings of a child are measured within one position of the map of parents. Where a child shares
itself out over several positions, as in convolutional capsules, they are divided by their sum there
first.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.special import entr

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.base import (
    Images,
    Labels,
    Series,
    batches,
    check_labeled,
    check_labels,
    device_of,
    eval_mode,
    evaluating,
    proportion,
    widen,
)
from torchcaps.evaluation.routing.layers import ROUTED_BATCH, children_of
from torchcaps.functional.losses import margin_penalty
from torchcaps.nn import RoutingTrace
from torchcaps.types import Capsules

MAJORITY = 0.5  # a child with more than this of its coupling on one parent belongs to it
TINY = 1e-30
DEAD = 0.01  # activation
STARVED = 0.01  # of the median gradient
BLIND = 1e-4  # difference of activations


@dataclass(frozen=True)
class CouplingEntropy:
    """How evenly a layer's children share themselves out: 1 is uniform, 0 is a hard tree.

    Attributes:
        mean: mean of `H_i = -sum_j c_ij log c_ij / log K` over children, weighted by activation, in
            [0, 1].
        largest: mean over children of the largest coupling, weighted by activation, in [1 / K, 1].
        parents: K, number of parents.
    """

    mean: float
    largest: float
    parents: int

    @property
    def verdict(self) -> str:
        """One sentence."""
        course = "Couplings lie between uniform and a tree"
        if self.mean > 0.98:
            course = "Routing does next to nothing here: couplings are uniform"
        elif self.mean < 0.3:
            course = "Most children choose one parent"
        return (
            f"{course} (entropy {self.mean:.3f}, largest coupling {self.largest:.2f} of "
            f"{self.parents} parents)."
        )


@dataclass(frozen=True)
class CouplingDynamics:
    """How much the couplings of a layer follow the image.

    Attributes:
        mean: mean over links of `D_ij`, the standard deviation of a coupling over images; in [0,
            0.5].
        high: 95th percentile of `D_ij` over links.
        explained: share of the variance that lies between classes, in [0, 1]; None if nothing
            varies.
        chance: that share by chance, (classes - 1) / (images - 1).
    """

    mean: float
    high: float
    explained: float | None
    chance: float

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.high < 0.01:
            return (
                f"Couplings are the same for every image (standard deviation {self.mean:.4f}): "
                "a static tree, or none."
            )
        return (
            f"Couplings change from image to image by {self.mean:.3f} on average; "
            f"{self.explained or 0:.0%} of their variance goes with the class "
            f"({self.chance:.0%} by chance)."
        )


@dataclass(frozen=True)
class ParseTree:
    """Whether children choose parents, and whether the choice has to do with the class.

    Attributes:
        support: share of children, weighted by activation, whose best parent has a coupling above
            1/2.
        information: mutual information of a child's best parent and the class, in bits, weighted by
            activation; 0 for a static tree.
        chance: that information with the classes shuffled over images: what few images give by
            themselves.
        possible: entropy of the classes in bits, the most that `information` can be.
    """

    support: float
    information: float
    chance: float
    possible: float

    @property
    def verdict(self) -> str:
        """One sentence."""
        children = f"{self.support:.0%} of the active children"
        if self.support < 0.1:
            return f"No parse tree: {children} give a parent more than half of themselves."
        gain = max(self.information - self.chance, 0.0)
        depends = "depends" if gain > 0.05 * self.possible else "hardly depends"
        return (
            f"{children} have a parent of their own, and which one {depends} on the class "
            f"({gain:.2f} of {self.possible:.2f} bits)."
        )


def coupling_entropy(recorded: RoutingTrace) -> CouplingEntropy:
    """Return the entropy of the couplings of one routed layer, against uniform ones.

    Args:
        recorded: the couplings over any number of images.

    Returns:
        The mean entropy, and the mean of the largest couplings.

    Raises:
        ArgumentError: for fewer than two parents, or shapes that do not fit.
    """
    coupling, weight = _links(recorded)
    parents = coupling.shape[-1]
    entropy = entr(coupling).sum(dim=-1) / math.log(parents)
    return CouplingEntropy(
        _weighted_mean(entropy, weight), _weighted_mean(coupling.amax(dim=-1), weight), parents
    )


def coupling_dynamics(recorded: RoutingTrace, labels: Labels) -> CouplingDynamics:
    """Return the standard deviation of couplings over images, and the part that classes explain.

    Args:
        recorded: the couplings of one routed layer over at least two images.
        labels: `[n]` their classes.

    Returns:
        Mean and 95th percentile of the deviations, and the share that classes explain.

    Raises:
        ArgumentError: for one image, fewer than two parents, or shapes that do not fit.
    """
    coupling, _, labels = _labeled_links(recorded, labels)
    total = coupling.var(dim=0, correction=0)
    within = torch.zeros_like(total)
    classes = labels.unique()
    for label in classes:
        members = coupling[labels == label]
        within += members.var(dim=0, correction=0) * (len(members) / len(coupling))
    deviation = total.sqrt()
    varies = float(total.sum()) > 1e-12
    return CouplingDynamics(
        mean=float(deviation.mean()),
        high=float(np.quantile(deviation.numpy(), 0.95, method="inverted_cdf")),
        explained=float(1 - within.sum() / total.sum()) if varies else None,
        chance=(len(classes) - 1) / (len(labels) - 1),
    )


def parse_tree(recorded: RoutingTrace, labels: Labels, *, seed: int = 0) -> ParseTree:
    """Return whether active children choose one parent, and what the choice tells of the class.

    Args:
        recorded: the couplings of one routed layer over at least two images.
        labels: `[n]` their classes.
        seed: of the shuffle that gives `chance`.

    Returns:
        The support of the tree, and the information that it has of the class.

    Raises:
        ArgumentError: as `coupling_dynamics`.
    """
    coupling, weight, labels = _labeled_links(recorded, labels)
    largest, parent = coupling.max(dim=-1)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    share = weight.mean(dim=0)
    num_parents = coupling.shape[-1]
    return ParseTree(
        support=_weighted_mean(widen(largest > MAJORITY), weight),
        information=_weighted_mean(_information(parent, labels, num_parents), share),
        chance=_weighted_mean(_information(parent, labels[order], num_parents), share),
        possible=float(entr(widen(torch.bincount(labels)) / len(labels)).sum() / math.log(2)),
    )


def _links(recorded: RoutingTrace) -> tuple[Tensor, Tensor]:
    """Return the couplings `[n, links, parents]` within a position, and weights `[n, links]`."""
    coupling = widen(recorded.coupling)
    check_shape("coupling", coupling, ("*batch", "children", "parents"))
    check_range("number of parents", coupling.shape[-1], low=2)
    total = coupling.sum(dim=-1)
    weight = widen(recorded.child_activation) * total
    # A child that gives nothing to a position says nothing of it.
    position = total.unsqueeze(-1)
    shares = coupling / position.clamp(min=TINY)
    within = torch.where(position > TINY, shares, 1 / coupling.shape[-1])
    return within.flatten(1, -2).cpu(), weight.flatten(1).cpu()


def _weighted_mean(numbers: Tensor, weight: Tensor) -> float:
    """Return the weighted mean; the plain one where all weights are zero."""
    total = float(weight.sum())
    if total > 0:
        return float((numbers * weight).sum()) / total
    return float(numbers.mean())


def _labeled_links(recorded: RoutingTrace, labels: Labels) -> tuple[Tensor, Tensor, Labels]:
    """Return links as `_links`, and labels that fit them."""
    coupling, weight = _links(recorded)
    check_labels(labels, n=len(coupling))
    check_range("number of images", len(labels), low=2)
    return coupling, weight, labels.cpu()


def _information(parent: Tensor, labels: Labels, num_parents: int) -> Tensor:
    """Return the mutual information `[links]` of each best parent and the class, in bits.

    Args:
        parent: `[n, links]`, the best parent of each link.
        labels: `[n]` true classes.
        num_parents: number of parents.
    """
    classes, label = labels.unique(return_inverse=True)
    shape = (parent.shape[1], num_parents, len(classes))
    cell = (torch.arange(shape[0]) * num_parents + parent) * len(classes) + label.unsqueeze(1)
    counts = torch.bincount(cell.flatten(), minlength=math.prod(shape)).view(shape)
    joint = widen(counts) / len(labels)
    entropy_of_parent = entr(joint.sum(dim=2)).sum(dim=1)
    entropy_of_class = entr(joint.sum(dim=1)).sum(dim=1)
    joint_entropy = entr(joint).sum(dim=(1, 2))
    return (entropy_of_parent + entropy_of_class - joint_entropy) / math.log(2)


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
        return (
            f"{'Few' if self.starved < 0.1 else 'Many'} capsules are starved of gradient "
            f"({self.starved:.0%} of {self.capsules})."
        )


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
    median: Series
    strongest: Series

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
                objective = margin_penalty(model(batch.detach().clone().requires_grad_()), true)
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
