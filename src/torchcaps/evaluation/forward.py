"""Running a model over many images: evaluation mode, bounded batches, nothing left changed; and what is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from torchcaps.errors import UnknownNameError, check_range, check_shape

Images = Float[Tensor, "n channels height width"]
Labels = Int64[Tensor, " n"]
Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps activations `[batch, classes]` and labels `[batch]` to their mean loss."""
Progress = Callable[[int, int], None]

BATCH = 256
PRECISIONS = ("bf16", "fp32")


@dataclass(frozen=True)
class Figures:
    """Base of the dataclasses that evaluations return; `derived` names the properties that belong in the JSON, too."""

    derived: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self) | {name: getattr(self, name) for name in self.derived}


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


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every submodule has its own training flag back."""
    with eval_mode(model), torch.inference_mode():
        yield


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode with gradients; afterwards every submodule has its own training flag back."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training


def device_of(model: nn.Module) -> torch.device:
    """The device of the first parameter or buffer; the CPU for a model without either."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The autocast context for "fp32" (off) or "bf16".

    Raises:
        UnknownNameError: (a ValueError) for another precision.
    """
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS)
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def class_activations(
    model: nn.Module, dataset: LabelledImages, batch_size: int = BATCH, *,
    device: torch.device | str | None = None, precision: str = "fp32", progress: Progress | None = None,
) -> Float[Tensor, "n classes"]:  # fmt: skip
    """`model(images)` for the whole data set, in order, as `[n, classes]` float32 on the CPU.

    Args:
        model: its mode is restored afterwards.
        dataset: the images.
        batch_size: images at a time, at least 1; it bounds the memory and changes no figure.
        device: where to compute; the model is moved there and stays. By default where the model is.
        precision: "fp32", or "bf16" for autocast.
        progress: called with (samples done, samples in all) after each batch.

    Raises:
        ValueError: if the model does not give one activation per class of the data set, for an unknown precision, or a
            batch size below 1.
    """
    check_range("batch_size", batch_size, low=1)
    place = device_of(model) if device is None else torch.device(device)
    model.to(place)
    count, classes, parts = len(dataset.labels), len(dataset.classes), []
    with evaluating(model), autocast(place, precision):
        for indices in torch.arange(count).split(batch_size):
            part = model(dataset.float_images(indices).to(place))
            if part.dim() != 2 or part.shape[1] != classes:
                raise ValueError(
                    f"model: expected [batch, classes={classes}] activations, one for each class of the data set, "
                    f"got {list(part.shape)}"
                )
            parts.append(part.float().cpu())
            if progress is not None:
                progress(int(indices[-1]) + 1, count)
    # Joined outside inference mode: an ordinary tensor, which autograd accepts.
    return torch.cat(parts)


def image_activations(model: nn.Module, images: Images, *, batch_size: int = BATCH) -> Float[Tensor, "n classes"]:
    """`model(images)` in evaluation mode, a batch at a time: `[n, classes]` float32 on the CPU.

    Args:
        model: any classifier; its mode is restored.
        images: `[n, channels, height, width]` in [0, 1], on any device, n at least 1.
        batch_size: at least 1; it bounds the memory and changes no figure.

    Raises:
        ValueError: for images that are no images, or a model that does not give `[batch, classes]`.
    """
    check_images(images)
    with evaluating(model):
        parts = [model(batch).float().cpu() for batch, _ in batches(model, images, batch_size=batch_size)]
    if parts[0].dim() != 2:
        raise ValueError(f"model: expected [batch, classes] activations, got {list(parts[0].shape)}")
    return torch.cat(parts)


def batches(
    model: nn.Module, images: Images, labels: Labels | None = None, *, batch_size: int = BATCH
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels (without any: the images' numbers) a batch at a time, on the model's device.

    Raises:
        ValueError: for a batch size below 1.
    """
    check_range("batch_size", batch_size, low=1)
    place = device_of(model)
    given = torch.arange(len(images)) if labels is None else labels
    for batch, some in zip(images.split(batch_size), given.split(batch_size), strict=True):
        yield batch.to(place), some.to(place)


def right_answers(
    model: nn.Module, images: Images, labels: Labels, batch_size: int = BATCH
) -> Bool[Tensor, " n"]:
    """`[n]` booleans on the CPU: whether the largest activation is that of the label.

    Raises:
        ValueError: for a label that is no class of the model.
    """
    found = image_activations(model, images, batch_size=batch_size)
    check_labels(labels, found.shape[1])
    return found.argmax(dim=1) == labels.cpu()


def proportion(flags: Bool[Tensor, "*shape"]) -> float:
    """The part of the flags that is true, in [0, 1]."""
    return float(flags.double().mean())


def check_labels(labels: Tensor, classes: int | None = None) -> None:
    """Raise ValueError unless `labels` are `[n]` int64 indices of `classes` classes, n at least 1.

    Without a number of classes, any index from 0 is good.
    """
    check_shape("labels", labels, ("n",))
    if len(labels) == 0:
        raise ValueError("labels: expected at least one sample, got none")
    check_indices(labels, classes)


def check_indices(labels: Tensor, classes: int | None = None) -> None:
    """Raise ValueError unless `labels`, of any shape with at least one entry, are int64 indices of `classes` classes."""
    if labels.dtype != torch.int64:
        raise ValueError(f"labels: expected int64 class indices, got {labels.dtype}")
    low, high = int(labels.min()), int(labels.max())
    last = torch.iinfo(torch.int64).max if classes is None else classes - 1
    if low < 0 or high > last:
        raise ValueError(f"labels: expected class indices from 0 to {last}, got {low if low < 0 else high}")


def check_lengths(activations: Tensor) -> None:
    """Raise ValueError unless all activations are in [0, 1], which neither logits nor NaN are."""
    # A length computed in bfloat16 may round a little above one; a logit lies far outside.
    low, high = float(activations.min()), float(activations.max())
    if not (low >= -0.01 and high <= 1.01):
        raise ValueError(
            f"activations: expected lengths in [0, 1], not logits, got values from {low:.4g} to {high:.4g}"
        )


def check_images(images: Tensor) -> None:
    """Raise ValueError unless `images` are floating-point `[batch, channels, height, width]`, batch at least 1."""
    check_shape("images", images, ("batch", "channels", "height", "width"))
    if not images.is_floating_point():
        raise ValueError(f"images: expected floating-point values in [0, 1], got {images.dtype}")
    if len(images) == 0:
        raise ValueError("images: expected at least one image, got none")


def check_same_shape(argument: str, tensor: Tensor, images: Tensor) -> None:
    """Raise ValueError, in the name of `argument`, unless `tensor` has the shape of `images`."""
    if tensor.shape != images.shape:
        raise ValueError(f"{argument}: expected the shape of images, {list(images.shape)}, got {list(tensor.shape)}")


def check_labelled(images: Tensor, labels: Labels, classes: int | None = None) -> None:
    """Raise ValueError unless `images` are pictures in [0, 1] and `labels` `[n]` go with them."""
    check_images(images)
    check_labels(labels, classes)
    check_shape("labels", labels, ("n",), n=len(images))
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):
        raise ValueError(f"images: expected pixels in [0, 1], got values from {low:.4g} to {high:.4g}")
