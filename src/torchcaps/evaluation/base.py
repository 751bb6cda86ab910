"""What evaluations share: checks of their arguments, the base of their results, and running a model.

A model runs over many images in evaluation mode, without gradients, in bounded batches.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_floating, check_positive, check_range, check_shape
from torchcaps.transfer import (
    device_of as device_of,
    eval_mode as eval_mode,
    evaluating as evaluating,
    widen as widen,
)
from torchcaps.types import ModelSpec, declares, find_network, model_metadata, spec_of
from torchcaps.words import in_words, rounded

Images = Float[Tensor, "n channels height width"]
Labels = Int64[Tensor, " n"]
Activations = Float[Tensor, "n classes"]
Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps activations `[batch, classes]` and labels `[batch]` to their mean loss."""
Progress = Callable[[int, int], None]
Json = dict[str, Any]
Row = tuple[str, ...]  # of a table
Series = tuple[float, ...]
"""A figure at each amount, iteration or layer, in their order."""

BATCH = 256
IMAGE_AXES = ("batch", "channels", "height", "width")

# A length computed in bfloat16 may round a little above one; a logit lies far outside.
ROUNDING = 0.01


class TextTable(NamedTuple):
    """A table as text."""

    heads: Row  # of the columns
    rows: Sequence[Row]

    @property
    def lines(self) -> list[Row]:
        """The heading, then the rows."""
        return [self.heads, *self.rows]


@dataclass(frozen=True)
class EvaluationResult:
    """Base of the dataclasses that evaluations return.

    A subclass lists in `derived` the properties that belong in the JSON too, and writes its own
    `summary` and `table` where its numbers alone are not enough.
    """

    derived: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[Mapping[str, float]] = {}  # metrics that a run asks for; see `with_extra`

    def to_dict(self) -> Json:
        """The figures, ready for JSON, with the derived ones."""
        parts = {
            name: part.to_dict()
            for name, part in vars(self).items()
            if isinstance(part, EvaluationResult)
        }
        derived = {name: getattr(self, name) for name in self.derived}
        return asdict(self) | parts | derived | dict(self.extra)

    def with_extra(self, extra: Mapping[str, float]) -> Self:
        """A copy with further metrics by name, which go into the JSON."""
        extended = copy(self)
        object.__setattr__(extended, "extra", dict(extra))
        return extended

    @property
    def extra_words(self) -> str:
        """`, brier score 0.1234` for a summary; nothing without extra metrics."""
        return "".join(f", {in_words(name)} {metric:.4f}" for name, metric in self.extra.items())

    @property
    def numbers(self) -> dict[str, float | None]:
        """The figures that are single numbers, by name in words; None where one is not known."""
        return {
            in_words(name): figure
            for name, figure in self.to_dict().items()
            if figure is None or isinstance(figure, int | float)
        }

    @property
    def summary(self) -> str:
        """One line."""
        return ", ".join(f"{name} {rounded(number)}" for name, number in self.numbers.items())

    def table(self) -> TextTable:
        """A row for each number."""
        return TextTable(
            ("figure", "value"), [(name, rounded(number)) for name, number in self.numbers.items()]
        )


@dataclass(frozen=True)
class MetricResult(EvaluationResult):
    """Figures of a task that has no evaluation of its own."""

    figures: dict[str, float]
    num_samples: int
    score: str  # name of the figure that models are chosen by

    @property
    def summary(self) -> str:
        """`accuracy 0.9712 on 1,000 images`."""
        return (
            f"{in_words(self.score)} {self.figures[self.score]:.4f} on {self.num_samples:,} images"
        )

    def to_dict(self) -> Json:
        return {**self.figures, **self.extra, "num_samples": self.num_samples}


def capsule_model(model: nn.Module, *, decoder: bool = False) -> Any:
    """Return a model that has class capsules with poses, and so a method `capsules`.

    Args:
        model: any model.
        decoder: whether it must have a decoder, and so a method `reconstruct`, too.

    Raises:
        ArgumentError: for a model that does not declare them.
    """
    spec = spec_of(model)
    if not spec.pose or (decoder and not spec.decoder):
        raise ArgumentError(
            "model",
            f"expected one with class capsules{' and a decoder' if decoder else ''}, "
            f"got {type(model).__name__}",
        )
    return find_network(model)


def check_labels(labels: Tensor, num_classes: int | None = None, **sizes: int) -> None:
    """Check that labels are `[n]` int64 class indices, n at least 1.

    Args:
        labels: the labels.
        num_classes: number of classes; without it any index from 0 is accepted.
        sizes: `n`, where their number is known.

    Raises:
        ArgumentError: for other labels.
    """
    check_shape("labels", labels, ("n",), **sizes)
    check_range("number of labels", len(labels), low=1)
    if labels.dtype != torch.int64:
        raise ArgumentError("labels", f"expected int64 class indices, got {labels.dtype}")
    for label in labels.aminmax():
        check_range("labels", int(label), 0, None if num_classes is None else num_classes - 1)


def check_scores(activations: Tensor, labels: Tensor, **sizes: int) -> None:
    """Check the activations `[n, classes]` of images, up to rounding in [0, 1], and their labels.

    Args:
        activations: lengths of capsules, or probabilities; no logits.
        labels: the true classes.
        sizes: `classes`, where their number is known.

    Raises:
        ArgumentError: for other activations or labels.
    """
    check_shape("activations", activations, ("n", "classes"), n=len(labels), **sizes)
    check_labels(labels, activations.shape[1])
    check_shares("activations", activations, ROUNDING)


def check_shares(argument: str, numbers: Tensor, slack: float = 0) -> None:
    """Check that all numbers are in [0, 1], or beyond by the slack.

    Raises:
        ArgumentError: for other numbers, such as logits and NaN.
    """
    for number in numbers.detach().aminmax():
        check_range(argument, float(number), -slack, 1 + slack)


def check_like(argument: str, tensor: Tensor, reference: Tensor, axes: Sequence[str]) -> None:
    """Check that a tensor has the shape of another, with these axes.

    Raises:
        ArgumentError: for another shape.
    """
    check_shape(argument, tensor, axes, **dict(zip(axes, reference.shape, strict=True)))


def check_images(images: Tensor) -> None:
    """Check that images are floating-point `[batch, channels, height, width]`, batch at least 1.

    Raises:
        ArgumentError: for other images.
    """
    check_shape("images", images, IMAGE_AXES)
    check_floating(images=images)
    check_range("number of images", len(images), low=1)


def check_labeled(images: Tensor, labels: Tensor) -> None:
    """Check that images are in [0, 1], and that there is a label for each.

    Raises:
        ArgumentError: for other images or labels.
    """
    check_images(images)
    check_labels(labels, n=len(images))
    check_shares("images", images)


def activations_of(model: nn.Module, images: Tensor, spec: ModelSpec | None = None) -> Activations:
    """Return what a model gives for the classes, in float32; the softmax of logits.

    Args:
        model: any model.
        images: `[batch, channels, height, width]`, on its device.
        spec: what a model that declares nothing is taken for.
    """
    outputs: Tensor = model(images).float()
    if declares(model) or model_metadata(model).spec is not None:
        spec = spec_of(model)
    has_logits = spec is not None and spec.activation == "logit" and outputs.dim() == 2
    return outputs.softmax(dim=1) if has_logits else outputs


def image_activations(model: nn.Module, images: Images, *, batch_size: int = BATCH) -> Activations:
    """Run a classifier over images, a batch at a time.

    Args:
        model: maps images to `[batch, classes]`.
        images: `[n, channels, height, width]` in [0, 1].
        batch_size: images at a time.

    Returns:
        `[n, classes]` activations, as float32 on the CPU.

    Raises:
        ArgumentError: for images that do not fit, or a model that gives other axes.
    """
    check_images(images)
    with evaluating(model):
        parts = [
            activations_of(model, batch).cpu()
            for batch, _ in batches(model, images, batch_size=batch_size)
        ]
    check_shape("output of the model", parts[0], ("batch", "classes"))
    return torch.cat(parts)


def batches(
    model: nn.Module,
    images: Images,
    labels: Labels | None = None,
    *,
    batch_size: int = BATCH,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over images and labels, a batch at a time, on the device of the model.

    Args:
        model: gives the device.
        images: `[n, channels, height, width]`.
        labels: `[n]`; by default the numbers of the images.
        batch_size: images at a time.

    Raises:
        ArgumentError: for a batch size below 1.
    """
    check_positive(batch_size=batch_size)
    device = device_of(model)
    if labels is None:
        labels = torch.arange(len(images))
    pairs = zip(images.split(batch_size), labels.split(batch_size), strict=True)
    for image_batch, label_batch in pairs:
        yield image_batch.to(device), label_batch.to(device)


def right_answers(model: nn.Module, images: Images, labels: Labels) -> Bool[Tensor, " n"]:
    """Return whether the largest activation of each image is that of its label.

    Args:
        model: maps images to `[batch, classes]`.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.

    Returns:
        `[n]` booleans on the CPU.

    Raises:
        ArgumentError: for a label that is no class of the model.
    """
    activations = image_activations(model, images)
    check_labels(labels, activations.shape[1])
    return activations.argmax(dim=1) == labels.cpu()


def proportion(flags: Bool[Tensor, "*shape"]) -> float:
    """Return the part of the flags that is true, in [0, 1]."""
    return float(widen(flags).mean())
