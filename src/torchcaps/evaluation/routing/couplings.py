"""The couplings of one routed layer: how sharp, how much by the image, whether they are a tree.

The measures answer Mitterreiter, Koch, Giesen, Laue, AAAI 2023, arXiv 2301.01583 (no parse tree,
routing nearly static) and Paik, Kwak, Kim 2019, arXiv 1907.13327 (iterations make couplings extreme
and rarely change the answer). The definitions are this library's own. Letters: c_ij coupling of
child i to parent j, K parents, a_i activation of a child.

Couplings of a child are measured within one position of the map of parents. Where a child shares
itself out over several positions, as in convolutional capsules, they are divided by their sum there
first.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.special import entr

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.base import Labels, check_labels
from torchcaps.nn import RoutingTrace
from torchcaps.transfer import widen

MAJORITY = 0.5  # a child with more than this of its coupling on one parent belongs to it
TINY = 1e-30


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
    largest = coupling.amax(dim=-1)
    return CouplingEntropy(
        _weighted_mean(entropy, weight), _weighted_mean(largest, weight), parents
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
    information = _information(parent, labels, num_parents)
    chance = _information(parent, labels[order], num_parents)
    frequency = widen(torch.bincount(labels)) / len(labels)
    return ParseTree(
        support=_weighted_mean(widen(largest > MAJORITY), weight),
        information=_weighted_mean(information, share),
        chance=_weighted_mean(chance, share),
        possible=float(entr(frequency).sum() / math.log(2)),
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
    check_labels(labels)
    check_shape("labels", labels, ("n",), n=len(coupling))
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
