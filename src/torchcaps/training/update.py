"""One update of the weights: the gradient of a batch, its norm, the optimizer, and the average.

A batch of a step has `batch_size * accumulate` images. This rank's shard of it is divided into
`accumulate` parts, whose gradients are summed. The result is the gradient of the whole batch, up to
rounding; a batch norm has the statistics of each part.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils import clip_grad_norm_, convert_conv2d_weight_memory_format
from torch.utils._pytree import tree_map_only

from torchcaps.data import Batch
from torchcaps.distributed import Ranks, data_parallel, exclude_padding_rows
from torchcaps.nn import use_generator
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task
from torchcaps.training.callbacks import copy_state
from torchcaps.training.device import resolve_precision
from torchcaps.training.optimizers import create_optimizer, freeze_parameters, frozen_modules
from torchcaps.training.sampling import DROPOUT, step_seed
from torchcaps.transfer import autocast, device_of, tape, widen
from torchcaps.types import Tensors

# Attributes for the share that a layer drops: of layers of dropout and torchvision's stochastic
# depth; of attention and recurrent layers; of timm's stochastic depth.
DROPPED_SHARES = {"p", "dropout", "drop_prob"}


class WeightAverage:
    """Exponential moving average of the weights w_s after s updates, with the decay d.

    `torch.optim.swa_utils.AveragedModel` is not used: it copies the whole module, which a model
    with hooks or cached tensors may not survive, and its average begins at the first weights.

    After t updates it is `sum_s d^(t - s) w_s / sum_s d^(t - s)`, s from 1 to t. The divisor is
    Adam's correction of the bias (arXiv 1412.6980, section 3): the weights before the training have
    no part in the average. A step that overflowed in fp16 counts as one that left the weights.

    Buffers of floating point, such as the running statistics of batch norms, are averaged like
    weights, so that they fit the averaged weights. Other buffers, such as counters, are copied.

    Args:
        model: whose weights are averaged.
        decay: d, in (0, 1).

    Attributes:
        weights: the average, by the names of the model's state.
        trained: the trained weights, kept here while the model has the averaged ones; else empty.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = model
        self.decay = decay
        self.weights = copy_state(model)
        self.trained: Tensors = {}

    def share(self, num_updates: int) -> float:
        """Part of the newest weights in the average.

        Args:
            num_updates: of the weights so far, this one among them: t.
        """
        return (1 - self.decay) / (1 - self.decay**num_updates)

    @torch.no_grad()
    def update(self, share: float | Tensor) -> None:
        """Take the weights of now into the average.

        Args:
            share: their part in it, a number, or a tensor without axes on the device.
        """
        for name, tensor in self.model.state_dict().items():
            if tensor.is_floating_point():
                weight = share.to(tensor.dtype) if isinstance(share, Tensor) else share
                self.weights[name].lerp_(tensor, weight)
            else:
                self.weights[name].copy_(tensor)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Go on from another average, such as that of a checkpoint.

        Args:
            weights: by the names of the model's state; KeyError where one is missing.
        """
        for name, tensor in self.weights.items():
            tensor.copy_(weights[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The average is the state of the model while the block runs."""
        self.trained = copy_state(self.model)
        self.model.load_state_dict(self.weights)
        try:
            yield
        finally:
            self.model.load_state_dict(self.trained)
            self.trained = {}


class Updater:
    """Updates the weights of a task's model, on its device.

    Args:
        task: the model with its loss.
        config: with every setting of the optimizer, the seed, the precision and the batch size.
        ranks: the processes of the run.

    Raises:
        ArgumentError: patterns of parameters, or options of the optimizer, that cannot be used.
        UnknownNameError: an optimizer that is not registered.

    Attributes:
        optimizer: of the parameters that are trained.
        average: of the weights; None without one.
        precision: "fp32", "tf32", "bf16" or "fp16".
        scaler: multiplies losses, so that gradients do not vanish in fp16; otherwise it does
            nothing.
    """

    def __init__(self, task: Task, config: TrainConfig, ranks: Ranks) -> None:
        self.task = task
        self.config = config
        self.ranks = ranks
        self.device = device_of(task.model)
        self.precision = resolve_precision(config.training.precision, self.device)
        # cuDNN convolves in IEEE float32 a third slower in channels-last order.
        if self.device.type != "cuda" or self.precision != "fp32":
            # Not .to(memory_format=...), which would change capsule weights of four axes too.
            convert_conv2d_weight_memory_format(task, torch.channels_last)
        self.frozen = freeze_parameters(task.model, config.optimizer.freeze)
        self.frozen_modules = frozen_modules(task.model) if self.frozen else []
        self.generator = torch.Generator()  # of random changes of images
        self.training_step: Any = task.training_step
        if ranks.world_size > 1:
            vars(task)["forward"] = task.training_step  # which data parallelism calls
            self.training_step = data_parallel(task)
        self.reset()

    def reset(self) -> None:
        """Begin anew with the weights of now: an optimizer without a state, a new average."""
        settings = self.config.optimizer
        self.optimizer = create_optimizer(self.task, settings)
        self.average = WeightAverage(self.task.model, settings.ema) if settings.ema else None
        self._make_random_state()

    def _make_random_state(self) -> None:
        """Make the scaler of losses, and the generator of dropout and routers, None without any."""
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")
        # Layers that draw in training: routers say so, others have a share that they drop.
        has_dropout = any(map(_draws, self.task.modules()))
        self.dropout = torch.Generator(self.device) if has_dropout else None

    def recover(self) -> None:
        """Drop gradients and random state of a step that failed before its update."""
        self.optimizer.zero_grad()
        scale = self.scaler.state_dict()
        self._make_random_state()
        self.scaler.load_state_dict(scale)

    def seed(self, step: int) -> None:
        """Let the next gradients draw the random numbers of a step, which counts from 0."""
        self.generator.manual_seed(step_seed(self.config, step))
        if self.dropout:
            stream = f"{DROPOUT}.{self.ranks.rank}" if self.ranks.rank else DROPOUT
            self.dropout.manual_seed(step_seed(self.config, step, stream))

    def release(self) -> None:
        """Let the frozen parameters get gradients again, as before the training."""
        for parameter in self.frozen:
            parameter.requires_grad_()

    def averaged(self) -> AbstractContextManager[None]:
        """A context in which the model has the averaged weights, where there is an average."""
        return self.average.applied() if self.average else nullcontext()

    def compute_gradients(self, batch: Batch, fraction_trained: float | Tensor) -> Tensors:
        """Compute losses and gradients of this rank's samples of a batch.

        Args:
            batch: of all ranks together.
            fraction_trained: share of the training that is done, in [0, 1]; a tensor without axes
                on the device where the step becomes a graph.

        Returns:
            Losses by name, such as "loss", means over the rank's samples; tensors with axes hold a
            row for each sample. The gradients are such that their mean over the ranks is the
            gradient of the mean loss of the whole batch.
        """
        self.task.train()
        for module in self.frozen_modules:
            module.eval()
        batch_size = len(batch.indices)
        # While a step becomes a graph, a tape records the random numbers of the host.
        with tape.get() or nullcontext():
            shards = [self.task.augment(group, self.generator) for group in batch.by_size()]
        shard = shards[0]
        if self.ranks.world_size > 1:
            # All ranks take part in a step: one without samples gets one that does not count.
            shard = take_rows(shard, self.ranks.padded_shard(batch_size))
        parts = self._split(shard, batch_size)
        if "size" in batch.targets:
            parts = [(group, len(group.indices)) for group in shards]

        self.optimizer.zero_grad()
        part_losses = []
        for number, (part, part_size) in enumerate(parts, start=1):
            # Casts are not cached: torch keeps them for all threads together.
            casts = autocast(self.device, self.precision, cache_enabled=False)
            dropout: Any = use_generator(self.dropout) if self.dropout else nullcontext()
            # The ranks exchange the sums of all parts, with the last one.
            is_early = number < len(parts) and self.ranks.world_size > 1
            sync: Any = self.training_step.no_sync() if is_early else nullcontext()
            with sync:
                # The one row of a rank without samples has no part in sums over the ranks.
                with dropout, casts, exclude_padding_rows(part_size):
                    losses = self.training_step(part, fraction_trained)
                # The gradients of the ranks are averaged, so each loss is weighed by its samples.
                weight = self.ranks.world_size * part_size / batch_size
                loss = losses["loss"] if weight == 1 else losses["loss"] * weight
                self.scaler.scale(loss).backward()
            # Without the graph of the gradients, which would keep their memory.
            losses = {name: value.detach() for name, value in losses.items()}
            part_losses.append((losses, part_size))
        return join_losses(part_losses)

    def update(self, rates: Iterable[float | Tensor], share: float | Tensor) -> None:
        """Change the weights by their gradients.

        Args:
            rates: learning rate of each group of parameters; a tensor without axes on the device
                where the step becomes a graph, whose memory the group keeps.
            share: of the new weights in the average.
        """
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        clip = self.config.optimizer.clip  # largest norm of the gradient, 0 for any
        if clip:
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.task.parameters(), float(clip))
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average:
            self.average.update(share)

    def _split(self, shard: Any, batch_size: int) -> list[tuple[Any, int]]:
        """The parts of a shard with their numbers of samples; as many parts on every rank.

        There are fewer than `accumulate` in a last batch of few samples.

        Args:
            shard: this rank's samples of the batch.
            batch_size: number of samples of all ranks together.
        """
        num_samples = self.ranks.shard_size(batch_size)
        num_parts = min(
            self.config.optimizer.accumulate,
            math.ceil(batch_size / (self.config.training.batch_size or 1)),
            batch_size // (self.task.spec.smallest_batch * self.ranks.world_size),
        )
        if num_parts <= 1:
            return [(shard, num_samples)]
        parts = []
        for number in range(num_parts):
            rows = Ranks(number, num_parts).shard(num_samples)  # parts of nearly equal size
            parts.append((take_rows(shard, rows), rows.stop - rows.start))
        return parts


def _draws(layer: nn.Module) -> bool:
    """Whether a layer draws random numbers in training; one of dropout may begin with a share of 0."""
    shares = map(vars(layer).get, DROPPED_SHARES)
    is_random = isinstance(layer, _DropoutNd) or getattr(layer, "draws", False)
    return is_random or any(isinstance(x, float) and x for x in shares)


def take_rows(batch: Any, rows: slice) -> Any:
    """These rows of every tensor of a batch, which may be nested in tuples."""
    return tree_map_only(Tensor, lambda tensor: tensor[rows], batch)


def join_losses(parts: list[tuple[Tensors, int]]) -> Tensors:
    """The losses of a batch by those of its parts: weighted means of numbers, rows one by one.

    Args:
        parts: losses of a part by name, means over its samples, and the number of its samples.
    """
    if len(parts) == 1:
        return parts[0][0]
    total = sum(size for _, size in parts)
    joined = {}
    for name, loss in parts[0][0].items():
        if loss.dim():
            joined[name] = torch.cat([losses[name] for losses, _ in parts])
        else:
            # Summed in float64, or in float32 on a device without it.
            means = [widen(losses[name]) * (size / total) for losses, size in parts]
            joined[name] = torch.stack(means).sum()
    return joined
