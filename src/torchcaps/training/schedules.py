"""Learning-rate schedules: functions that give the share of the peak rate in each step.

Add a schedule here, or anywhere with `register_schedule`; the setting `schedule` takes its name.
"""

import math
from collections.abc import Callable, Sequence

from torch.optim import Optimizer

from torchcaps.errors import ArgumentError
from torchcaps.registry import Registry
from torchcaps.settings import CHOICES, TrainConfig

EXTENSION_LR_SCALE = 0.1  # of the first peak rate, where a finished training goes on
WARMUP_SHARE = 0.05
MIN_WARMUP_STEPS = 40

# (step from 0, total steps, configuration of the run) -> factor of the peak learning rate
Schedule = Callable[[int, int, TrainConfig], float]


SCHEDULES: Registry[Schedule] = CHOICES["schedule"]
register_schedule = SCHEDULES.register
"""Decorator that registers a schedule for the setting `schedule`.

The function is given the step from 0, the number of steps, and the complete configuration; it
returns the factor by which the peak learning rate is multiplied. `restarts` says whether it starts
anew in each stage of a task that has several (`Task.lr_restarts`), as it does by default; the steps
it is given are then those of the stage. `reads` names those of the settings `milestones` and
`decay` that it reads; a run that gives another one of them is refused. ValueError for a name that
is taken, unless `replace`.

Example:
    >>> @register_schedule("linear")
    ... def linear(step, total_steps, config):
    ...     return 1 - step / total_steps
"""


def learning_rate_factor(
    config: TrainConfig, step: int, total_steps: int, lr_restarts: Sequence[float] = (0.0,)
) -> float:
    """Factor of the peak learning rate in step `step`, from 0, of `total_steps`.

    The schedule is that of the training before it was extended. Each extension begins at a tenth of
    the peak rate, and falls to zero along a cosine.

    Args:
        config: names the schedule; UnknownNameError for one that is not registered.
        step: from 0.
        total_steps: of the whole training.
        lr_restarts: shares of the training at which the schedule starts anew, the first one 0.
    """
    ends = part_ends(config, total_steps)
    start = 0
    while ends[0] <= step and len(ends) > 1:
        start = ends.pop(0)
    total_steps = ends[0]
    if start:
        return EXTENSION_LR_SCALE * cosine(step - start, total_steps - start, config)
    if len(ends) > 1:
        config = config.updated(epochs=config.training.extended_at[0])

    name = config.schedule.name or "warmup_cosine"
    if not SCHEDULES.fact(name, "restarts"):
        lr_restarts = (0.0,)
    # The stage of the training that this step is in.
    end = total_steps
    for share in lr_restarts:
        bound = math.ceil(share * total_steps)
        if bound <= step:
            start = max(start, bound)
        else:
            end = min(end, bound)
    return SCHEDULES[name](step - start, end - start, config)


def part_ends(config: TrainConfig, total_steps: int) -> list[int]:
    """The step at which each part of a training ends: the first one, and its extensions.

    Args:
        config: has the number of epochs, and those after which the training was extended.
        total_steps: of the whole training, a multiple of its epochs.

    Raises:
        ArgumentError: extensions that do not follow one another.
    """
    epochs = config.training.epochs
    ends = [*config.training.extended_at, epochs]
    if ends != sorted(set(ends)):
        raise ArgumentError(
            "extended_at", f"expected rising numbers below {epochs} epochs, got {ends[:-1]}"
        )
    return [end * total_steps // epochs for end in ends]


def learning_rates(optimizer: Optimizer, factor: float, scale: float = 1.0) -> list[float]:
    """Of every group of parameters: `scale * factor` of its peak."""
    rates = []
    for group in optimizer.param_groups:
        peak = group.setdefault("initial_lr", group["lr"])
        rates.append(scale * (peak * factor))
    return rates


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


@register_schedule("steps", restarts=False, reads=("milestones", "decay"))
def steps(step: int, total_steps: int, config: TrainConfig) -> float:
    """Falls by the factor `decay` at the epochs `milestones`."""
    epoch = step * config.training.epochs // total_steps
    passed = sum(epoch >= milestone for milestone in config.schedule.milestones)
    return (config.schedule.decay or 0.0) ** passed


@register_schedule("exponential", restarts=False, reads=("decay",))
def exponential(step: int, total_steps: int, config: TrainConfig) -> float:
    """Falls by the factor `decay` after each epoch, to a tenth at the lowest."""
    epoch = step * config.training.epochs // total_steps
    return max(0.1, (config.schedule.decay or 0.0) ** epoch)
