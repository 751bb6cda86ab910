"""What evaluations share: the types of their arguments, what they ask of them, and the base of their results."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_shape
from torchcaps.types import spec_of
from torchcaps.words import in_words, rounded

Images = Float[Tensor, "n channels height width"]
Labels = Int64[Tensor, " n"]
Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps activations `[batch, classes]` and labels `[batch]` to their mean loss."""
Progress = Callable[[int, int], None]

BATCH = 256


class TextTable(NamedTuple):
    """A table as text."""

    heads: tuple[str, ...]  # of the columns
    rows: Sequence[tuple[str, ...]]

    @property
    def lines(self) -> list[tuple[str, ...]]:
        """The heading, then the rows."""
        return [self.heads, *self.rows]


@dataclass(frozen=True)
class EvaluationResult:
    """Base of the dataclasses that evaluations return.

    A subclass says in `derived` which of its properties belong in the JSON too, and writes its own
    `summary` and `table` where its numbers alone do not say enough.
    """

    derived: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[Mapping[str, float]] = {}  # metrics that a run asks for; see `with_extra`

    def to_dict(self) -> dict[str, Any]:
        """The figures, ready for JSON, with the derived ones."""
        parts = {
            name: value.to_dict()
            for name, value in vars(self).items()
            if isinstance(value, EvaluationResult)
        }
        derived = {name: getattr(self, name) for name in self.derived}
        return asdict(self) | parts | derived | dict(self.extra)

    def with_extra(self, extra: Mapping[str, float]) -> Self:
        """A copy with further metrics by name, which go into the JSON."""
        result = copy(self)
        object.__setattr__(result, "extra", dict(extra))
        return result

    @property
    def extra_words(self) -> str:
        """`, brier score 0.1234` for a summary; nothing without extra metrics."""
        return "".join(f", {in_words(name)} {value:.4f}" for name, value in self.extra.items())

    @property
    def numbers(self) -> dict[str, float | None]:
        """The figures that are single numbers, by name in words; None where one is not known."""
        return {
            in_words(name): value
            for name, value in self.to_dict().items()
            if value is None or isinstance(value, int | float)
        }

    @property
    def summary(self) -> str:
        """One line."""
        return ", ".join(f"{name} {rounded(value)}" for name, value in self.numbers.items())

    def table(self) -> TextTable:
        """A row for each number."""
        rows = [(name, rounded(value)) for name, value in self.numbers.items()]
        return TextTable(("figure", "value"), rows)


@dataclass(frozen=True)
class MetricResult(EvaluationResult):
    """Figures of a task that has no evaluation of its own."""

    figures: dict[str, float]
    num_samples: int
    score: str  # name of the figure that models are chosen by

    @property
    def summary(self) -> str:
        """`accuracy 0.9712 on 1,000 images`."""
        score = f"{in_words(self.score)} {self.figures[self.score]:.4f}"
        return f"{score} on {self.num_samples:,} images"

    def to_dict(self) -> dict[str, Any]:
        return {**self.figures, **self.extra, "num_samples": self.num_samples}


class LabeledImages(Protocol):
    """What an evaluation needs of a data set."""

    @property
    def labels(self) -> Tensor:
        """`[n]` int64 class indices."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of each class."""

    def float_images(self, indices: Tensor) -> Tensor:
        """`[len(indices), channels, height, width]` float32 images in [0, 1]."""


def capsule_model(model: nn.Module, *, decoder: bool = False) -> Any:
    """`model`, if it declares class capsules with poses, and where asked for a decoder, too: then it has `capsules`,
    and `reconstruct`. Raises ValueError for another model."""
    spec = spec_of(model)
    if not spec.pose or (decoder and not spec.decoder):
        parts = "class capsules and a decoder" if decoder else "class capsules"
        raise ArgumentError("model", f"expected one with {parts}, got {type(model).__name__}")
    return model


def check_labels(labels: Tensor, classes: int | None = None) -> None:
    """Raise ValueError unless `labels` are `[n]` int64 indices of `classes` classes, n at least 1; without a number of
    classes, any index from 0 is good."""
    check_shape("labels", labels, ("n",))
    if len(labels) == 0:
        raise ArgumentError("labels", "expected at least one sample, got none")
    check_indices(labels, classes)


def check_indices(labels: Tensor, classes: int | None = None) -> None:
    """Raise ValueError unless `labels`, of any shape, at least one, are int64 indices of `classes` classes."""
    if labels.dtype != torch.int64:
        raise ArgumentError("labels", f"expected int64 class indices, got {labels.dtype}")
    low, high = int(labels.min()), int(labels.max())
    last = torch.iinfo(torch.int64).max if classes is None else classes - 1
    if low < 0 or high > last:
        raise ArgumentError(
            "labels", f"expected class indices from 0 to {last}, got {low if low < 0 else high}"
        )


def check_lengths(activations: Tensor) -> None:
    """Raise ValueError unless all activations are in [0, 1], which neither logits nor NaN are."""
    # A length computed in bfloat16 may round a little above one; a logit lies far outside.
    low, high = float(activations.min()), float(activations.max())
    if not (low >= -0.01 and high <= 1.01):
        raise ArgumentError(
            "activations",
            f"expected lengths in [0, 1], not logits, got values from {low:.4g} to {high:.4g}",
        )


def check_images(images: Tensor) -> None:
    """Raise ValueError unless `images` are floating-point `[batch, channels, height, width]`, batch at least 1."""
    check_shape("images", images, ("batch", "channels", "height", "width"))
    if not images.is_floating_point():
        raise ArgumentError(
            "images", f"expected floating-point values in [0, 1], got {images.dtype}"
        )
    if len(images) == 0:
        raise ArgumentError("images", "expected at least one image, got none")


def check_labeled(images: Tensor, labels: Tensor) -> None:
    """Raise ValueError unless `images` are pictures in [0, 1] and `labels` `[n]` go with them."""
    check_images(images)
    check_labels(labels)
    check_shape("labels", labels, ("n",), n=len(images))
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):
        raise ArgumentError(
            "images", f"expected pixels in [0, 1], got values from {low:.4g} to {high:.4g}"
        )
