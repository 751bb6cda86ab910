"""Learning-rate schedules and hardware precision."""

from __future__ import annotations

import math

import torch

from torchcaps.errors import RunError
from torchcaps.training.config import TrainConfig

WARM_UP, WARM_UP_STEPS = 0.05, 40
PAPER_DECAY, PAPER_STEPS, PAPER_FLOOR, PAPER_RISE = 0.96, 2000, 1e-6, 1000


def learning_rate(config: TrainConfig, step: int, total_steps: int) -> float:
    """Learning rate of step `step`, counted from 0, of `total_steps`."""
    # Adam's first steps move every weight by the whole rate: a shorter rise leaves every capsule saturated.
    rise = max(1, round(WARM_UP * total_steps), min(WARM_UP_STEPS, total_steps // 2))
    if config.schedule == "paper":
        # The authors start at once. From this library's weights Adam's first steps would then make every length one.
        fallen = max(PAPER_FLOOR, config.lr * PAPER_DECAY ** (step / PAPER_STEPS))
        return fallen * min(1.0, (step + 1) / min(rise, PAPER_RISE))
    if step < rise:
        return config.lr * (step + 1) / rise
    if config.schedule == "constant":
        return config.lr
    return config.lr * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, total_steps - rise)))


def resolve_device(name: str) -> torch.device:
    """A usable device; "auto" is a GPU where there is one.

    Raises:
        RunError: for a device that this machine does not have.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if torch.zeros(1, device=device).item() != 0:  # "meta" has no values at all
            raise RuntimeError("it does not compute")
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise RunError(f"device: {name!r} cannot be used here ({str(error).splitlines()[0]})") from error
    return device


def resolve_precision(name: str, device: torch.device) -> str:
    """ "fp32" or "bf16"; "auto" is bf16 where the device multiplies it in hardware."""
    return name if name != "auto" else ("bf16" if has_bf16(device) else "fp32")


def has_bf16(device: torch.device) -> bool:
    """Whether matrix products in bfloat16 run in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # torch offers no public question for these CPU features.
    asks = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return device.type == "cpu" and any(ask() for ask in asks if ask is not None)
