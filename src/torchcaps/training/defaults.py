"""Settings that a training chooses if its configuration leaves them open."""

from torchcaps.distributed import current
from torchcaps.errors import ArgumentError
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task

MAX_BATCH_SIZE = 128
MIN_BATCH_SIZE = 8
MIN_STEPS = 100  # for which a batch is halved; see docs/decisions.md


def complete_config(task: Task, num_images: int) -> TrainConfig:
    """The configuration of a task with the batch size and clipping that the run left open.

    Raises:
        ArgumentError: a batch with fewer images than processes, or than the model can take.
    """
    config = task.config
    world_size = current().world_size
    epoch_size = config.data.epoch_size or num_images
    size = config.training.batch_size or default_batch_size(config.training.epochs * epoch_size)
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


def default_batch_size(num_images: int) -> int:
    """Images per step of a run over `num_images` in all.

    The largest power of two, from 8 to 128, that leaves 100 steps. Steps, not images, bring a
    capsule network off the ground.
    """
    size = MAX_BATCH_SIZE
    while size > MIN_BATCH_SIZE and num_images < MIN_STEPS * size:
        size //= 2
    return size
