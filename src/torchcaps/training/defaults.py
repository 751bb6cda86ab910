"""Settings that a training chooses if its configuration leaves them open."""

from typing import Any

from torchcaps.distributed import current
from torchcaps.errors import ArgumentError
from torchcaps.registry import Registry
from torchcaps.settings import TrainConfig, known_settings
from torchcaps.tasks import Task
from torchcaps.training.optimizers import OPTIMIZERS
from torchcaps.training.schedules import SCHEDULES

MAX_BATCH_SIZE = 128
MIN_BATCH_SIZE = 8
MIN_STEPS = 100  # for which a batch is halved; see docs/decisions.md
# Of settings that only some optimizers or schedules read, for those that do.
MOMENTUM = 0.9
DECAY = 0.1


def complete_config(task: Task, num_images: int) -> TrainConfig:
    """The configuration of a task with what the run left open: batch size, clipping, and others.

    Raises:
        ArgumentError: a batch with fewer images than processes, or than the model can take; or a
            setting that the optimizer or the schedule does not read.
        UnknownNameError: an optimizer or a schedule that is not registered.
    """
    config = task.config
    check_settings_read(config, "optimizer", OPTIMIZERS)
    check_settings_read(config, "schedule", SCHEDULES)
    if "momentum" in OPTIMIZERS.reads(config.optimizer.name):
        config = config.filled({"momentum": MOMENTUM})
    if "decay" in SCHEDULES.reads(str(config.schedule.name)):
        config = config.filled({"decay": DECAY})

    world_size = current().world_size
    epoch_size = config.data.epoch_size or num_images
    images_per_batch = config.training.epochs * epoch_size // config.optimizer.accumulate
    size = config.training.batch_size or default_batch_size(images_per_batch)
    if size < world_size:
        raise ArgumentError(
            "batch_size", f"expected an image for each of {world_size} processes, got {size}"
        )
    smallest = task.spec.smallest_batch
    if min(size, epoch_size) < smallest:
        raise ArgumentError(
            "batch_size",
            f"expected at least {smallest} images for this model, got {min(size, epoch_size)}",
        )
    clip = task.clip if config.optimizer.clip == "auto" else config.optimizer.clip
    return config.updated(batch_size=size, clip=float(clip))


def check_settings_read(config: TrainConfig, choice: str, registry: Registry[Any]) -> None:
    """Refuse a setting that the optimizer or the schedule of a run does not read.

    Args:
        config: of the run.
        choice: "optimizer" or "schedule".
        registry: of its choices, which declare what they read.

    Raises:
        ArgumentError: for the first such setting that has another value than its default.
        UnknownNameError: a choice that is not registered.
    """
    values = config.flat()
    name_of_choice = values[choice]
    for name, setting in known_settings().items():
        if (
            setting.of != choice
            or values[name] == setting.default
            or name in registry.reads(name_of_choice)
        ):
            continue
        readers = [entry for entry in registry if name in registry.reads(entry)]
        raise ArgumentError(
            name,
            f"has no effect with the {choice} {name_of_choice}, got {values[name]}; "
            f"leave it out, or take it with {' or '.join(readers)}",
        )


def default_batch_size(num_images: int) -> int:
    """Images per step of a run over `num_images` in all.

    The largest power of two, from 8 to 128, that leaves 100 steps. Steps, not images, bring a
    capsule network off the ground.
    """
    size = MAX_BATCH_SIZE
    while size > MIN_BATCH_SIZE and num_images < MIN_STEPS * size:
        size //= 2
    return size
