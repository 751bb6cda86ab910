"""Running a model over many images: evaluation mode, no gradients, bounded batches, nothing left changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import UnknownNameError
from torchcaps.ranks import Ranks, joined
from torchcaps.types import spec_of

Progress = Callable[[int, int], None]

PRECISIONS = ("bf16", "fp32")


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
    with still(model), torch.inference_mode():
        yield


@contextmanager
def still(model: nn.Module) -> Iterator[None]:
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


def activations_of(model: nn.Module, images: Tensor) -> Float[Tensor, "batch classes"]:
    """What `model(images)` gives for the classes, in float32; of a model that returns logits, their softmax."""
    outputs = model(images).float()
    return outputs.softmax(dim=1) if spec_of(model).activation == "logit" and outputs.dim() == 2 else outputs


def class_activations(
    model: nn.Module,
    dataset: LabelledImages,
    batch_size: int,
    *,
    device: torch.device,
    precision: str,
    progress: Progress | None,
) -> Float[Tensor, "n classes"]:
    """`model(images)` for the whole data set, in order, as `[n, classes]` float32 on the CPU.

    Raises:
        ValueError: if the model does not give one activation per class of the data set, or for an unknown precision.
    """
    count, batches = len(dataset.labels), []
    ranks = joined() if count >= joined().world else Ranks()
    with evaluating(model), autocast(device, precision):
        for indices in torch.arange(count)[ranks.rows(count)].split(batch_size):
            batch = activations_of(model, dataset.float_images(indices).to(device))
            _check_classes(batch, len(dataset.classes))
            batches.append(batch.cpu())
            if progress is not None:
                progress(int(indices[-1]) + 1, count)
    # Joined outside inference mode: an ordinary tensor, which autograd accepts.
    return ranks.cat(torch.cat(batches))


def _check_classes(activation: Tensor, classes: int) -> None:
    if activation.dim() != 2 or activation.shape[1] != classes:
        raise ValueError(
            f"model: expected [batch, classes={classes}] activations, one for each class of the data set, "
            f"got {list(activation.shape)}"
        )
