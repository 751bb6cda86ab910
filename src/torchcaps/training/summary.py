"""One line on what a training does."""

from __future__ import annotations

from dataclasses import fields

import torch

from torchcaps.data.augment import ordered_augmentations
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task
from torchcaps.training.device import resolve_precision
from torchcaps.types import model_metadata
from torchcaps.words import counted


def training_summary(
    task: Task, config: TrainConfig, data: str, num_images: tuple[int, int], device: torch.device
) -> str:
    """`training capsnet on digits: 5,400 images, 600 held out; 3 epochs of batch 32, adam, ...`.

    Args:
        task: around the model.
        config: complete.
        data: name of the data set.
        num_images: to train on, and to choose the epoch by.
        device: of the training.
    """
    model = model_metadata(task.model).name or type(task.model).__name__
    optimizer = config.optimizer
    clip = f"clip {optimizer.clip:g}" if optimizer.clip else "no clipping"
    threads = f", {counted(torch.get_num_threads(), 'thread')}" if device.type == "cpu" else ""
    parts = [
        f"training {model} on {data}: {num_images[0]:,} images, {num_images[1]:,} held out",
        f"{counted(config.training.epochs, 'epoch')} of batch {config.training.batch_size}",
        f"{optimizer.name} at {optimizer.lr:g} ({config.schedule.name}), {clip}",
        f"{resolve_precision(config.training.precision, device)} on {device}{threads}",
        f"augmentation: {', '.join(active_augmentations(config)) or 'none'}",
    ]
    return "; ".join(parts)


def active_augmentations(config: TrainConfig) -> list[str]:
    """`shift 2`, `flip`: the augmentations that are on, with their amounts."""
    amounts = []
    for augmentation in ordered_augmentations():
        for field in fields(augmentation.settings):
            amount = getattr(config.augmentation, field.name)
            if amount and field.name in augmentation.switches:
                amounts.append(field.name if amount is True else f"{field.name} {amount:g}")
    return amounts
