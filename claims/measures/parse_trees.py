"""Claim: routing forms a parse tree; Mitterreiter et al. 2023 (arXiv 2301.01583) deny it.

The same figures of planted votes, whose tree is known, tell what they are where there is a tree.
"""

from statistics import mean
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps import evaluation
from torchcaps.evaluation import ParseTree, coupling_dynamics, coupling_entropy, parse_tree
from torchcaps.functional import dynamic_routing, straightness
from torchcaps.nn import RoutingTrace
from torchcaps.reporting import EvaluatedRun
from torchcaps.reproduction.measures import Figures, register_measure
from torchcaps.testing import planted_votes, seeded

NUM_IMAGES = 256
PLANTED_LENGTH = 4.0  # of planted votes, which three iterations turn into a tree
NUM_TREES = 10


@register_measure()
def parse_trees(run: EvaluatedRun) -> Figures:
    """Whether couplings are a tree, and whether the tree depends on the image.

    Returns:
        "tree_support": share of children with a coupling above one half; "tree_information": what
        the best parent tells of the class, above chance, as a share of all there is to tell;
        "tree_entropy" of couplings, 1 if uniform; "tree_dynamics": standard deviation of a coupling
        over images; "tree_straightness" of votes, see `functional.straightness`; "tree_dead": share
        of parents that are never active; all as means over layers, with "layers" for each; and
        "planted_NAME", the first four and the straightness of planted votes.
    """
    diagnosis = evaluation.diagnose(run.model, run.images, count=NUM_IMAGES)
    layers: dict[str, Figures] = {}
    for layer in diagnosis.layers:
        if layer.entropy is None or layer.dynamics is None or layer.tree is None:
            continue
        layers[layer.name] = {
            "support": layer.tree.support,
            "information": _share_of_class(layer.tree),
            "entropy": layer.entropy.mean,
            "dynamics": layer.dynamics.mean,
            "straightness": diagnosis.iterations.straightness[layer.name][-1],
            "dead": None if layer.parents is None else layer.parents.dead,
        }
    figures: Figures = {"layers": layers}
    for name in ("support", "information", "entropy", "dynamics", "straightness", "dead"):
        by_layer = [layer[name] for layer in layers.values() if layer[name] is not None]
        if by_layer:
            figures[f"tree_{name}"] = mean(by_layer)
    for name, figure in planted_figures().items():
        figures[f"planted_{name}"] = figure
    return figures


class PlantedTrees(NamedTuple):
    """Votes whose parse tree is known.

    Attributes:
        votes: a child agrees with its siblings on one parent, and with nobody on the others.
        parents: the parent of each child in each image.
        labels: the class of each image, which decides on the tree.
    """

    votes: Float[Tensor, "images children parents dim"]
    parents: Int64[Tensor, "images children"]
    labels: Int64[Tensor, " images"]


def planted_trees(
    num_images: int = NUM_IMAGES, num_children: int = 64, num_parents: int = 10, *, seed: int = 0
) -> PlantedTrees:
    """Make votes with ten classes and one tree for each.

    Args:
        num_images: 1 or more.
        num_children: 1 or more.
        num_parents: 2 or more.
        seed: of all that is random.

    Returns:
        The votes, the tree of each image, and its class.
    """
    generator = seeded(seed)
    trees = torch.randint(num_parents, (NUM_TREES, num_children), generator=generator)
    labels = torch.arange(num_images) % NUM_TREES
    parents = trees[labels]
    is_parent = torch.nn.functional.one_hot(parents, num_parents).bool()
    votes = PLANTED_LENGTH * planted_votes(is_parent, generator=generator)
    return PlantedTrees(votes, parents, labels)


def planted_figures(iterations: int = 3) -> Figures:
    """What the measures say of planted votes after dynamic routing.

    Returns:
        "support", "information", "entropy", "dynamics" and "straightness" as in `parse_trees`, and
        "right": share of children whose best parent is the planted one.
    """
    planted = planted_trees()
    routed = dynamic_routing(planted.votes, iterations)
    assert routed.coupling is not None
    children = torch.ones(planted.parents.shape)
    trace = RoutingTrace(routed.coupling, routed.activation, children, routed.pose)
    tree = parse_tree(trace, planted.labels)
    return {
        "support": tree.support,
        "information": _share_of_class(tree),
        "entropy": coupling_entropy(trace).mean,
        "dynamics": coupling_dynamics(trace, planted.labels).mean,
        "straightness": float(straightness(routed.coupling, planted.votes).mean()),
        "right": float((routed.coupling.argmax(dim=-1) == planted.parents).double().mean()),
    }


def _share_of_class(tree: ParseTree) -> float:
    """Information on the class above chance, as a share of the entropy of the classes."""
    return max(tree.information - tree.chance, 0.0) / tree.possible
