"""What the couplings of one routed layer are like: how sharp, how much they follow the image, whether they make a tree.

The measures answer Mitterreiter, Koch, Giesen, Laue, AAAI 2023, arXiv 2301.01583 (no parse tree, routing nearly
static) and Paik, Kwak, Kim 2019, arXiv 1907.13327 (iterations make couplings extreme and rarely change the answer).
The definitions are this library's own. Letters: c_ij coupling of child i to parent j, K parents, a_i activation of a
child.

Couplings of a child are measured within one position of the map of parents. Where a child shares itself out over
several positions, as in convolutional capsules, they are divided by their sum there first.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.special import entr

from torchcaps.errors import ArgumentError, check_range, check_shape
from torchcaps.evaluation.base import Labels, check_labels
from torchcaps.nn import RoutingTrace

MAJORITY = 0.5  # a child with more than this of its coupling on one parent belongs to it
TINY = 1e-30


@dataclass(frozen=True)
class CouplingEntropy:
    """How evenly a layer's children share themselves out: 1 is uniform, as without routing; 0 is a hard tree."""

    mean: (
        float  # of `H_i = -sum_j c_ij log c_ij / log K`, children weighted by activation, in [0, 1]
    )
    largest: (
        float  # mean over children of the largest coupling, weighted by activation, in [1 / K, 1]
    )
    parents: int  # K

    @property
    def verdict(self) -> str:
        """One sentence."""
        figures = f"entropy {self.mean:.3f}, largest coupling {self.largest:.2f} of {self.parents} parents"
        if self.mean > 0.98:
            return f"Routing does next to nothing here: couplings are uniform ({figures})."
        if self.mean < 0.3:
            return f"Most children choose one parent ({figures})."
        return f"Couplings lie between uniform and a tree ({figures})."


@dataclass(frozen=True)
class CouplingDynamics:
    """How much the couplings of a layer follow the image."""

    mean: float  # over links of the standard deviation over images, `D_ij`; in [0, 0.5]
    high: float  # 95th percentile of D_ij over links
    explained: (
        float | None
    )  # share of the variance that lies between classes, in [0, 1]; None if nothing varies
    chance: float  # that share by chance, (classes - 1) / (images - 1)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.high < 0.01:
            deviation = f"standard deviation {self.mean:.4f}"
            return f"Couplings are the same for every image ({deviation}): a static tree, or none."
        part = f"{self.explained or 0:.0%} of their variance goes with the class ({self.chance:.0%} by chance)"
        return f"Couplings change from image to image by {self.mean:.3f} on average; {part}."


@dataclass(frozen=True)
class ParseTree:
    """Whether children choose parents, and whether the choice has to do with the class."""

    support: float  # share of children, weighted by activation, whose best parent has a coupling above 1/2
    information: float  # of a child's best parent and the class, mutual, in bits, weighted alike; 0 for a static tree
    chance: (
        float  # the same with the classes shuffled over images: what few images give by themselves
    )
    possible: float  # entropy of the classes in bits, the most that `information` can be

    @property
    def verdict(self) -> str:
        """One sentence."""
        some = f"{self.support:.0%} of the active children"
        if self.support < 0.1:
            return f"No parse tree: {some} give a parent more than half of themselves."
        gain = max(self.information - self.chance, 0.0)
        depends = (
            "depends on the class" if gain > 0.05 * self.possible else "hardly depends on the class"
        )
        bits = f"{gain:.2f} of {self.possible:.2f} bits"
        return f"{some} have a parent of their own, and which one {depends} ({bits})."


def coupling_entropy(recorded: RoutingTrace) -> CouplingEntropy:
    """Entropy of the couplings of one routed layer over any number of images, against uniform ones. Raises ValueError
    for fewer than two parents, or shapes that do not fit."""
    coupling, weight = _links(recorded)
    parents = coupling.shape[-1]
    entropy = entr(coupling).sum(dim=-1) / math.log(parents)
    return CouplingEntropy(
        _weighted(entropy, weight), _weighted(coupling.amax(dim=-1), weight), parents
    )


def coupling_dynamics(recorded: RoutingTrace, labels: Labels) -> CouplingDynamics:
    """Standard deviation of each coupling of one routed layer over at least two images, and how much of the variance
    the class explains. Raises ValueError for one image, fewer than two parents, or shapes that do not fit."""
    coupling, _ = _links(recorded)
    labels = _labels_of(coupling, labels)
    total = coupling.var(dim=0, correction=0)
    within = torch.zeros_like(total)
    for label in labels.unique():
        mine = coupling[labels == label]
        within += mine.var(dim=0, correction=0) * (len(mine) / len(coupling))
    deviation = total.sqrt()
    varies = float(total.sum()) > 1e-12
    return CouplingDynamics(
        mean=float(deviation.mean()),
        high=float(np.quantile(deviation.numpy(), 0.95, method="inverted_cdf")),
        explained=float(1 - within.sum() / total.sum()) if varies else None,
        chance=(len(labels.unique()) - 1) / (len(labels) - 1),
    )


def parse_tree(recorded: RoutingTrace, labels: Labels, *, seed: int = 0) -> ParseTree:
    """Whether active children choose one parent, and what that choice tells of the class; see `coupling_dynamics`. The
    seed is that of the shuffle that gives `chance`."""
    coupling, weight = _links(recorded)
    labels = _labels_of(coupling, labels)
    best, parent = coupling.max(dim=-1)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    share = weight.mean(dim=0)
    found = [
        _weighted(_information(parent, classes, coupling.shape[-1]), share)
        for classes in (labels, labels[order])
    ]
    return ParseTree(
        support=_weighted((best > MAJORITY).double(), weight),
        information=found[0],
        chance=found[1],
        possible=float(entr(torch.bincount(labels).double() / len(labels)).sum() / math.log(2)),
    )


def _links(recorded: RoutingTrace) -> tuple[Tensor, Tensor]:
    """Couplings within a position, `[n, links, parents]`, and the weights of the links, `[n, links]`; on the CPU."""
    coupling = recorded.coupling.double()
    check_shape("coupling", coupling, ("*batch", "children", "parents"))
    check_range("number of parents", coupling.shape[-1], low=2)
    if recorded.child_activation.shape != coupling.shape[:-1]:
        raise ArgumentError(
            "child_activation",
            f"expected {list(coupling.shape[:-1])}, as the coupling has, "
            f"got {list(recorded.child_activation.shape)}",
        )
    total = coupling.sum(dim=-1)
    # A child that gives nothing to this position says nothing of it.
    some = total.unsqueeze(-1)
    within = torch.where(some > TINY, coupling / some.clamp(min=TINY), 1 / coupling.shape[-1])
    weight = recorded.child_activation.double() * total
    return within.flatten(1, -2).cpu(), weight.flatten(1).cpu()


def _weighted(values: Tensor, weight: Tensor) -> float:
    total = float(weight.sum())
    return float((values * weight).sum()) / total if total > 0 else float(values.mean())


def _labels_of(coupling: Tensor, labels: Tensor) -> Tensor:
    check_labels(labels)
    check_shape("labels", labels, ("n",), n=len(coupling))
    check_range("number of images", len(labels), low=2)
    return labels.cpu()


def _information(parent: Tensor, labels: Tensor, parents: int) -> Tensor:
    """Mutual information in bits of each link's best parent `[n, links]` and the class, `[links]`."""
    classes, label = labels.unique(return_inverse=True)
    links = parent.shape[1]
    cell = (torch.arange(links) * parents + parent) * len(classes) + label.unsqueeze(1)
    joint = torch.bincount(cell.flatten(), minlength=links * parents * len(classes)).double()
    joint = joint.view(links, parents, len(classes)) / len(labels)
    alone = entr(joint.sum(dim=2)).sum(dim=1) + entr(joint.sum(dim=1)).sum(dim=1)
    return (alone - entr(joint).sum(dim=(1, 2))) / math.log(2)
