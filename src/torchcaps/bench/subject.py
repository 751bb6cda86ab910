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
from torchcaps.training.objective import Objective, create_objective

PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class Subject:
    """A model by name with its options, and how many images it gets at once."""

    model: str = "capsnet"
    options: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 128

    def build(self) -> nn.Module:
        """The model, the same weights each time; its convolutions in channels-last memory."""
        model = create_model(self.model, generator=torch.Generator().manual_seed(0), **self.options)
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def data(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Images `[batch, channels, height, width]` in [0, 1], channels-last in memory, and labels `[batch]`."""
        generator = torch.Generator().manual_seed(1)
        images = torch.rand(self.batch, *image_shape(model), generator=generator)
        labels = torch.randint(int(model.num_classes), (self.batch,), generator=generator)  # type: ignore[arg-type]
        return images.contiguous(memory_format=torch.channels_last), labels


def image_shape(model: nn.Module) -> tuple[int, int, int]:
    """(channels, height, width) of a model's images.

    Raises:
        TypeError: for a module that does not say so, as the library's models do.
    """
    if not all(hasattr(model, name) for name in ("in_chans", "img_size", "num_classes")):
        raise TypeError(f"model: expected a model of create_model(), got {type(model).__name__}")
    height, width = model.img_size  # type: ignore[misc]
    return int(model.in_chans), height, width  # type: ignore[arg-type]


def objective_of(model: nn.Module) -> Objective:
    """The objective that the model is trained with; with reconstruction where it has a decoder."""
    if getattr(model, "decoder", None) is None:
        return create_objective(model, reconstruction=0.0)
    return create_objective(model)


def training_step(model: nn.Module, images: Tensor, labels: Tensor, precision: str) -> Callable[[], None]:
    """A function that makes one training step: the model's objective, then fused Adam.

    Args:
        model: what is trained, in place.
        images: `[batch, channels, height, width]` in [0, 1], on the CPU.
        labels: `[batch]` class indices.
        precision: "bf16" for autocast, anything else for fp32.
    """
    objective = objective_of(model)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = objective(images, labels).total
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
