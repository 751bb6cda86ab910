"""The state of a training as one file: what `resume` continues from, bit for bit."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchcaps.errors import RunError, TrainingError
from torchcaps.training.checkpoint import load_tensors, save_tensors


@dataclass
class Progress:
    """Where a training stands: everything beside tensors that a checkpoint holds.

    `rate` is the share of the configured learning rate that is in use: below 1 once the training has started again.
    """

    step: int = 0
    rate: float = 1.0
    best_accuracy: float = -1.0
    best_loss: float = sys.float_info.max
    best_epoch: int = 0
    sums: dict[str, float] = field(default_factory=dict)


def save_state(path: Path, model: nn.Module, optimiser: Optimizer, progress: Progress, about: dict[str, Any]) -> None:
    """Write weights, the optimiser's state and the progress, atomically.

    Args:
        path: the file.
        model: whose weights must all be finite.
        optimiser: over all of the model's parameters, in their order.
        progress: where the training stands.
        about: JSON-ready, to compare with when the file is read.

    Raises:
        TrainingError: when a weight is not finite, or the file cannot be written; the file is then as it was.
    """
    check_finite(model, path)
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{index}.{name}": tensor for name, tensor in state.items()}
    save_tensors(path, tensors, about | {"progress": asdict(progress)})


def load_state(path: Path, model: nn.Module, optimiser: Optimizer, about: dict[str, Any]) -> Progress:
    """Take up what `save_state` wrote, into `model` and `optimiser`.

    Raises:
        RunError: for a damaged file, one of another model, or one whose `about` is not this one.
    """
    tensors, found = load_tensors(path)
    for key, value in about.items():
        if found.get(key) != value:
            raise RunError(f"{path}: {key} was {found.get(key)} when the run was stopped, and is {value} now")
    try:
        progress = Progress(**found["progress"])
        model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
        groups = optimiser.state_dict()["param_groups"]
        state = _optimiser_state(tensors, list(model.parameters()))
        optimiser.load_state_dict({"state": state, "param_groups": groups})
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise RunError(f"{path}: is not the state of this training ({str(error).splitlines()[-1].strip()})") from error
    return progress


def check_finite(model: nn.Module, kept: Path) -> None:
    """Raise TrainingError, naming the last good file `kept`, unless every weight of `model` is a finite number."""
    for name, weight in model.state_dict().items():
        if not torch.isfinite(weight).all():
            raise TrainingError(f"the weights {name} became infinite or NaN; {diverged(kept)}")


def diverged(kept: Path) -> str:
    """What to do about a training that left the finite numbers, and what is left of it."""
    left = f"the last good state is kept in {kept}" if kept.exists() else "there was no checkpoint yet"
    return f"{left}; start again with a lower lr, or with clip"


def _optimiser_state(tensors: dict[str, Tensor], parameters: list[nn.Parameter]) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimiser."):
            _, index, key = name.split(".")
            # The fused optimiser walks memory: its state must lie as its parameter does (channels last).
            like = parameters[int(index)]
            laid = torch.empty_like(like).copy_(tensor) if tensor.shape == like.shape else tensor
            state.setdefault(int(index), {})[key] = laid
    return state
