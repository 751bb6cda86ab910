"""The configuration of a run, completed: every choice that it leaves open is taken here."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from torch import nn

from torchcaps.data import Dataset, DiskDataset
from torchcaps.data.preprocess import ArrayPreprocess
from torchcaps.distributed import current
from torchcaps.errors import ArgumentError, UnknownNameError, check_range
from torchcaps.registry import Registry
from torchcaps.settings import CHOICES, TrainConfig, known_settings
from torchcaps.types import ModelSpec, declares, spec_of

if TYPE_CHECKING:
    from torchcaps.tasks._base import Task

DEFAULTS = {
    "lr": 1e-3,
    "schedule": "warmup_cosine",
    "shift": 0,
    "degrees": 0.0,
    "zoom": 0.0,
    "shear": 0.0,
    "reconstruction": 0.0,
    "class_weights": "none",
}
# For those optimizers and schedules that read them.
READ_DEFAULTS = {"momentum": 0.9, "decay": 0.1}
# Settings of a loss that only some tasks, losses and models use, and what switches them off.
OPTIONAL_SETTINGS = {"reconstruction": 0, "label_smoothing": 0, "class_weights": "none"}
MAX_BATCH_SIZE = 128
MIN_BATCH_SIZE = 8
MIN_STEPS = 100  # for which a batch is halved; see docs/decisions.md


def complete_config(
    config: TrainConfig,
    task: type[Task],
    model: nn.Module,
    images: Dataset | None = None,
    *,
    trains: bool = True,
) -> TrainConfig:
    """The configuration of a run with a value for each setting that it leaves open.

    A complete configuration is returned as it is. `TrainConfig.origins` says where values are from.
    What is given stays. What is open is filled in this order, the first that has a value for it:

    1. the model: the loss of its `spec`, if the task has it, or else the first one of the task;
    2. the data: where images are kept; no reconstruction where a decoder cannot draw them;
    3. the task: `clip`, and what its `default_settings` returns;
    4. `DEFAULTS`, among them no augmentation (the shift of 2 of a model that is trained by its name
       is a value of the model, which `train` fills before);
    5. what the optimizer and the schedule read, and the size of a batch by the number of images.

    Args:
        config: of the run.
        task: its class.
        model: that is trained.
        images: of the run, if there are any yet.
        trains: whether these images are trained on. Else the size of batches and what only an
            optimizer or a schedule reads stay open.

    Raises:
        UnknownNameError: a loss that the task does not have; a metric, an optimizer or a schedule
            that is not registered.
        ArgumentError: a setting without an effect; or a batch with fewer images than processes, or
            than the model can take.
    """
    spec = spec_of(model) if declares(model) else task.default_spec
    loss = spec.loss if spec.loss in task.losses else next(iter(task.losses))
    if not task.augments or "value" in task.targets:  # a shift may change what a value says
        config = without_default_changes(config)
    config = config.filled({"task": task.name, "loss": loss}, "model")
    loss = config.task.loss
    if loss not in task.losses:
        raise UnknownNameError(
            "loss", loss, task.losses, f"a loss of yours may need register_loss(task={task.name!r})"
        )
    if config.task.metrics:
        from torchcaps.tasks.metrics import METRICS

        for name in config.task.metrics:
            METRICS[name]
    by_task = task.default_settings(model, spec, loss)
    _check_used(config, task, spec, by_task)

    if images is not None:
        # Recorded, so that a resumed run reads the images in the same way.
        by_data: dict[str, Any] = {
            "storage": "disk" if isinstance(images, DiskDataset) else "memory"
        }
        # Decoders draw values in [0, 1], and of several classes what each looks like alone.
        has_several = "labels" in task.targets and "single_label" not in images.targets
        if has_several or images.preprocess is ArrayPreprocess:
            by_data["reconstruction"] = 0.0
        config = config.filled(by_data, "data")
    config = config.filled({"clip": task.clip} | by_task, "task").filled(DEFAULTS)
    if images is None or not trains:
        return config

    config = config.filled(read_settings(config))
    epoch_size = config.data.epoch_size or len(images)
    # An update has the images of `accumulate` batches.
    num_images = config.training.epochs * epoch_size // config.optimizer.accumulate
    batch_size = config.training.batch_size or default_batch_size(num_images)
    check_range("batch_size", batch_size, low=current().world_size)  # an image for each process
    check_range("batch_size", min(batch_size, epoch_size), low=spec.smallest_batch)
    return config.filled({"batch_size": batch_size}, "data")


def without_default_changes(config: TrainConfig) -> TrainConfig:
    """A copy without the augmentations that a model trained by its name has."""
    changes = {
        name: setting.default
        for name, setting in known_settings().items()
        if setting.group == "augmentation" and config.origins.get(name) == "model"
    }
    return config.replaced(changes, "default")


def _check_used(
    config: TrainConfig, task: type[Task], spec: ModelSpec, used: Collection[str]
) -> None:
    """Raise ArgumentError for the first setting that has no effect on this loss and this model."""
    loss = config.task.loss
    reads = task.losses.fact(loss) if isinstance(task.losses, Registry) else ()
    for name, off in OPTIONAL_SETTINGS.items():
        setting = getattr(config.task, name)
        if setting in (None, off) or name in used or name in reads:
            continue
        reason = f"with the loss {loss} of the task {task.name}"
        if name == "reconstruction" and not spec.decoder:
            reason = "for a model without a decoder"
        raise ArgumentError(name, f"expected {off} {reason}, got {setting}")
    if config.data.balance and not (task.labeled and "label" in task.targets):
        raise ArgumentError(
            "balance",
            f"expected images of one class each, which the task {task.name} does not take",
        )


def read_settings(config: TrainConfig) -> dict[str, Any]:
    """Defaults of the settings that the optimizer or the schedule of a run reads.

    Raises ArgumentError for one that it does not read and that has another value than its default.
    """
    values = config.flat()
    defaults: dict[str, Any] = {}
    for name, setting in known_settings().items():
        if setting.of is None:
            continue
        registry = CHOICES[setting.of]
        choice = values[setting.of]
        if name in registry.fact(choice):
            defaults[name] = READ_DEFAULTS.get(name, setting.default)
        elif values[name] != setting.default:
            readers = [entry for entry in registry if name in registry.fact(entry)]
            raise ArgumentError(
                name,
                f"has no effect with the {setting.of} {choice}, got {values[name]}; "
                f"leave it out, or take it with {' or '.join(readers)}",
            )
    return defaults


def default_batch_size(num_images: int) -> int:
    """Images per step of a run over `num_images` in all.

    The largest power of two, from 8 to 128, that leaves 100 steps. Steps, not images, bring a
    capsule network off the ground.
    """
    size = MAX_BATCH_SIZE
    while size > MIN_BATCH_SIZE and num_images < MIN_STEPS * size:
        size //= 2
    return size
