"""Where a training leaves what it finds: in memory, or in a run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from torchcaps.data import ImageSet, MaskedSet
from torchcaps.distributed import current
from torchcaps.errors import TrainingError
from torchcaps.training.checkpoint import save_tensors
from torchcaps.training.run_folder import RunFolder
from torchcaps.training.state import Progress, digest, diverged, load_state, save_state

if TYPE_CHECKING:
    from torchcaps.training.loop import Trainer


class MemoryLogger:
    """Keeps the rows of the metrics and the best model; there is nothing to continue from."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.best: dict[str, Tensor] | None = (
            None  # a state_dict on the model's device; None before the first epoch
        )

    def restore(self, trainer: Trainer) -> Progress:
        """Take up what an earlier process left, into the model and the optimizer; where it stands."""
        return trainer.progress

    def log(self, row: dict[str, Any]) -> None:
        """Keep a row of the metrics."""
        self.rows.append(row)

    def keep(self, model: nn.Module, epoch: int, best: bool) -> None:
        """An epoch has ended, with the best model so far or not."""
        if best:
            self.best = {
                name: tensor.detach().clone() for name, tensor in model.state_dict().items()
            }

    def save(self, trainer: Trainer) -> None:
        """Keep what `restore` needs."""

    def clear(self) -> None:
        """The training starts again: forget the metrics."""
        self.rows.clear()

    def left(self) -> str:
        """What is left of a training that failed, and what to do about it."""
        return "start again with a lower lr, or with clip"


class RunLogger(MemoryLogger):
    """A run folder: metrics, checkpoints to continue from, and the best model. Only the first process writes.

    The caller holds the folder (`begun`, `continued`). `about` describes the model (`checkpoint.describe_model`)."""

    def __init__(
        self,
        run: RunFolder,
        about: dict[str, Any],
        images: ImageSet,
        held: ImageSet,
        *,
        keep_epochs: bool,
    ) -> None:
        super().__init__()
        self.run, self.about, self.keep_epochs, self.main = (
            run,
            about,
            keep_epochs,
            current().is_main,
        )
        kinds = {"classes": images.num_classes, "channels": images.in_chans}
        masks = [each.masks for each in (images, held) if isinstance(each, MaskedSet)]
        seen = digest(images.images, images.labels, held.images, held.labels, *masks)
        self.data = {"data": {"train": len(images), "held out": len(held)} | kinds, "digest": seen}

    def restore(self, trainer: Trainer) -> Progress:
        model, optimizer, ranks = trainer.task.model, trainer.optimizer, trainer.ranks
        progress, text = trainer.progress, ""
        if self.main:
            about = self.run.unchanging(trainer.config) | self.data
            progress, text = load_state(self.run.last, model, optimizer, about, steps=trainer.total)
            self.run.rewind(progress.step)
        if ranks.world_size > 1:
            if len({*ranks.gather(self.data["digest"])}) > 1:
                raise TrainingError(
                    "data: expected the same images and labels in all processes, got different ones"
                )
            state = (
                progress,
                optimizer.state_dict(),
                {n: t.cpu() for n, t in model.state_dict().items()},
            )
            progress, moments, weights = ranks.broadcast(state)
            model.load_state_dict(weights)
            optimizer.load_state_dict(moments)
        if text:
            trainer.tell({"kind": "note", "step": progress.step, "text": text})
        return progress

    def log(self, row: dict[str, Any]) -> None:
        if self.main:
            self.run.append(row)

    def keep(self, model: nn.Module, epoch: int, best: bool) -> None:
        for path, wanted in (
            (self.run.model, best),
            (self.run.epoch_model(epoch), self.keep_epochs),
        ):
            if wanted and self.main:
                save_tensors(path, model.state_dict(), self.about)

    def save(self, trainer: Trainer) -> None:
        if self.main:
            about = self.run.unchanging(trainer.config) | self.data
            save_state(
                self.run.last, trainer.task.model, trainer.optimizer, trainer.progress, about
            )

    def clear(self) -> None:
        if self.main:
            self.run.rewind(-1)

    def left(self) -> str:
        return diverged(self.run.last)
