"""The networks that are measured, put to work as `torchcaps train` does it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from torchcaps.bench.baselines import iterations_of
from torchcaps.data import Batch
from torchcaps.errors import ArgumentError
from torchcaps.evaluation.forward import autocast
from torchcaps.models import create_model
from torchcaps.nn import CapsuleLinear
from torchcaps.settings import ModelSettings, TrainConfig
from torchcaps.tasks import Task, create_task
from torchcaps.types import spec_of

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Workload:
    """A model, and the number of images that it is given at once.

    Attributes:
        model: its name.
        options: of the model.
        batch: number of images.
    """

    model: str = ModelSettings.name
    options: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 128

    def build(self) -> nn.Module:
        """The model, with the same weights each time, its convolutions in channels-last memory."""
        model = create_model(self.model, generator=torch.Generator().manual_seed(0), **self.options)
        convert_conv2d_weight_memory_format(model, torch.channels_last)
        return model

    def data(self, model: Any) -> tuple[Tensor, Tensor]:
        """Random images and labels for a model.

        Returns:
            Images `[batch, channels, height, width]` in [0, 1], channels-last in memory; and labels
            `[batch]`, or `[batch, height, width]` of a model of pixels.
        """
        generator = torch.Generator().manual_seed(1)
        images = torch.rand(self.batch, model.in_chans, *model.img_size, generator=generator)
        pixels = model.img_size if spec_of(model).is_dense else ()
        labels = torch.randint(model.num_classes, (self.batch, *pixels), generator=generator)
        return images.contiguous(memory_format=torch.channels_last), labels


def task_of(model: nn.Module) -> Task:
    """What the model is trained for; with reconstruction where it has a decoder."""
    return create_task(model, TrainConfig())


def training_step(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    precision: str,
) -> Callable[[], None]:
    """A function that makes one training step of a model, in place, with fused Adam.

    Args:
        model: on the CPU.
        images: `[batch, channels, height, width]` in [0, 1].
        labels: `[batch]`, or `[batch, height, width]` of a model of pixels.
        precision: "fp32", or "bf16" for autocast.
    """
    task = task_of(model)
    batch = Batch(images, {"label": labels, "mask": labels}, labels)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast(CPU, precision):
            loss = task.training_step(batch, 0.0)["loss"]
        loss.backward()
        optimizer.step()

    return step


def answer_of(model: nn.Module, images: Tensor, precision: str) -> Callable[[], object]:
    """A function that makes one forward pass without gradients; see `training_step`."""

    def answer() -> object:
        with torch.inference_mode(), autocast(CPU, precision):
            return model(images)

    return answer


def routed_layer(model: nn.Module) -> tuple[str, CapsuleLinear]:
    """Name and module of a model's last capsule layer, which variants take the place of.

    Raises ArgumentError if there is none, or one whose routing the variants do not compute.
    """
    routed = None
    for name, module in model.named_modules():
        if isinstance(module, CapsuleLinear):
            routed = name, module
    if routed is None:
        kind = type(model).__name__
        raise ArgumentError("model", f"expected one with a CapsuleLinear, got {kind}")
    iterations_of(routed[1])
    return routed
