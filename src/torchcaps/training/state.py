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
from torchcaps.training.checkpoint import PREVIOUS_FILE, as_bytes, load_tensors, save_tensors
from torchcaps.training.files import move


@dataclass
class TrainingState:
    """Where a training stands: what a checkpoint holds beside tensors.

    Attributes:
        step: optimizer steps done.
        lr_scale: share of the configured learning rate in use; below 1 after a second start.
        initial_collapse: what was wrong with the network before its first step
            (`Task.detect_collapse`), or empty.
        restart: sentence that says why the training started again, or empty.
        best_score, best_loss, best_epoch: of the best epoch by validation, counted from 1.
        sums: losses of the epoch so far, summed over its images, with their "count".
    """

    step: int = 0
    lr_scale: float = 1.0
    initial_collapse: str = ""
    restart: str = ""
    best_score: float = -sys.float_info.max
    best_loss: float = sys.float_info.max
    best_epoch: int = 0
    sums: dict[str, float] = field(default_factory=dict)

    def add_losses(self, sums: dict[str, float], count: float) -> None:
        """Add losses that are summed over `count` images to those of the epoch."""
        for name, total in {**sums, "count": count}.items():
            self.sums[name] = self.sums.get(name, 0.0) + total

    def check(self, total_steps: int) -> None:
        """Raise ValueError for the first value that no training of `total_steps` steps has."""
        if self.sums and not {"loss", "count"} <= self.sums.keys():
            raise ValueError(f"sums: expected loss and count among them, got {self.sums!r}")
        expected = vars(TrainingState()) | dict.fromkeys(self.sums, 0.0)
        for name, value in (vars(self) | self.sums).items():
            kind = type(expected[name])
            if type(value) is not kind or (kind is float and not math.isfinite(value)):
                wording = "a finite number" if kind is float else kind.__name__
                raise ValueError(f"{name}: expected {wording}, got {value!r}")
        if not 0 <= self.step <= total_steps:
            raise ValueError(f"step: expected 0 to {total_steps}, got {self.step}")


def save_state(
    path: Path,
    model: nn.Module,
    optimizer: Optimizer,
    state: TrainingState,
    fingerprint: dict[str, Any],
) -> None:
    """Write weights and the state of optimizer and training, atomically; the file before it is kept.

    `fingerprint` is what must not change until the file is read: JSON-ready, its "settings" by
    name. Raises TrainingError when a weight is not finite, or the file cannot be written; the file
    is then as it was.
    """
    check_finite(model, recovery_hint(path))
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, entries in optimizer.state_dict()["state"].items():
        for name, entry in entries.items():
            if isinstance(entry, Tensor):
                tensors[f"optimizer.{index}.{name}"] = entry
    description = fingerprint | {"state": asdict(state)}
    save_tensors(path, tensors, description, previous=path.with_name(PREVIOUS_FILE))


def load_state(
    path: Path,
    model: nn.Module,
    optimizer: Optimizer,
    fingerprint: dict[str, Any],
    total_steps: int,
) -> tuple[TrainingState, str]:
    """Restore what `save_state` wrote into `model` and `optimizer`; a damaged file's predecessor.

    Where there is neither file, nothing is restored. Returns the state, and a sentence if it is
    not that of `path`. Raises RunError if there is no whole state, or it is one of another model,
    or of another fingerprint.
    """
    faults: list[str] = []
    for file in (path, path.with_name(PREVIOUS_FILE)):
        try:
            tensors, description = load_tensors(file)
            if not all(isinstance(description.get(key), dict) for key in ("state", "settings")):
                raise RunError(f"{file}: is not the state of a training")
        except RunError as error:
            if file.exists():
                faults.append(str(error))
            continue
        _check_fingerprint(file, description, fingerprint)
        state = _restore(file, tensors, description["state"], model, optimizer, total_steps)
        if file == path:
            return state, ""
        move(file, path)  # else the next state would put the damaged file in its place
        reason = faults[0] if faults else f"{path}: is missing"
        return state, f"{reason}; going on from the checkpoint before it, of step {state.step}"
    if faults:
        raise RunError("; ".join(faults))
    return TrainingState(), ""


def digest(*tensors: Tensor) -> str:
    """A short text that differs where shapes, types or values do."""
    hasher = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        hasher.update(f"{tensor.dtype} {[*tensor.shape]}".encode())
        hasher.update(as_bytes(tensor.cpu().contiguous()))
    return hasher.hexdigest()


def check_finite(model: nn.Module, hint: str) -> None:
    """Raise TrainingError, which ends with the hint, unless every weight is a finite number."""
    for name, weight in model.state_dict().items():
        if not torch.isfinite(weight).all():
            raise TrainingError(f"the weights {name} became infinite or NaN; {hint}")


def recovery_hint(checkpoint: Path) -> str:
    """What is left of a training that diverged, and what to do about it."""
    advice = "start again with a lower lr, or with clip"
    if checkpoint.exists():
        return f"the last good state is kept in {checkpoint}; {advice}"
    return f"there was no checkpoint yet; {advice}"


def _check_fingerprint(path: Path, saved: dict[str, Any], current: dict[str, Any]) -> None:
    """Raise RunError for the first entry of the fingerprint that differs from the saved one."""
    current = json.loads(json.dumps(current))
    settings = current.pop("settings")
    data_digest = current.pop("digest", None)
    for before, now in ((saved["settings"], settings), (saved, current)):
        for name, value in now.items():
            if before.get(name) != value:
                raise RunError(
                    f"{path}: {name} was {before.get(name)} when the run was stopped, "
                    f"and is {value} now"
                )
    if saved.get("digest") != data_digest:
        raise RunError(
            f"{path}: the images or labels are not those that were there when the run was stopped"
        )


def _restore(
    path: Path,
    tensors: dict[str, Tensor],
    values: dict[str, Any],
    model: nn.Module,
    optimizer: Optimizer,
    total_steps: int,
) -> TrainingState:
    """Put the tensors of a file into model and optimizer; the state is made of `values`."""
    weights = {
        name.removeprefix("model."): tensor
        for name, tensor in tensors.items()
        if name.startswith("model.")
    }
    try:
        state = TrainingState(**values)
        state.check(total_steps)
        model.load_state_dict(weights)
        _restore_optimizer(tensors, optimizer)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[-1].strip()
        raise RunError(f"{path}: is not the state of this training ({reason})") from error
    return state


def _restore_optimizer(tensors: dict[str, Tensor], optimizer: Optimizer) -> None:
    parameters = [weight for group in optimizer.param_groups for weight in group["params"]]
    entries: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if not name.startswith("optimizer."):
            continue
        _, index, key = name.split(".")
        parameter = parameters[int(index)]
        if tensor.shape == parameter.shape:
            # The fused optimizer walks memory: its state must lie as its parameter does.
            tensor = torch.empty_like(parameter).copy_(tensor)
        entries.setdefault(int(index), {})[key] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": entries, "param_groups": groups})
