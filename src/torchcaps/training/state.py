"""The state of a training as one file: what `resume` continues from, bit for bit."""

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
from torchcaps.settings import TrainingSettings
from torchcaps.training.averaging import WeightAverage
from torchcaps.training.checkpoint import PREVIOUS_FILE, load_tensors, save_tensors
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
        best_score: validation score of the best epoch.
        best_loss: its validation loss.
        best_epoch: its number, counted from 1.
        sums: losses of the epoch so far, summed over its images, and their "count".
        loss_scale: of a training in fp16, see `Updater.scale`; else empty.
    """

    step: int = 0
    lr_scale: float = 1.0
    initial_collapse: str = ""
    restart: str = ""
    best_score: float = -sys.float_info.max
    best_loss: float = sys.float_info.max
    best_epoch: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    loss_scale: list[float] = field(default_factory=list)

    def add_losses(self, sums: dict[str, float]) -> None:
        """Add summed losses, and the "count" of their images, to those of the epoch."""
        for name, total in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + total

    def update_best(self, score: float, loss: float, epoch: int) -> bool:
        """Note an epoch if it is the best one: of the highest score, then of the lowest loss.

        Args:
            score: validation score of the epoch.
            loss: its validation loss.
            epoch: its number, counted from 1.

        Returns:
            Whether it is the best one so far.
        """
        is_best = (score, -loss) > (self.best_score, -self.best_loss)
        if is_best:
            self.best_score = score
            self.best_loss = loss
            self.best_epoch = epoch
        return is_best

    def check(self, total_steps: int) -> None:
        """Raise ValueError for the first value that no training of `total_steps` steps has."""
        if self.sums and not {"loss", "count"} <= self.sums.keys():
            raise ValueError(f"sums: expected loss and count among them, got {self.sums!r}")
        scale = dict(zip(("factor of losses", "its age"), self.loss_scale, strict=False))
        expected = vars(TrainingState()) | dict.fromkeys(self.sums | scale, 0.0)
        for name, value in (vars(self) | self.sums | scale).items():
            kind = type(expected[name])
            if type(value) is not kind or (kind is float and not math.isfinite(value)):
                wording = "a finite number" if kind is float else kind.__name__
                raise ValueError(f"{name}: expected {wording}, got {value!r}")
        if len(self.loss_scale) not in (0, 2):
            raise ValueError(f"loss_scale: expected no or two numbers, got {self.loss_scale!r}")
        if not 0 <= self.step <= total_steps:
            raise ValueError(f"step: expected 0 to {total_steps}, got {self.step}")


def early_end(settings: TrainingSettings, epoch: int, best_epoch: int, best_score: float) -> str:
    """Why a training ends before its last epoch, a sentence; empty where it goes on.

    Args:
        settings: `stop_at`, a score that is enough; `patience`, a number of epochs, which are
            counted anew where the training was extended.
        epoch: number of epochs that are done.
        best_epoch: number of the best one, counted from 1.
        best_score: its score on held-out images.
    """
    if settings.stop_at is not None and best_score >= settings.stop_at:
        return f"epoch {best_epoch} has reached stop_at: the training ends"
    num_epochs = epoch - max((best_epoch, *settings.extended_at))
    if settings.patience is not None and num_epochs >= settings.patience:
        return (
            f"none of the last {num_epochs} epochs was better than epoch {best_epoch}: the "
            "training ends (patience)"
        )
    return ""


def mean_losses(sums: dict[str, float]) -> dict[str, float]:
    """Means of summed losses over the "count" of their images."""
    return {name: total / sums["count"] for name, total in sums.items() if name != "count"}


def save_state(
    path: Path,
    model: nn.Module,
    optimizer: Optimizer,
    average: WeightAverage | None,
    state: TrainingState,
    fingerprint: dict[str, Any],
) -> None:
    """Write weights and the state of optimizer and training, atomically; the last file is kept.

    Args:
        path: of the file.
        model: whose weights are written.
        optimizer: of these weights.
        average: of these weights, where there is one.
        state: of the training.
        fingerprint: JSON-ready values by name that must not change until the file is read.

    Raises:
        TrainingError: a weight is not finite, or the file cannot be written; it is then as it was.
    """
    check_finite(model, recovery_hint(path))
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    if average is not None:
        tensors |= {f"average.{name}": tensor for name, tensor in average.weights.items()}
    for index, entries in optimizer.state_dict()["state"].items():
        for name, entry in entries.items():
            if isinstance(entry, Tensor):
                tensors[f"optimizer.{index}.{name}"] = entry
    description = {"fingerprint": fingerprint, "state": asdict(state)}
    save_tensors(path, tensors, description, previous=path.with_name(PREVIOUS_FILE))


def load_state(
    path: Path,
    model: nn.Module,
    optimizer: Optimizer,
    average: WeightAverage | None,
    fingerprint: dict[str, Any],
    total_steps: int,
) -> tuple[TrainingState, str]:
    """Restore what `save_state` wrote into model, optimizer and average; or a damaged file's
    predecessor.

    Returns:
        The state, that of the start where there is neither file; and a sentence if it is not
        that of `path`.

    Raises:
        RunError: there is no whole state, or it is one of another model, or of another fingerprint.
    """
    faults: list[str] = []
    for file in (path, path.with_name(PREVIOUS_FILE)):
        try:
            tensors, description = load_tensors(file)
            if not description.keys() >= {"fingerprint", "state"}:
                raise RunError(f"{file}: is not the state of a training")
        except RunError as error:
            if file.exists():
                faults.append(str(error))
            continue
        _check_fingerprint(file, description["fingerprint"], fingerprint)
        try:
            state = TrainingState(**description["state"])
            state.check(total_steps)
            _restore(tensors, model, optimizer, average)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[-1].strip()
            raise RunError(f"{file}: is not the state of this training ({reason})") from error
        if file == path:
            return state, ""
        move(file, path)  # else the next state would put the damaged file in its place
        reason = faults[0] if faults else f"{path}: is missing"
        return state, f"{reason}; going on from the checkpoint before it, of step {state.step}"
    if faults:
        raise RunError("; ".join(faults))
    return TrainingState(), ""


def check_finite(model: nn.Module, hint: str) -> None:
    """Raise TrainingError, which ends with the hint, unless every weight is a finite number."""
    for name, weight in model.state_dict().items():
        if not torch.isfinite(weight).all():
            raise TrainingError(f"the weights {name} became infinite or NaN; {hint}")


def recovery_hint(checkpoint: Path) -> str:
    """State of a training that diverged, and how to continue."""
    advice = "start again with a lower lr, or with clip"
    if checkpoint.exists():
        return f"the last good state is kept in {checkpoint}; {advice}"
    return f"there was no checkpoint yet; {advice}"


def _check_fingerprint(path: Path, saved: Any, current: dict[str, Any]) -> None:
    """Raise RunError for the first entry of the fingerprint that differs from the saved one."""
    if not isinstance(saved, dict):
        raise RunError(f"{path}: is not the state of a training")
    current = json.loads(json.dumps(current))
    *extensions, last_extension = current.get("extended_at") or [None]
    if saved.get("extended_at") == extensions and saved.get("epochs") == last_extension:
        # The end of a training that goes on.
        current |= {"epochs": last_extension, "extended_at": extensions}
    for name, value in current.items():
        if saved.get(name) != value:
            raise RunError(
                f"{path}: {name} was {saved.get(name)} when the run was stopped, and is {value} now"
            )


def _restore(
    tensors: dict[str, Tensor],
    model: nn.Module,
    optimizer: Optimizer,
    average: WeightAverage | None,
) -> None:
    """Put the tensors of a file into model, optimizer and average."""
    parameters = [weight for group in optimizer.param_groups for weight in group["params"]]
    weights: dict[str, Tensor] = {}
    averages: dict[str, Tensor] = {}
    entries: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        owner, _, key = name.partition(".")
        if owner == "model":
            weights[key] = tensor
            continue
        if owner == "average":
            averages[key] = tensor
            continue
        index, _, key = key.partition(".")
        parameter = parameters[int(index)]
        if tensor.shape == parameter.shape:
            # The fused optimizer walks memory: its state must lie as its parameter does.
            tensor = torch.empty_like(parameter).copy_(tensor)
        entries.setdefault(int(index), {})[key] = tensor
    model.load_state_dict(weights)
    if average is not None:
        average.load(averages)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": entries, "param_groups": groups})
