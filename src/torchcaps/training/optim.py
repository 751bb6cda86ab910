"""Optimizers, learning-rate schedules, sizes of batches, and hardware precision."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from torchcaps.errors import RunError
from torchcaps.registry import Registry
from torchcaps.settings import OptimizerSettings, TrainConfig

WARM_UP, WARM_UP_STEPS = 0.05, 40
PAPER_DECAY, PAPER_STEPS, PAPER_FLOOR, PAPER_RISE = 0.96, 2000, 1e-6, 1000
LOWEST = 0.1  # share of the rate that an exponential schedule ends at
LARGEST_BATCH, SMALLEST_BATCH = 128, 8
ENOUGH_STEPS = (
    100  # for which a batch is halved, as long as it is not the smallest; see docs/decisions.md
)
Make = Callable[[list[nn.Parameter], float, OptimizerSettings], torch.optim.Optimizer]
OPTIMIZERS: Registry[Make] = Registry("optimizer")
register_optimizer = OPTIMIZERS.register  # of (parameters, lr, settings), named by a run


def _made(kind: Any, *names: str) -> Make:
    """An optimizer of torch with a weight decay, and the settings of these names."""

    def make(
        parameters: list[nn.Parameter], lr: float, settings: OptimizerSettings
    ) -> torch.optim.Optimizer:
        fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)
        given = {name: getattr(settings, name) for name in ("weight_decay", *names)}
        return kind(parameters, lr, fused=fused, **given)

    return make


OPTIMIZERS.add("adam", _made(torch.optim.Adam))
OPTIMIZERS.add("adamw", _made(torch.optim.AdamW))
OPTIMIZERS.add("sgd", _made(torch.optim.SGD, "momentum", "nesterov"))


def create_optimizer(
    parameters: Iterable[nn.Parameter], config: TrainConfig
) -> torch.optim.Optimizer:
    """The optimizer of a run; UnknownNameError (a ValueError) if there is none of this name."""
    make = OPTIMIZERS[config.optimizer.name]
    return make(list(parameters), config.optimizer.lr or 0.0, config.optimizer)


def batch_size(images: int) -> int:
    """Images per step of a run that takes `images` images in all: the largest power of two, from 8 to 128, that leaves
    100 steps. Steps, not images, bring a capsule network off the ground."""
    size = LARGEST_BATCH
    while size > SMALLEST_BATCH and images < ENOUGH_STEPS * size:
        size //= 2
    return size


def learning_rate(
    config: TrainConfig, step: int, total_steps: int, lr_restarts: Sequence[float] = (0.0,)
) -> float:
    """Learning rate of step `step`, counted from 0, of `total_steps`.

    The schedules warmup_cosine, cosine and constant start anew at each of `lr_restarts`, which are
    shares of all steps."""
    rate, schedule = config.optimizer.lr or 0.0, config.schedule
    if schedule.name == "paper":
        # The authors start at once. From this library's weights Adam's first steps would then make every length one.
        fallen = max(PAPER_FLOOR, rate * PAPER_DECAY ** (step / PAPER_STEPS))
        return fallen * min(1.0, (step + 1) / min(_rise(total_steps), PAPER_RISE))
    done = step * config.run.epochs // total_steps
    if schedule.name == "steps":
        return rate * schedule.decay ** sum(done >= epoch for epoch in schedule.milestones)
    if schedule.name == "exponential":
        return rate * max(LOWEST, schedule.decay**done)
    starts = [math.ceil(share * total_steps) for share in lr_restarts]
    first = max(start for start in starts if start <= step)
    last = min((start for start in starts if start > step), default=total_steps)
    step, steps = step - first, last - first
    rise = 0 if schedule.name == "cosine" else _rise(steps)
    if step < rise:
        return rate * (step + 1) / rise
    if schedule.name == "constant":
        return rate
    return rate * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def _rise(steps: int) -> int:
    """Steps in which the rate rises: Adam's first ones move every weight by the whole rate, and a shorter rise leaves
    every capsule saturated."""
    return max(1, round(WARM_UP * steps), min(WARM_UP_STEPS, steps // 2))


def resolve_device(name: str) -> torch.device:
    """A usable device; "auto" is a GPU where there is one. RunError for one that this machine does not have."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if torch.zeros(1, device=device).item() != 0:  # "meta" has no values at all
            raise RuntimeError("it does not compute")
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise RunError(
            f"device: {name!r} cannot be used here ({str(error).splitlines()[0]})"
        ) from error
    return device


def resolve_precision(name: str, device: torch.device) -> str:
    """ "fp32" or "bf16"; "auto" is bf16 where the device multiplies it in hardware."""
    return name if name != "auto" else ("bf16" if has_bf16(device) else "fp32")


def has_bf16(device: torch.device) -> bool:
    """Whether matrix products in bfloat16 run in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # torch offers no public question for these CPU features.
    asks = (
        getattr(torch.cpu, name, None)
        for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    )
    return device.type == "cpu" and any(ask() for ask in asks if ask is not None)
