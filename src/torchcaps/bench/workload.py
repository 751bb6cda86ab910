"""The network that is measured: a model of the library, put before the work as `torchcaps train` puts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from torchcaps.bench.baselines import iterations_of
from torchcaps.models import create_model
from torchcaps.nn import CapsuleLinear
from torchcaps.training.objective import Objective, create_objective
from torchcaps.types import spec_of

PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class Workload:
    """A model by name with its options, and how many images it gets at once."""

    model: str = "capsnet"
    options: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 128

    def build(self) -> nn.Module:
        """The model, the same weights each time; its convolutions in channels-last memory."""
        model = create_model(self.model, generator=torch.Generator().manual_seed(0), **self.options)
        convert_conv2d_weight_memory_format(model, torch.channels_last)
        return model

    def data(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Images `[batch, channels, height, width]` in [0, 1], channels-last in memory, and labels `[batch]`."""
        generator = torch.Generator().manual_seed(1)
        images = torch.rand(self.batch, *image_shape(model), generator=generator)
        labels = torch.randint(cast(SizedModel, model).num_classes, (self.batch,), generator=generator)
        return images.contiguous(memory_format=torch.channels_last), labels


class SizedModel(Protocol):
    """What every model of the library says of its sizes."""

    in_chans: int
    img_size: tuple[int, int]
    num_classes: int


def image_shape(model: nn.Module) -> tuple[int, int, int]:
    """(channels, height, width) of a model's images. Raises TypeError for a module that does not say so, as the
    library's models do."""
    sized = cast(SizedModel, model)
    try:
        return sized.in_chans, *sized.img_size
    except AttributeError:
        raise TypeError(f"model: expected a model of create_model(), got {type(model).__name__}") from None


def objective_of(model: nn.Module) -> Objective:
    """The objective that the model is trained with; with reconstruction where it has a decoder."""
    return create_objective(model) if spec_of(model).decoder else create_objective(model, reconstruction=0.0)


def training_step(model: nn.Module, images: Tensor, labels: Tensor, precision: str) -> Callable[[], None]:
    """A function that makes one training step of the model, in place: its objective, then fused Adam.

    Images `[batch, channels, height, width]` are in [0, 1] on the CPU; "bf16" is autocast, another precision fp32.
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
    """Name and module of a model's last capsule layer, the one that the variants take the place of. Raises ValueError
    if it has none, or one whose routing the variants do not compute."""
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, CapsuleLinear)]
    if not found:
        raise ValueError(f"model: expected one with a CapsuleLinear, got {type(model).__name__}")
    iterations_of(found[-1][1])
    return found[-1]
