"""What `fit` chooses for a model, as functions for a loop of your own, or another trainer.

Settings are those of a run, by name, such as `lr=0.01`; what is left out is what `fit` takes for
this model. The page docs/own-training.md has a loop, and other trainers.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from torchcaps.data import Batch
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task, create_task
from torchcaps.tasks._config import read_settings
from torchcaps.training import optimizers
from torchcaps.training.schedules import warmup_cosine
from torchcaps.types import Json, Tensors, find_network

__all__ = ["create_losses", "create_optimizer", "create_schedule", "gradient_limit"]


def create_losses(model: nn.Module, **settings: Any) -> Callable[..., Tensors]:
    """The losses of a training step: what the model declares, with the reconstruction by its weight.

    Args:
        model: any module that `fit` takes. The network within it is called, so gradients are not
            exchanged where that is within `DistributedDataParallel`.
        settings: of a run, by name, such as `loss="spread"`.

    Returns:
        A function (images, targets, fraction_trained=0.0) that gives tensors by name. "loss" is to
        be minimized; others are its parts, the accuracy, and "activation" `[batch, classes]`.
        Images are `[batch, channels, height, width]`; targets are those that the task needs, such
        as classes `[batch]`; the share of the training that is done is in [0, 1], which a spread
        loss reads.

    Raises:
        ValueError: settings that the model does not take.
    """
    return partial(_training_step, _create_task(model, settings))


def create_optimizer(model: nn.Module, **settings: Any) -> Optimizer:
    """Adam with a learning rate of 0.001 at its peak, or what the settings say.

    Args:
        model: whose weights are trained.
        settings: of a run, by name, such as `optimizer="sgd"` or `lr_scale={"conv.*": 0.1}`.

    Returns:
        The optimizer. `create_schedule` belongs to it.

    Raises:
        ValueError: settings that cannot be used.
    """
    config = _create_task(model, settings).config
    config = config.filled(read_settings(config))
    return optimizers.create_optimizer(find_network(model), config.optimizer)


def create_schedule(optimizer: Optimizer, num_steps: int) -> LambdaLR:
    """The learning rate: it rises for 5 % of the steps, at least 40, and falls along a cosine.

    The rise is what keeps capsules from being saturated: the first steps of Adam move each weight
    by the whole rate, whatever the gradient is.

    Args:
        optimizer: of the training, at its peak rates.
        num_steps: of the training. Of fewer than 80, half are the rise.

    Returns:
        A scheduler, whose `step()` is called after each step of the optimizer.
    """
    return LambdaLR(optimizer, lambda step: warmup_cosine(step, num_steps, TrainConfig()))


def gradient_limit(model: nn.Module, **settings: Any) -> float:
    """The largest norm of the gradient of all weights, for `clip_grad_norm_`.

    Args:
        model: that is trained.
        settings: of a run, by name; the loss counts here.

    Returns:
        1 with most losses; infinity with the spread loss, whose gradients are large at the start.

    Raises:
        ValueError: settings that the model does not take.
    """
    return float(_create_task(model, settings).config.optimizer.clip or "inf")


def _create_task(model: nn.Module, settings: Json) -> Task:
    return create_task(find_network(model), TrainConfig.of(**settings))


def _training_step(
    task: Task, images: Tensor, targets: Tensor, fraction_trained: float = 0.0
) -> Tensors:
    indices = torch.arange(len(images), device=images.device)
    return task.training_step(Batch(images, {task.targets[0]: targets}, indices), fraction_trained)
