"""What a training will take, before anything large is allocated: parameters and memory.

The model is built on, or copied to, the device "meta", and a training step is run on tensors
without elements. A training that cannot fit is refused with the nearest size or batch that does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from torchcaps.data import Dataset, DiskDataset
from torchcaps.errors import ArgumentError, one_line
from torchcaps.models import create_model, list_models
from torchcaps.nn.generator import on_meta
from torchcaps.settings import OptimizerSettings, TrainConfig
from torchcaps.tasks import Task, create_task
from torchcaps.training.available import available_memory
from torchcaps.training.checkpoint import build_model, describe_model
from torchcaps.training.defaults import complete_config
from torchcaps.training.device import resolve_precision
from torchcaps.training.features import BATCH, blank_features, can_store
from torchcaps.training.memory import NUM_MOMENTS, MemoryEstimate, estimate_features, estimate_step
from torchcaps.training.optimizers import create_optimizer
from torchcaps.training.parameters import freeze_parameters
from torchcaps.transfer import widest_float
from torchcaps.types import ModelMetadata, model_metadata, spec_of

GIB = 1 << 30
FLOAT_BYTES = 4
# Bytes of activations over those of the images: more than any model of the library has.
MAX_ACTIVATION_RATIO = 20_000
# Bytes of each parameter that Adam trains, while a checkpoint is put together.
MAX_WEIGHT_BYTES = 28
# A model is large if its weights take this part of the memory.
LARGE_SHARE = 4
# Share of the memory of a step that advice counts on: it falls a little less than its images.
MARGIN = 0.8
PROBE_SIZE = 64  # rows of the matrix that tells what an optimizer keeps


class WeightBytes(NamedTuple):
    """Bytes of a training that its weights alone decide.

    Attributes:
        step: weights, gradients, and what the optimizer keeps.
        copies: an average of the weights; and of `fit` the first weights and the best ones.
        checkpoint: more than that while a state is kept.
    """

    step: int
    copies: int
    checkpoint: int


class Cost(NamedTuple):
    """What a training takes.

    Attributes:
        name: of the model.
        num_parameters: of the model.
        num_decoder_parameters: those of its decoder among them.
        batch_size: images per step.
        weights: what the weights alone take.
        memory: at the peak of a step; None without an estimate.
        problem: why a step cannot be estimated.
        features_bytes: at the peak of the pass that computes features of a frozen backbone.
    """

    name: str
    num_parameters: int
    num_decoder_parameters: int
    batch_size: int
    weights: WeightBytes
    memory: MemoryEstimate | None
    problem: str = ""
    features_bytes: int = 0

    @property
    def libraries(self) -> int:
        """Bytes of code."""
        return 0 if self.memory is None else self.memory.libraries

    @property
    def step_bytes(self) -> int:
        """Bytes that grow with the batch."""
        return 0 if self.memory is None else self.memory.activations + self.memory.workspace

    @property
    def num_bytes(self) -> int:
        """Bytes at the peak: of a step, of a checkpoint, or of the pass of a frozen backbone."""
        step = 0 if self.memory is None else self.memory.total
        checkpoint = self.weights.step + self.weights.checkpoint + self.libraries
        return max(max(step, checkpoint) + self.weights.copies, self.features_bytes)

    def __str__(self) -> str:
        """One line for the reader of a training's messages."""
        line = f"{self.name}: {self.num_parameters:,} parameters"
        if self.num_decoder_parameters:
            share = self.num_decoder_parameters / self.num_parameters
            line += f", {share:.0%} of them in the decoder"
        memory = f"{format_bytes(self.num_bytes)} of memory"
        if self.problem:
            return f"{line}; more than {memory} (no estimate of a step: {self.problem})"
        if self.memory is None:
            return f"{line}; {memory} for its weights alone"
        return f"{line}; about {memory} at {self.batch_size} images a step"


def format_bytes(num_bytes: float) -> str:
    """`1.3 GiB`, `240 MiB`."""
    if num_bytes >= GIB:
        return f"{num_bytes / GIB:.1f} GiB"
    return f"{num_bytes / (1 << 20):.0f} MiB"


def check_cost(
    model: nn.Module,
    config: TrainConfig,
    images: Dataset,
    device: torch.device,
    *,
    limit: int | None = None,
    quick: bool = False,
    in_place: bool = False,
) -> str:
    """Refuse a training that cannot fit into memory.

    Args:
        model: stays as it is; of one that is not on the device "meta" a copy there is looked at.
        config: of the run.
        images: to train on.
        device: of the training.
        limit: bytes that it may take; None is what the device has available, with what the weights
            of the model take already.
        quick: return "" without an estimate where a rough bound fits.
        in_place: whether it is a training by `fit`, which writes no checkpoints.

    Returns:
        A line on its parameters and memory.

    Raises:
        ArgumentError: it needs more; the message has the nearest batch or size that fits.
    """
    if limit is None:
        limit = available_memory(device)
        if limit is not None:
            limit += sum(weight.nbytes for weight in model.parameters() if not weight.is_meta)
    model, problem = bare_copy(model)
    task = create_task(model, config, images)
    config = complete_config(task, len(images))
    batch_size = config.training.batch_size or 1
    if quick and (limit is None or rough_bytes(model, images, batch_size) < limit):
        return ""

    estimator = create_estimator(task, config, images, device, problem, in_place)
    cost = estimator.without_step
    # If the weights exceed the limit, no step is estimated: that imports torch's compiler, which
    # takes two seconds.
    if limit is None or sum(cost.weights) <= limit:
        cost = estimator.estimate(batch_size)
    if limit is not None and cost.num_bytes > limit:
        argument, remedy = find_remedy(task, cost, limit, estimator.estimate)
        raise ArgumentError(
            argument,
            f"{cost}, where {format_bytes(limit)} are available; {remedy}",
        )
    return str(cost)


class Estimator(NamedTuple):
    """Estimates the cost of a training.

    Attributes:
        task: its model is on the device "meta", unless `without_step` has a problem.
        images: to train on, or features in their place.
        device: of the training.
        precision: "fp32" or "bf16".
        num_moments: numbers that the optimizer keeps for each weight.
        without_step: the cost without an estimate of a step.
    """

    task: Task
    images: Dataset
    device: torch.device
    precision: str
    num_moments: int
    without_step: Cost

    def estimate(self, batch_size: int) -> Cost:
        """The cost with a batch size."""
        if self.without_step.problem:
            return self.without_step
        try:
            batch = sized_batch(self.task, self.images, batch_size)
            memory = estimate_step(self.task, batch, self.device, self.precision, self.num_moments)
        except Exception as error:  # a step may do anything; it is run in the training
            reason = f"{type(error).__name__}: {one_line(str(error))}"
            return self.without_step._replace(problem=reason)
        return self.without_step._replace(batch_size=batch_size, memory=memory)


def create_estimator(
    task: Task,
    config: TrainConfig,
    images: Dataset,
    device: torch.device,
    problem: str = "",
    in_place: bool = False,
) -> Estimator:
    """The estimator of a training.

    Args:
        task: around a model of `bare_copy`.
        config: complete.
        images: to train on.
        device: of the training.
        problem: why the model is no copy; see `bare_copy`.
        in_place: whether it is a training by `fit`.
    """
    model = task.model
    if not problem:
        freeze_parameters(model, config.optimizer.freeze)
    num_moments = moments_per_weight(config.optimizer)
    features_bytes = 0
    if not problem and not in_place and can_store(task, images):
        features_bytes = estimate_features(model, BATCH, device)
        images = blank_features(model, images)
    without_step = Cost(
        model_metadata(model).name or type(model).__name__,
        count_parameters(model),
        count_decoder(task),
        config.training.batch_size or 1,
        weight_bytes(model, config, num_moments, device, in_place),
        None,
        problem,
        features_bytes,
    )
    precision = resolve_precision(config.training.precision, device)
    widest_float(device.type)  # asked of the device itself, before tensors are fake
    return Estimator(task, images, device, precision, num_moments, without_step)


def bare_copy(model: nn.Module) -> tuple[nn.Module, str]:
    """A copy of a model on the device "meta", where it is not there already.

    A step of the copy leaves the model as it is: what it counts, caches or updates. Hooks are
    functions, which a copy shares.

    Returns:
        The copy; or the model itself, and why there is no copy.
    """
    if any(weight.is_meta for weight in model.parameters()):
        return model, ""
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        return model, "it has hooks"
    memo: dict[int, Any] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        bare = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(bare, tensor.requires_grad) if is_parameter else bare
    try:
        return deepcopy(model, memo), ""
    except Exception as error:  # a module may hold anything
        return model, f"it cannot be copied, {one_line(str(error))}"


def bare_model(metadata: ModelMetadata, **changes: Any) -> nn.Module:
    """A model of `create_model` once more, on the device "meta".

    Args:
        metadata: of the model.
        changes: arguments of `create_model` in place of those that it was built with.
    """
    options = deepcopy(dict(metadata.options)) | changes  # a router in it stays untouched
    with on_meta():
        return create_model(metadata.name, **options)


def check_run(
    config: TrainConfig, images: Dataset, device: torch.device, *, quick: bool = False
) -> str:
    """`check_cost` of a run's model; "" for a backbone, which is read from a file before."""
    if has_backbone(config):
        return ""
    with on_meta():
        model = build_model(describe_run_model(config, images))
    return check_cost(model, config, images, device, quick=quick)


def has_backbone(config: TrainConfig) -> bool:
    """Whether the model of a run is a head on a backbone that is read from a file."""
    return "backbone" in config.model.all_options


def describe_run_model(config: TrainConfig, images: Dataset) -> dict[str, Any]:
    """Description of a run's model for its images; see `checkpoint.describe_model`."""
    return describe_model(
        config.model.name,
        config.model.all_options,
        images.classes,
        images.preprocess(images.img_size, images.in_chans, config.data.crop),
        config.task.name,
    )


def rough_bytes(model: nn.Module, images: Dataset, batch_size: int) -> int:
    """Bytes that a training of a model surely does not exceed."""
    height, width = images.img_size
    values = batch_size * images.in_chans * height * width
    activation_bytes = MAX_ACTIVATION_RATIO * FLOAT_BYTES * values
    return MAX_WEIGHT_BYTES * count_parameters(model) + activation_bytes


def moments_per_weight(settings: OptimizerSettings) -> int:
    """Numbers that an optimizer keeps for each weight, by a step of it on a small matrix."""
    if settings.name == "adam" and not settings.options:
        return NUM_MOMENTS  # at once: a first optimizer imports torch's compiler
    weight = nn.Parameter(torch.zeros(PROBE_SIZE, PROBE_SIZE))
    weight.grad = torch.zeros_like(weight)
    optimizer = create_optimizer(nn.ParameterList([weight]), replace(settings, lr_scale={}))
    optimizer.step()
    states = tree_leaves([*optimizer.state.values()])
    num_values = sum(state.numel() for state in states if isinstance(state, Tensor))
    return num_values // weight.numel()


def weight_bytes(
    model: nn.Module,
    config: TrainConfig,
    num_moments: int,
    device: torch.device,
    in_place: bool,
) -> WeightBytes:
    """What the weights of a model take in a training; see `check_cost`."""
    total = sum(weight.nbytes for weight in model.parameters())
    trained = sum(weight.nbytes for weight in model.parameters() if weight.requires_grad)
    average = total if config.optimizer.ema else 0
    step = total + (1 + num_moments) * trained
    if in_place:  # a new copy of the best weights, and the trained ones while these are averaged
        return WeightBytes(step, average + 2 * total, total + average)
    on_cpu = device.type == "cpu"  # where checkpoints are put together
    return WeightBytes(step, average, total + num_moments * trained + average if on_cpu else 0)


def count_parameters(module: nn.Module) -> int:
    """Number of parameters."""
    return sum(weight.numel() for weight in module.parameters())


def count_decoder(task: Task) -> int:
    """Number of parameters of a model's decoder; 0 without one."""
    decoder: Any = getattr(task.model, "decoder", None)
    has_decoder = task.spec.decoder and isinstance(decoder, nn.Module)
    return count_parameters(decoder) if has_decoder else 0


def sized_batch(task: Task, images: Dataset, batch_size: int) -> Any:
    """A batch of training images of which sizes and types alone are true: it is on "meta"."""
    sample = images.subset(range(min(2, len(images))))
    if isinstance(sample, DiskDataset):
        sample = replace(sample, workers=0)
    task.train()
    generator = torch.Generator()
    targets = {name: sample.targets[name] for name in task.targets}
    batch = next(sample.batches([torch.arange(len(sample))], targets, [generator]))
    batch = task.augment(batch, generator)

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

    is_named = model_metadata(task.model).name in list_models()
    options = model_metadata(task.model).options
    img_size = None
    if is_named and "backbone" not in options:
        img_size = largest_size(task.model, cost, limit)
    if img_size is not None:
        height, width = img_size
        size = f"{height}" if height == width else f"{height}x{width}"
        batch = " and a small batch" if cost.memory is None else ""
        remedies.append(f"img_size={size}{batch}")
    decoder_bytes = sum(cost.weights) * cost.num_decoder_parameters // cost.num_parameters
    if is_named and decoder_bytes and cost.num_bytes - decoder_bytes <= limit:
        remedies.append("the option decoder=False")
    if options.get("freeze") is False:
        remedies.append("a frozen backbone (freeze=True)")
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
    if cost.memory is None or sum(cost.weights) + cost.libraries > limit:
        return None
    while cost.num_bytes > limit:
        room = limit - cost.libraries - cost.weights.step - cost.weights.copies
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
        share = num_parameters / cost.num_parameters
        step_bytes = cost.step_bytes / MARGIN * (side / longest) ** 2
        kept_bytes = (cost.weights.step + cost.weights.copies) * share
        num_bytes = kept_bytes + max(step_bytes, cost.weights.checkpoint * share)
        return cost.libraries + round(num_bytes if cost.memory else num_bytes / MARGIN)

    shortest = min(model.img_size)
    smallest = -(-spec_of(model).smallest * longest // shortest)
    sides = range(smallest, longest)
    num_fitting = bisect_right(sides, limit, key=num_bytes)
    return scaled(sides[num_fitting - 1]) if num_fitting else None
