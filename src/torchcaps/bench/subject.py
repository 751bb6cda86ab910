"""The network that is measured: a model of the library, put before the work as `torchcaps train` puts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.bench.baselines import iterations_of
from torchcaps.models import create_model
from torchcaps.nn import CapsuleLinear
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task, create_task
from torchcaps.tasks.classify import Batch

PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class Subject:
    """A model by name with its options, and how many images it gets at once."""

    model: str = "capsnet"
    options: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 128

    def build(self) -> Any:
        """The model, the same weights each time; its convolutions in channels-last memory."""
        model = create_model(self.model, generator=torch.Generator().manual_seed(0), **self.options)
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
        return model

    def data(self, model: Any) -> tuple[Tensor, Tensor]:
        """Images `[batch, channels, height, width]` in [0, 1], channels-last in memory, and labels `[batch]`."""
        generator = torch.Generator().manual_seed(1)
        images = torch.rand(self.batch, *image_shape(model), generator=generator)
        labels = torch.randint(model.num_classes, (self.batch,), generator=generator)
        return images.contiguous(memory_format=torch.channels_last), labels


def image_shape(model: Any) -> tuple[int, int, int]:
    """(channels, height, width) of a model's images.

    Raises:
        TypeError: for a module that does not say so, as the library's models do.
    """
    try:
        height, width = model.img_size
        return model.in_chans, height, width
    except AttributeError:
        raise TypeError(f"model: expected a model of create_model(), got {type(model).__name__}") from None


def loss_of(task: Task, images: Tensor, labels: Tensor) -> Tensor:
    """The loss of a batch at the start of the training."""
    loss: Tensor = task(Batch(images, labels), 0.0)["loss"]
    return loss


def task_of(model: nn.Module) -> Task:
    """What the model is trained for; with reconstruction where it has a decoder."""
    return create_task(model, TrainConfig())


def training_step(model: nn.Module, images: Tensor, labels: Tensor, precision: str) -> Callable[[], None]:
    """A function that makes one training step: the loss of the model's task, then fused Adam.

    Args:
        model: what is trained, in place.
        images: `[batch, channels, height, width]` in [0, 1], on the CPU.
        labels: `[batch]` class indices.
        precision: "bf16" for autocast, anything else for fp32.
    """
    task = task_of(model)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(task, images, labels)
        loss.backward()
        optimiser.step()

    return step


def routed_layer(model: nn.Module) -> tuple[str, CapsuleLinear]:
    """Name and module of a model's last capsule layer, the one that the variants take the place of.

    Raises:
        ValueError: if it has none, or one whose routing the variants do not compute.
    """
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, CapsuleLinear)]
    if not found:
        raise ValueError(f"model: expected one with a CapsuleLinear, got {type(model).__name__}")
    iterations_of(found[-1][1])
    return found[-1]
