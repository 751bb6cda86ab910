"""Learning-rate schedules: functions that give the share of the peak rate in each step.

Add a schedule here, or anywhere with `register_schedule`; the setting `schedule` takes its name.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch.optim import Optimizer

from torchcaps.registry import Registry
from torchcaps.settings import TrainConfig

WARMUP_SHARE = 0.05
MIN_WARMUP_STEPS = 40

# (step from 0, total steps, configuration of the run) -> factor of the peak learning rate
ScheduleFunction = Callable[[int, int, TrainConfig], float]


class Schedule(NamedTuple):
    """A schedule, and whether it starts anew where the task restarts the learning rate."""

    factor: ScheduleFunction
    restarts: bool


SCHEDULES: Registry[Schedule] = Registry("schedule")


def register_schedule(
    name: str, *, restarts: bool = True, replace: bool = False
) -> Callable[[ScheduleFunction], ScheduleFunction]:
    """Decorator that registers a schedule for the setting `schedule`.

    The function is given the step from 0, the number of steps, and the configuration; it returns
    the factor by which the peak learning rate is multiplied.

    Args:
        name: of the schedule; ValueError for one that is taken, unless `replace`.
        restarts: whether it starts anew in each stage of a task that has several
            (`Task.lr_restarts`). The steps it is given are then those of the stage.
        replace: allow a name that is taken.

    Returns:
        The decorator, which returns the function as it is.

    Example:
        >>> @register_schedule("linear")
        ... def linear(step, total_steps, config):
        ...     return 1 - step / total_steps
    """

    def decorate(factor: ScheduleFunction) -> ScheduleFunction:
        SCHEDULES.add(name, Schedule(factor, restarts), replace=replace)
        return factor

    return decorate


def learning_rate_factor(
    config: TrainConfig,
    step: int,
    total_steps: int,
    lr_restarts: Sequence[float] = (0.0,),
) -> float:
    """Factor of the peak learning rate in step `step`, from 0, of `total_steps`.

    Args:
        config: names the schedule; UnknownNameError for one that is not registered.
        step: from 0.
        total_steps: of the whole training.
        lr_restarts: shares of the training at which the schedule starts anew, the first one 0.
    """
    schedule = SCHEDULES[config.schedule.name or "warmup_cosine"]
    if not schedule.restarts:
        return schedule.factor(step, total_steps, config)
    # The stage of the training that this step is in.
    start = 0
    end = total_steps
    for share in lr_restarts:
        bound = math.ceil(share * total_steps)
        if bound <= step:
            start = max(start, bound)
        else:
            end = min(end, bound)
    return schedule.factor(step - start, end - start, config)


def set_learning_rate(optimizer: Optimizer, factor: float, scale: float = 1.0) -> float:
    """Set every group's rate to `scale * factor` of its peak.

    Returns:
        The rate of the first group.
    """
    for group in optimizer.param_groups:
        group["lr"] = scale * (group.setdefault("initial_lr", group["lr"]) * factor)
    return float(optimizer.param_groups[0]["lr"])


def warmup_steps(total_steps: int) -> int:
    """Steps in which the rate rises: 5 %, but at least the smaller of 40 and half of them.

    Adam's first steps move every weight by the whole rate; a shorter rise leaves every capsule
    saturated.
    """
    return max(1, round(WARMUP_SHARE * total_steps), min(MIN_WARMUP_STEPS, total_steps // 2))


@register_schedule("warmup_cosine")
def warmup_cosine(step: int, total_steps: int, config: TrainConfig) -> float:
    """Rises for `warmup_steps`, and falls to zero along a cosine."""
    rise = warmup_steps(total_steps)
    if step < rise:
        return (step + 1) / rise
    return cosine(step - rise, total_steps - rise, config)


@register_schedule("cosine")
def cosine(step: int, total_steps: int, _config: TrainConfig) -> float:
    """Falls to zero along a cosine from the start."""
    return 0.5 * (1 + math.cos(math.pi * step / max(1, total_steps)))


@register_schedule("constant")
def constant(step: int, total_steps: int, _config: TrainConfig) -> float:
    """Rises for `warmup_steps`, and stays."""
    return min(1.0, (step + 1) / warmup_steps(total_steps))


@register_schedule("paper", restarts=False)
def paper(step: int, total_steps: int, config: TrainConfig) -> float:
    """`lr * 0.96 ** (step / 2000)`, at least 1e-6, as in the authors' code of 2017.

    The authors start at once. From this library's weights Adam's first steps would then make every
    length one, so the rate rises for at most 1,000 steps.
    """
    peak = config.optimizer.lr or 1.0
    decay = max(1e-6 / peak, 0.96 ** (step / 2000))
    return decay * min(1.0, (step + 1) / min(warmup_steps(total_steps), 1000))


@register_schedule("steps", restarts=False)
def steps(step: int, total_steps: int, config: TrainConfig) -> float:
    """Falls by the factor `decay` at the epochs `milestones`."""
    epoch = step * config.training.epochs // total_steps
    passed = sum(epoch >= milestone for milestone in config.schedule.milestones)
    return config.schedule.decay**passed


@register_schedule("exponential", restarts=False)
def exponential(step: int, total_steps: int, config: TrainConfig) -> float:
    """Falls by the factor `decay` after each epoch, to a tenth at the lowest."""
    epoch = step * config.training.epochs // total_steps
    return max(0.1, config.schedule.decay**epoch)
