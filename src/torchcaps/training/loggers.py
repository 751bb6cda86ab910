"""Where a training leaves its metrics, models and states: in memory, or in a run folder."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from torchcaps.data import ImageSet, MaskedSet
from torchcaps.distributed import current
from torchcaps.errors import TrainingError
from torchcaps.settings import TrainConfig
from torchcaps.training.checkpoint import save_tensors
from torchcaps.training.run import Run
from torchcaps.training.state import (
    TrainingState,
    digest,
    load_state,
    recovery_hint,
    save_state,
)


class MemoryLogger:
    """Keeps the rows of the metrics and the best model; there is nothing to continue from.

    Attributes:
        rows: of the metrics.
        best_weights: a state_dict on the model's device; None before the first epoch.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.best_weights: dict[str, Tensor] | None = None

    def restore(
        self, model: nn.Module, optimizer: Optimizer, total_steps: int
    ) -> tuple[TrainingState, str]:
        """Restore the newest state; where it stands, and a sentence if an older one had to do."""
        return TrainingState(), ""

    def log(self, row: dict[str, Any]) -> None:
        """Keep a row of the metrics."""
        self.rows.append(row)

    def save_model(self, model: nn.Module, epoch: int, is_best: bool) -> None:
        """Keep the model of an epoch that has ended, counted from 1."""
        if is_best:
            self.best_weights = {
                name: tensor.detach().clone() for name, tensor in model.state_dict().items()
            }

    def save_state(self, model: nn.Module, optimizer: Optimizer, state: TrainingState) -> None:
        """Keep what `restore` needs."""

    def clear(self) -> None:
        """Forget the metrics: the training starts again."""
        self.rows.clear()

    @property
    def recovery_hint(self) -> str:
        """What is left of a training that failed, and what to do about it."""
        return "start again with a lower lr, or with clip"


class RunLogger(MemoryLogger):
    """A run folder: metrics, checkpoints to continue from, and the best model.

    Only the first process writes. The caller holds the folder (`Run.create`, `Run.resume`).

    Args:
        run: the folder.
        config: resolved configuration of the run.
        description: of the model (`checkpoint.describe_model`).
        train_images, val_images: to be the same when the run is resumed.
    """

    def __init__(
        self,
        run: Run,
        config: TrainConfig,
        description: dict[str, Any],
        train_images: ImageSet,
        val_images: ImageSet,
    ) -> None:
        super().__init__()
        self.run = run
        self.config = config
        self.description = description
        self.is_main = current().is_main
        tensors = [train_images.images, train_images.labels, val_images.images, val_images.labels]
        tensors += [x.masks for x in (train_images, val_images) if isinstance(x, MaskedSet)]
        self.data = {
            "data": {
                "train": len(train_images),
                "held out": len(val_images),
                "classes": train_images.num_classes,
                "channels": train_images.in_chans,
            },
            "digest": digest(*tensors),
        }

    def restore(
        self, model: nn.Module, optimizer: Optimizer, total_steps: int
    ) -> tuple[TrainingState, str]:
        state, note = TrainingState(), ""
        if self.is_main:
            state, note = load_state(
                self.run.checkpoint_path, model, optimizer, self._fingerprint(), total_steps
            )
            self.run.truncate(state.step)
        ranks = current()
        if ranks.world_size > 1:
            if len(set(ranks.gather(self.data["digest"]))) > 1:
                raise TrainingError(
                    "data: expected the same images and labels in all processes, got different ones"
                )
            weights = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
            state, moments, weights = ranks.broadcast((state, optimizer.state_dict(), weights))
            model.load_state_dict(weights)
            optimizer.load_state_dict(moments)
        return state, note

    def log(self, row: dict[str, Any]) -> None:
        if self.is_main:
            self.run.append(row)

    def save_model(self, model: nn.Module, epoch: int, is_best: bool) -> None:
        if is_best and self.is_main:
            save_tensors(self.run.model_path, model.state_dict(), self.description)
        if self.config.training.keep_epochs and self.is_main:
            save_tensors(self.run.epoch_model_path(epoch), model.state_dict(), self.description)

    def save_state(self, model: nn.Module, optimizer: Optimizer, state: TrainingState) -> None:
        if self.is_main:
            save_state(self.run.checkpoint_path, model, optimizer, state, self._fingerprint())

    def clear(self) -> None:
        if self.is_main:
            self.run.truncate(-1)

    @property
    def recovery_hint(self) -> str:
        return recovery_hint(self.run.checkpoint_path)

    def _fingerprint(self) -> dict[str, Any]:
        return self.run.fingerprint(self.config) | self.data
