"""The networks that are measured, put to work as `torchcaps train` does it."""

import argparse
import json
import runpy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

import torchcaps as tc
from benchmarks.report import positive
from benchmarks.timing import peak_of
from torchcaps.data import Batch
from torchcaps.tasks import create_task
from torchcaps.training import TrainConfig
from torchcaps.types import spec_of

PRECISIONS = ("fp32", "bf16")
NUM_STEPS = 3  # the second is the first with the optimizer's state


@dataclass(frozen=True)
class Workload:
    """A model, and the number of images that it is given at once.

    Attributes:
        model: its name.
        options: of the model.
        batch: number of images.
        impl: of its operators, see `torchcaps.set_impl`.
    """

    model: str = "capsnet"
    options: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 128
    impl: tc.ops.Impl = "auto"

    def build(self) -> nn.Module:
        """The model, with the same weights each time, its convolutions in channels-last memory."""
        generator = torch.Generator().manual_seed(0)
        model = tc.create_model(self.model, generator=generator, **self.options)
        tc.set_impl(model, self.impl)
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


def training_step(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    precision: str,
) -> Callable[[], None]:
    """A function that makes one training step of a model, in place, with fused Adam.

    The model is trained as by default: with reconstruction where it has a decoder.

    Args:
        model: on the device of the images.
        images: `[batch, channels, height, width]` in [0, 1].
        labels: `[batch]`, or `[batch, height, width]` of a model of pixels.
        precision: "fp32", or "bf16" for autocast.
    """
    task = create_task(model, TrainConfig()).to(images.device).train()
    batch = Batch(images, {"label": labels, "mask": labels}, labels)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=images.is_cuda)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast(images.device, precision):
            loss = task.training_step(batch, 0.0)["loss"]
        loss.backward()
        optimizer.step()

    return step


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Autocast to bfloat16 for "bf16", none for "fp32"."""
    return torch.autocast(
        device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False
    )


def peak(workload: dict[str, Any], precision: str) -> dict[str, float]:
    """Resident memory in MiB before the model exists, and at most until it has made a few steps."""
    subject = Workload(**workload)

    def run() -> None:
        model = subject.build()
        step = training_step(model, *subject.data(model), precision)
        for _ in range(NUM_STEPS):
            step()

    return peak_of(run)


def add_workload(parser: argparse.ArgumentParser, batch: int = 128) -> None:
    """Add `--model`, `--option`, `--import`, `--batch` and `--precision`."""
    parser.add_argument("--model", default="capsnet", metavar="NAME")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the model, such as channels=64; may be given several times",
    )
    add_import(parser)
    parser.add_argument("--batch", type=positive, default=batch, help="images at once")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)


def add_import(parser: argparse.ArgumentParser) -> None:
    """Add `--import FILE`, which is run at once: it may register routers and models."""
    parser.add_argument(
        "--import", type=import_file, dest="imports", metavar="FILE", help="with routers or models"
    )


def import_file(path: str) -> str:
    """Run a file of Python; returns its path."""
    runpy.run_path(path)
    return path


def workload_of(options: argparse.Namespace) -> Workload:
    """The workload of a command line."""
    pairs = (text.partition("=") for text in options.option)
    return Workload(options.model, {name: _value(v) for name, _, v in pairs}, options.batch)


def _value(text: str) -> Any:
    """A value of an option: JSON where it is, else text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
