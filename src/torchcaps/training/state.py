"""The state of a training as one file: what `resume` continues from, bit for bit."""

import hashlib
import json
import math
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchcaps.errors import RunError, TrainingError
from torchcaps.training.checkpoint import PREVIOUS_FILE, as_bytes, load_tensors, move, save_tensors


@dataclass
class Progress:
    """Where a training stands: everything beside tensors that a checkpoint holds."""

    step: int = 0
    rate: float = 1.0  # share of the configured learning rate in use: below 1 once the training has started again
    began: str = ""  # what was wrong with the network before its first step, by the task's `stuck`
    best_score: float = -sys.float_info.max
    best_loss: float = sys.float_info.max
    best_epoch: int = 0
    sums: dict[str, float] = field(default_factory=dict)


def save_state(
    path: Path, model: nn.Module, optimizer: Optimizer, progress: Progress, about: dict[str, Any]
) -> None:
    """Write weights, the optimizer's state and the progress, atomically; the file before it is kept beside it.

    The optimizer is over all of the model's parameters in their order. `about` is what must not change until the file
    is read: JSON-ready, its "settings" by name. TrainingError when a weight is not finite, or the file cannot be
    written; the file is then as it was."""
    check_finite(model, diverged(path))
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {
            f"optimizer.{index}.{n}": tensor
            for n, tensor in state.items()
            if isinstance(tensor, Tensor)
        }
    save_tensors(
        path, tensors, about | {"progress": asdict(progress)}, before=path.with_name(PREVIOUS_FILE)
    )


def load_state(
    path: Path, model: nn.Module, optimizer: Optimizer, about: dict[str, Any], *, steps: int
) -> tuple[Progress, str]:
    """Take up what `save_state` wrote, into `model` and `optimizer`; where it is damaged, the state before it.

    Where there is neither, nothing is taken up. `about` is as it was saved, but a key that the file lacks may be new;
    `steps` are those of the whole training. Returned is the progress, and a sentence if it is not that of `path`.
    Raises RunError if there is no whole state, or it is one of another model, or of settings, data or threads that are
    not these."""
    faults: list[str] = []
    for file in (path, path.with_name(PREVIOUS_FILE)):
        try:
            tensors, found = load_tensors(file)
            if not (
                isinstance(found.get("progress"), dict)
                and isinstance(found.get("settings", {}), dict)
            ):
                raise RunError(f"{file}: is not the state of a training")
        except RunError as error:
            faults += [str(error)] if file.exists() else []
            continue
        _check_unchanged(file, found, about)
        progress = _take_up(file, tensors, found["progress"], model, optimizer)
        _check_progress(file, progress, steps)
        if file == path:
            return progress, ""
        move(
            file, path
        )  # the next state must not put the damaged one in the place of the whole one
        reason = faults[0] if faults else f"{path}: is missing"
        return (
            progress,
            f"{reason}; going on from the checkpoint before it, of step {progress.step}",
        )
    if faults:
        raise RunError("; ".join(faults))
    return Progress(), ""


def digest(*tensors: Tensor) -> str:
    """A short text that differs where shapes, types or values do."""
    found = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        found.update(f"{tensor.dtype} {[*tensor.shape]}".encode())
        found.update(as_bytes(tensor.cpu().contiguous()))
    return found.hexdigest()


def _check_unchanged(path: Path, found: dict[str, Any], about: dict[str, Any]) -> None:
    """Raise RunError for the first thing that the file knows to have been otherwise."""
    if "kind" in found.get("settings", {}):  # another loop wrote it, which held no images out
        raise RunError(
            f"{path}: was written by an early version; its model is kept, but this training cannot go on"
        )
    now = json.loads(json.dumps(about))
    values = now.pop("settings") | {
        f" {key}": value for key, value in now.items()
    }  # a setting may have the same name
    before = found.get("settings", {}) | {f" {key}": value for key, value in found.items()}
    for name, value in values.items():
        was = before.get(name, value)
        if was == "auto":  # early versions wrote down what was asked, not what was chosen
            continue
        if was != value and name == " digest":
            raise RunError(
                f"{path}: the images or labels are not those that were there when the run was stopped"
            )
        if was != value:
            raise RunError(
                f"{path}: {name.strip()} was {was} when the run was stopped, and is {value} now"
            )


def _take_up(
    path: Path,
    tensors: dict[str, Tensor],
    progress: dict[str, Any],
    model: nn.Module,
    optimizer: Optimizer,
) -> Progress:
    try:
        model.load_state_dict(
            {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
        )
        groups = optimizer.state_dict()["param_groups"]
        state = _optimizer_state(tensors, list(model.parameters()))
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        return Progress(**_names_now(progress))
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise RunError(
            f"{path}: is not the state of this training ({str(error).splitlines()[-1].strip()})"
        ) from error


def _names_now(progress: dict[str, Any]) -> dict[str, Any]:
    """The progress of an early version, whose score was the accuracy and whose loss of the classes was "margin"."""
    if "best_accuracy" not in progress:
        return progress
    found = {
        ("best_score" if name == "best_accuracy" else name): value
        for name, value in progress.items()
    }
    if isinstance(found.get("sums"), dict) and "correct" in found["sums"]:
        found["sums"] = {
            ("accuracy" if n == "correct" else n): value for n, value in found["sums"].items()
        }
    return found


def _check_progress(path: Path, progress: Progress, steps: int) -> None:
    """Raise RunError for the first value that is not of its kind or out of its range."""
    if not isinstance(progress.sums, dict) or (
        progress.sums and not {"loss", "count"} <= progress.sums.keys()
    ):
        raise RunError(
            f"{path}: sums: expected none, or loss and count among them, got {progress.sums!r}"
        )
    numbers = {name: value for name, value in vars(progress).items() if name != "sums"}
    for name, value in (numbers | progress.sums).items():
        if name == "began":
            good, wanted = isinstance(value, str), "a sentence"
        elif name in ("step", "best_epoch"):
            good, wanted = type(value) is int and value >= 0, "a whole number from 0 on"
        else:
            good, wanted = type(value) in (int, float) and abs(value) < math.inf, "a finite number"
        if not good:
            raise RunError(f"{path}: {name}: expected {wanted}, got {value!r}")
    if progress.step > steps:
        raise RunError(f"{path}: step: expected at most {steps}, got {progress.step}")


def check_finite(model: nn.Module, left: str) -> None:
    """Raise TrainingError, which ends with what is `left`, unless every weight of `model` is a finite number."""
    for name, weight in model.state_dict().items():
        if not torch.isfinite(weight).all():
            raise TrainingError(f"the weights {name} became infinite or NaN; {left}")


def diverged(kept: Path) -> str:
    """What to do about a training that left the finite numbers, and what is left of it."""
    left = (
        f"the last good state is kept in {kept}" if kept.exists() else "there was no checkpoint yet"
    )
    return f"{left}; start again with a lower lr, or with clip"


def _optimizer_state(
    tensors: dict[str, Tensor], parameters: list[nn.Parameter]
) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".")
            # The fused optimizer walks memory: its state must lie as its parameter does (channels last).
            like = parameters[int(index)]
            laid = torch.empty_like(like).copy_(tensor) if tensor.shape == like.shape else tensor
            state.setdefault(int(index), {})[key] = laid
    return state
