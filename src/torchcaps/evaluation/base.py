"""What evaluations share: the types of their arguments, and the base of the figures that they return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, cast

from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.types import Capsules, spec_of

Images = Float[Tensor, "n channels height width"]
Labels = Int64[Tensor, " n"]
Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps activations `[batch, classes]` and labels `[batch]` to their mean loss."""
Progress = Callable[[int, int], None]

BATCH = 256


@dataclass(frozen=True)
class Figures:
    """Base of the dataclasses that evaluations return; `derived` names the properties that belong in the JSON, too."""

    derived: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, with the derived figures of figures within these."""
        parts = {name: value.to_dict() for name, value in vars(self).items() if isinstance(value, Figures)}
        return asdict(self) | parts | {name: getattr(self, name) for name in self.derived}


class LabelledImages(Protocol):
    """What an evaluation needs of a data set.

    Attributes:
        labels: `[n]` int64 class indices.
        classes: the names of the classes; index i is called `classes[i]`.
    """

    @property
    def labels(self) -> Tensor: ...  # noqa: D102

    @property
    def classes(self) -> tuple[str, ...]: ...  # noqa: D102

    def float_images(self, indices: Tensor) -> Tensor:
        """`[len(indices), channels, height, width]` float32 images in [0, 1]."""
        ...


class CapsuleModel(Protocol):
    """What a model that declares poses, and perhaps a decoder, can do: class capsules with pose `[batch, classes, dim]`
    and activation `[batch, classes]`; images `[batch, channels, height, width]` drawn from the labelled ones."""

    def capsules(self, images: Tensor) -> Capsules: ...  # noqa: D102

    def reconstruct(self, capsules: Capsules, labels: Tensor | None = None) -> Tensor: ...  # noqa: D102


def capsule_model(model: nn.Module, *, decoder: bool = False) -> CapsuleModel:
    """`model`, if it declares class capsules with poses, and where asked for a decoder, too. Raises ValueError for
    another model."""
    spec = spec_of(model)
    if not spec.pose or (decoder and not spec.decoder):
        parts = "class capsules and a decoder" if decoder else "class capsules"
        raise ValueError(f"model: expected one with {parts}, got {type(model).__name__}")
    return cast(CapsuleModel, model)
