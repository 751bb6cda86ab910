"""What a training will take, before anything large is allocated: parameters and memory.

The model is built on the device "meta", and a training step is run on tensors without elements. A
training that cannot fit is refused with the nearest size or batch that does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from torchcaps.data import ImageFiles, ImageSet, dataset_info, list_datasets
from torchcaps.data.files import stream
from torchcaps.data.pixels import size_pair
from torchcaps.errors import ArgumentError
from torchcaps.models import create_model, list_models
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task, create_task
from torchcaps.training.available import available_memory
from torchcaps.training.checkpoint import build_model, describe_model
from torchcaps.training.defaults import complete_config
from torchcaps.training.device import resolve_precision
from torchcaps.training.memory import MemoryEstimate, estimate_step
from torchcaps.types import ModelMetadata, model_metadata, spec_of

GIB = 1 << 30
FLOAT_BYTES = 4
# Bytes that a training keeps for each parameter: weight, gradient, and two moments of Adam.
KEPT_BYTES = 16
# Bytes of each parameter in a checkpoint, which is put together in the memory of the CPU.
CHECKPOINT_BYTES = 12
# Bytes of activations over those of the images: more than any model of the library has.
MAX_ACTIVATION_RATIO = 20_000
# A model is large if its weights take this part of the memory.
LARGE_SHARE = 4
# Share of the memory of a step that advice counts on: it falls a little less than its images.
MARGIN = 0.8


class Cost(NamedTuple):
    """What a training takes.

    Attributes:
        name: of the model.
        num_parameters: of the model.
        num_decoder_parameters: those of its decoder among them.
        batch_size: images per step.
        memory: at the peak of a step; None for a model that cannot run on fake tensors.
        on_cpu: whether the training runs on the CPU.
    """

    name: str
    num_parameters: int
    num_decoder_parameters: int
    batch_size: int
    memory: MemoryEstimate | None
    on_cpu: bool

    @property
    def libraries(self) -> int:
        """Bytes of code."""
        return 0 if self.memory is None else self.memory.libraries

    @property
    def bytes_per_parameter(self) -> int:
        """Bytes of each parameter while a checkpoint is written."""
        return KEPT_BYTES + CHECKPOINT_BYTES if self.on_cpu else KEPT_BYTES

    @property
    def step_bytes(self) -> int:
        """Bytes that grow with the batch."""
        return 0 if self.memory is None else self.memory.activations + self.memory.workspace

    @property
    def num_bytes(self) -> int:
        """Bytes at the peak: of a step, or of a checkpoint."""
        total = 0 if self.memory is None else self.memory.total
        return max(total, self.bytes_per_parameter * self.num_parameters + self.libraries)

    def __str__(self) -> str:
        """One line for the reader of a training's messages."""
        line = f"{self.name}: {self.num_parameters:,} parameters"
        if self.num_decoder_parameters:
            share = self.num_decoder_parameters / self.num_parameters
            line += f", {share:.0%} of them in the decoder"
        if self.memory is None:
            return f"{line}; more than {format_bytes(self.num_bytes)} of memory"
        memory = f"about {format_bytes(self.num_bytes)} of memory with checkpoints"
        return f"{line}; {memory} at {self.batch_size} images a step"


def format_bytes(num_bytes: float) -> str:
    """`1.3 GiB`, `240 MiB`."""
    if num_bytes >= GIB:
        return f"{num_bytes / GIB:.1f} GiB"
    return f"{num_bytes / (1 << 20):.0f} MiB"


def bare_model(metadata: ModelMetadata, **changes: Any) -> nn.Module:
    """A model of `create_model` once more, on the device "meta".

    Args:
        metadata: of the model.
        changes: arguments of `create_model` in place of those that it was built with.
    """
    options = deepcopy(dict(metadata.options)) | changes  # a router in it stays untouched
    with torch.device("meta"):
        return create_model(metadata.name, **options)


def check_cost(
    model: nn.Module,
    config: TrainConfig,
    images: ImageSet,
    device: torch.device,
    *,
    limit: int | None = None,
    quick: bool = False,
) -> str:
    """Refuse a training that cannot fit into memory.

    Args:
        model: on the device "meta", built by `create_model`.
        config: of the run.
        images: to train on.
        device: of the training.
        limit: bytes that it may take; None is what the device has available.
        quick: return "" without an estimate where a rough bound fits.

    Returns:
        A line on its parameters and memory.

    Raises:
        ArgumentError: it needs more; the message has the nearest batch or size that fits.
    """
    if limit is None:
        limit = available_memory(device)
    task = create_task(model, config, images)
    config = complete_config(task, len(images))
    batch_size = config.training.batch_size or 1
    if quick and (limit is None or rough_bytes(model, images, batch_size) < limit):
        return ""
    precision = resolve_precision(config.training.precision, device)

    def estimate(batch_size: int) -> Cost:
        return estimate_cost(task, images, batch_size, device, precision)

    cost = estimate(batch_size)
    if limit is not None and cost.num_bytes > limit:
        argument, remedy = find_remedy(task, cost, limit, estimate)
        raise ArgumentError(
            argument,
            f"{cost}, where {format_bytes(limit)} are available; {remedy}",
        )
    return str(cost)


def check_run(
    config: TrainConfig, images: ImageSet, device: torch.device, *, quick: bool = False
) -> str:
    """`check_cost` of a run's model; "" for a backbone, which is read from a file."""
    if "backbone" in config.model.all_options:
        return ""
    with torch.device("meta"):
        model = build_model(describe_run_model(config, images))
    return check_cost(model, config, images, device, quick=quick)


def check_named_set(config: TrainConfig, device: torch.device, *, limit: int | None = None) -> None:
    """Refuse a run of a large model that cannot fit, before a named data set is read and resized.

    A model of few weights is checked when its images are read.

    Args:
        config: of the run; for data that is named by a path nothing is known yet.
        device: of the training.
        limit: bytes that it may take; None is what the device has available.

    Raises:
        ArgumentError: see `check_cost`.
    """
    data = config.data
    if limit is None:
        limit = available_memory(device)
    if limit is None or data.name not in list_datasets() or config.model.name not in list_models():
        return
    if "backbone" in config.model.all_options:
        return
    info = dataset_info(data.name)
    if len(info.classes) < ImageSet.min_classes:  # no images, such as sets of points
        return
    channels, *img_size = info.image_shape
    if data.img_size is not None:
        img_size = [*size_pair(data.img_size)]
    pixels = torch.zeros(1, channels, *img_size, dtype=torch.uint8)
    images = ImageSet(
        pixels.expand(info.train, -1, -1, -1),
        torch.zeros(info.train, dtype=torch.long),
        info.classes,
        info.name,
    )
    with torch.device("meta"):
        model = build_model(describe_run_model(config, images))
    is_small = KEPT_BYTES * count_parameters(model) <= limit // LARGE_SHARE
    if is_small or spec_of(model).is_dense:  # these images have no masks
        return
    if device.type == "cpu":
        limit -= info.train * images.images[0].numel()  # the images, a byte a value
    check_cost(model, config, images, device, limit=limit)


def describe_run_model(config: TrainConfig, images: ImageSet) -> dict[str, Any]:
    """Description of a run's model for its images; see `checkpoint.describe_model`."""
    return describe_model(
        config.model.name,
        config.model.all_options,
        images.classes,
        images.preprocess(images.img_size, images.in_chans, config.data.crop),
        config.task.name,
    )


def rough_bytes(model: nn.Module, images: ImageSet, batch_size: int) -> int:
    """Bytes that a training of a model surely does not exceed."""
    height, width = images.img_size
    values = batch_size * images.in_chans * height * width
    weight_bytes = (KEPT_BYTES + CHECKPOINT_BYTES) * count_parameters(model)
    return weight_bytes + MAX_ACTIVATION_RATIO * FLOAT_BYTES * values


def estimate_cost(
    task: Task,
    images: ImageSet,
    batch_size: int,
    device: torch.device,
    precision: str,
) -> Cost:
    """The cost of a training.

    Args:
        task: its model may be on the device "meta".
        images: to train on.
        batch_size: images per step.
        device: of the training.
        precision: "fp32" or "bf16".
    """
    model = task.model
    total = count_parameters(model)
    decoder_share = 0
    if task.spec.decoder and isinstance(getattr(model, "decoder", None), nn.Module):
        decoder_share = count_parameters(model.decoder)
    try:
        batch = sized_batch(task, images, batch_size)
        memory = estimate_step(task, batch, device, precision)
    except Exception:  # a step may do anything; what is wrong with it is said where it is run
        memory = None
    name = model_metadata(model).name or type(model).__name__
    return Cost(name, total, decoder_share, batch_size, memory, device.type == "cpu")


def count_parameters(module: nn.Module) -> int:
    """Number of parameters."""
    return sum(weight.numel() for weight in module.parameters())


def sized_batch(task: Task, images: ImageSet, batch_size: int) -> Any:
    """A batch of training images of which sizes and types alone are true: it is on "meta"."""
    sample = images.subset(range(min(2, len(images))))
    if isinstance(sample, ImageFiles):
        sample = replace(sample, workers=0)
    task.train()
    all_indices = torch.arange(len(sample), device=sample.images.device)
    for batch_images, indices in stream(sample, [all_indices]):
        batch = task.sample_batch(batch_images, indices, torch.Generator())

    def enlarge(tensor: Tensor) -> Tensor:
        shape = (batch_size, *tensor.shape[1:])
        return torch.empty_strided(shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    return tree_map_only(Tensor, enlarge, batch)


def find_remedy(
    task: Task, cost: Cost, limit: int, estimate: Callable[[int], Cost]
) -> tuple[str, str]:
    """The setting to change, and in words the changes with which a training fits.

    Args:
        task: its model is on the device "meta".
        cost: more than the limit.
        limit: bytes.
        estimate: returns the cost with another batch size.
    """
    argument = "img_size"
    remedies = []
    batch_size = largest_batch(task, cost, limit, estimate)
    if batch_size is not None:
        argument = "batch_size"
        remedies.append(f"batch_size={batch_size}")

    img_size = largest_size(task.model, cost, limit)
    if img_size is not None:
        height, width = img_size
        remedies.append(f"img_size={height}" if height == width else f"img_size={height}x{width}")
    decoder_bytes = cost.bytes_per_parameter * cost.num_decoder_parameters
    if decoder_bytes and cost.num_bytes - decoder_bytes <= limit:
        remedies.append("the option decoder=False")
    lighter = [name for name in task.light_models if name in list_models() and name != cost.name]
    if lighter:
        remedies.append(f"another model, such as {' or '.join(lighter)}")
    if not remedies:
        return argument, "it needs a machine with more memory"
    return argument, f"it fits with {', or '.join(remedies)}"


def largest_batch(
    task: Task, cost: Cost, limit: int, estimate: Callable[[int], Cost]
) -> int | None:
    """A batch size with which a training fits; None if there is none. See `find_remedy`."""
    weight_bytes = cost.bytes_per_parameter * cost.num_parameters + cost.libraries
    if cost.memory is None or weight_bytes > limit:
        return None
    while cost.num_bytes > limit:
        room = limit - cost.libraries - KEPT_BYTES * cost.num_parameters
        batch_size = int(MARGIN * cost.batch_size * room / cost.step_bytes)
        if batch_size < task.spec.smallest_batch or batch_size >= cost.batch_size:
            return None
        cost = estimate(batch_size)
    return cost.batch_size


def largest_size(model: Any, cost: Cost, limit: int) -> tuple[int, int] | None:
    """The largest image size at which a model fits, by its parameters and the area of the image.

    Args:
        model: on the device "meta", built by `create_model`.
        cost: at its size.
        limit: bytes.

    Returns:
        Height and width; None if no size fits.
    """
    metadata = model_metadata(model)
    longest = max(model.img_size)

    def scaled(side: int) -> tuple[int, int]:
        height, width = (max(1, length * side // longest) for length in model.img_size)
        return height, width

    def num_bytes(side: int) -> int:
        """Bytes of a training of images with this longer side."""
        num_parameters = count_parameters(bare_model(metadata, img_size=scaled(side)))
        step_bytes = cost.step_bytes / MARGIN * (side / longest) ** 2
        step = KEPT_BYTES * num_parameters + step_bytes
        return cost.libraries + max(round(step), cost.bytes_per_parameter * num_parameters)

    shortest = min(model.img_size)
    smallest = -(-spec_of(model).smallest * longest // shortest)
    sides = range(smallest, longest)
    num_fitting = bisect_right(sides, limit, key=num_bytes)
    return scaled(sides[num_fitting - 1]) if num_fitting else None
