"""record_routing: look at couplings and activations while a model runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.types import Routed


class Recorded(NamedTuple):
    """What one routed layer did in one forward pass; detached from the graph.

    Attributes:
        coupling: `[batch, *space, children, parents]`, in [0, 1]; sums to one over parents.
        activation: the parents', `[batch, *space, parents]`, in [0, 1].
        child_activation: the children's, `[batch, *space, children]`, in [0, 1].
        pose: the parents', `[batch, *space, parents, dim]`.
    """

    coupling: Float[Tensor, "*batch children parents"]
    activation: Float[Tensor, "*batch parents"]
    child_activation: Float[Tensor, "*batch children"]
    pose: Float[Tensor, "*batch parents dim"]

    @classmethod
    def of(cls, child_activation: Tensor, routed: Routed) -> Recorded:
        """Detached copy of a layer's outcome.

        Raises:
            ValueError: if the router returned no coupling.
        """
        if routed.coupling is None:
            raise ValueError("record_routing: this router returned no coupling")
        return cls(
            routed.coupling.detach(), routed.activation.detach(), child_activation.detach(), routed.pose.detach()
        )


class RoutedLayer(nn.Module):
    """Base of layers that route: `record_routing` hands them a list to write to while it is open."""

    recorder: list[Recorded] | None = None

    def record(self, recorded: Recorded) -> None:
        """Keep what this forward pass did, if anybody asked."""
        if self.recorder is not None:
            self.recorder.append(recorded)

    def __getstate__(self) -> dict[str, object]:
        """A copied or pickled layer does not write to its original's recorder."""
        return {key: value for key, value in self.__dict__.items() if key != "recorder"}


class RoutingRecord(dict[str, list[Recorded]]):
    """Recordings by layer name; `record["class_capsules"]` is a list with one entry per forward pass."""

    def last(self) -> dict[str, Recorded]:
        """The newest recording of each layer that ran."""
        return {name: recordings[-1] for name, recordings in self.items() if recordings}


@contextmanager
def record_routing(model: nn.Module) -> Iterator[RoutingRecord]:
    """Collect what every routed layer of `model` does while the block runs.

    Args:
        model: any module that holds routed layers (`CapsuleLinear`, ...).

    Yields:
        RoutingRecord: layer name -> list of Recorded, one for each forward pass.

    Raises:
        ValueError: if the model has no routed layer.

    Example:
        >>> with record_routing(model) as record:
        ...     activation = model(images)
        >>> record["class_capsules"][-1].coupling.shape  # [batch, children, parents]
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, RoutedLayer)}
    if not layers:
        raise ValueError(f"record_routing: {type(model).__name__} has no routed layer")
    before = {name: layer.recorder for name, layer in layers.items()}
    record = RoutingRecord({name: [] for name in layers})
    for name, layer in layers.items():
        layer.recorder = record[name]
    try:
        yield record
    finally:
        for name, layer in layers.items():
            layer.recorder = before[name]
