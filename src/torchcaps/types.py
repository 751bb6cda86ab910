"""What flows between capsule layers, and what a model declares of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn


class Capsules(NamedTuple):
    """A set of capsules.

    Attributes:
        pose: `[batch, *space, num_capsules, pose_dim]`; matrix poses are flat, row-major.
        activation: `[batch, *space, num_capsules]`, in [0, 1]; for vector capsules the length of the pose.
    """

    pose: Float[Tensor, "batch *space capsules dim"]
    activation: Float[Tensor, "batch *space capsules"]


class LayerSizes(NamedTuple):
    """What a router learns from the layer that builds it."""

    children: int  # that have matrices of their own, at each position of the parents
    in_dim: int  # dimensions of a child's pose
    parents: int  # at each position
    dim: int  # dimensions of a vote


class Routed(NamedTuple):
    """What a routing function returns.

    Attributes:
        pose: `[batch, *space, parents, pose_dim]`.
        activation: `[batch, *space, parents]`, in [0, 1] where the router says that it means something.
        coupling: `[batch, *space, children, parents]`; of most routers in [0, 1] and of sum one over the parents that
            compete for a child (at most one where a routing has a "none of the above" parent). None where a fast path
            was not asked for it.
        more: what else a router tells, by name: logits, couplings before they are normalized; see `with_extras`.
    """

    pose: Float[Tensor, "batch *space parents dim"]
    activation: Float[Tensor, "batch *space parents"]
    coupling: Float[Tensor, "batch *space children parents"] | None

    @property
    def more(self) -> dict[str, Tensor]:
        """What else a router tells, by name; nothing unless it said so."""
        return {}

    def with_extras(self, **more: Tensor) -> Routed:
        """The same three, with tensors of other names beside them; `record_routing` keeps them."""
        found = _RoutedAndMore(*self)
        found.named = {**self.more, **more}
        return found


class _RoutedAndMore(Routed):
    """A subclass of its own, so that unpacking gives three tensors."""

    named: dict[str, Tensor]

    @property
    def more(self) -> dict[str, Tensor]:
        return self.named


@dataclass(frozen=True)
class ModelSpec:
    """What a model declares of itself, as its attribute `spec`; nobody finds it out by other means.

    Attributes:
        pose: `capsules(images)` gives capsules with poses.
        activation: meaning of its outputs: the "length" of a pose, a "probability" in [0, 1], a "logit" (any number),
            or "none", where nothing tells whether a capsule is present.
        decoder: `reconstruct(capsules)` draws images.
        logits: `logits(images)` gives what `probabilities(logits)` are made of.
        multilabel: an image may show several classes: its probabilities are of each class by itself.
        is_dense: its outputs are of each pixel: `[batch, classes - 1, height, width]`, a map for each class but the
            first one, which is the background; `capsules(images)` then has the pixels as positions.
        smallest: side of the smallest image it takes, in pixels.
        task: what it is trained for, unless a run says otherwise; a name of `tasks.list_tasks()`.
        loss: what it is trained with, unless a run says otherwise; a name of a loss of that task.
    """

    pose: bool = False
    activation: Literal["length", "probability", "logit", "none"] = "logit"
    decoder: bool = False
    logits: bool = False
    multilabel: bool = False
    is_dense: bool = False
    smallest: int = 1
    task: str = "classify"
    loss: str = "cross_entropy"


def declares(model: nn.Module) -> bool:
    """Whether a model says what it is."""
    return isinstance(getattr(model, "spec", None), ModelSpec)


def spec_of(model: nn.Module) -> ModelSpec:
    """What a model declares; a module that declares nothing is trained as a classifier that returns logits."""
    declared = getattr(model, "spec", None)
    return declared if isinstance(declared, ModelSpec) else ModelSpec()
