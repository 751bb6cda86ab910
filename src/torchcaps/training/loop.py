"""The training loop: plain steps of any task, by one or several processes.

A step in order (`Trainer.step`): the learning rates; the seed of the step; the batch, augmented, in
as many parts as `accumulate` says; losses and gradients of each; on a CPU the losses are read and
must be finite; the gradient is clipped, the weights change, then their average. Callbacks are told
of it afterwards, on a GPU of several steps together.

Words:
    task: a model with its loss (`training_step`), its metrics (`compute_metrics`) and its batches.
        `Task.score` names the validation metric by which the best epoch is chosen; more is better.
    rank: number of this process among the `world_size` processes of the run, which `torchrun`
        starts. Each draws the whole batch, and computes the losses of its *shard*: a part of the
        samples, which may be empty. Then gradients are averaged and losses summed over all ranks.
    row: a dictionary of metrics of an epoch, of some steps, or of a note.
    collapse: a sentence on a network that does not learn, such as "every class capsule was dead".
        The training then starts again, once, with a lower learning rate: the *second start*.

Every random choice of a step comes from (seed, step) or (seed, epoch) alone (`step_seed`), so a
checkpoint needs no state of random generators, and a run that was killed continues bit for bit.
"""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.data import Batch, Dataset
from torchcaps.distributed import current, sync_batch_norms
from torchcaps.errors import TrainingError
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task, eval_outputs
from torchcaps.training.callbacks import Callback, Losses, Row as Row
from torchcaps.training.device import arithmetic, memory_errors
from torchcaps.training.sampling import DatasetBatches, Rows
from torchcaps.training.schedules import learning_rate_factor, learning_rates, part_ends
from torchcaps.training.update import Updater
from torchcaps.transfer import tape
from torchcaps.types import Json, Tensors

LOG_INTERVAL = 20  # steps after which losses are read at the latest
PROBE_STEP = 100  # number of steps done when a network that does not learn starts again


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
        loss_scale: state of the `GradScaler` of a training in fp16; else empty.
    """

    step: int = 0
    lr_scale: float = 1.0
    initial_collapse: str = ""
    restart: str = ""
    best_score: float = -sys.float_info.max
    best_loss: float = sys.float_info.max
    best_epoch: int = 0
    sums: Losses = field(default_factory=dict)
    loss_scale: Losses = field(default_factory=dict)


class Trainer:
    """One training of a task, on the device of its model.

    Args:
        task: the model with its losses and metrics.
        config: complete.
        batches: the images of each step.
        val_images: images to choose the best epoch by.
        callbacks: what is told of the training.

    Attributes:
        model: of the task; `updater` changes its weights.
        state: where the training stands; a callback may restore it in `on_start`.
        losses, loss_names: of this rank in the newest step; names of those without axes.
        graph: takes steps of a GPU without the host, where it can.
        history, notes: rows of the epochs of this process, and of events such as a second start.
        messages: sentences for whoever watches.
        calibration: of the best model on the held-out images, where a callback has made it.
        checkpoint: file of the newest state, where there is one.
        is_stopped, is_finished: whether it ends after this step, by `stop` or by a rule.
        error: that ended it.
        steps_per_epoch, total_steps, planned_steps: numbers of steps; the last without added epochs.
        probe_step: number of steps after which a second start is decided.
    """

    calibration: Json | None = None
    checkpoint: Path | None = None
    is_stopped = is_finished = False
    error: BaseException | None = None
    graph: Any = None

    def __init__(
        self,
        task: Task,
        config: TrainConfig,
        batches: DatasetBatches,
        val_images: Dataset,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.task = task
        self.model: nn.Module = task.model
        self.config = config
        self.batches = batches
        self.val_images = val_images
        self.callbacks = callbacks
        self.ranks = current()
        self.steps_per_epoch = batches.steps(0)
        self.total_steps = config.training.epochs * self.steps_per_epoch
        self.planned_steps = part_ends(config, self.total_steps)[0]
        self.probe_step = min(PROBE_STEP, self.planned_steps // 2)
        sync_batch_norms(self.model, self.ranks)  # statistics over the samples of all ranks
        self.updater = Updater(task, config, self.ranks)
        # A number that the host reads makes it wait for a GPU.
        self.reads_each_step = self.updater.device.type == "cpu" or self.ranks.world_size > 1
        for callback in callbacks:
            has_on_step = type(callback).on_step is not Callback.on_step
            self.reads_each_step |= has_on_step and not callback.is_late
        self._queue = LossQueue()
        self.state = TrainingState()
        self.losses: Tensors = {}
        self.loss_names: list[str] = []
        self.history: list[Row] = []
        self.notes: list[Row] = []
        self.messages: list[str] = []
        if self.updater.device.type == "cuda" or config.training.graph == "yes":
            from torchcaps.training.graph import StepGraph

            self.graph = StepGraph(self)

    def run(self) -> None:
        """Train from the state that a callback restores, or the start, to the last step.

        Raises TrainingError where a loss, a validation metric or a weight is not finite.
        """
        started: list[Callback] = []
        settings = self.config.training
        try:
            with (
                memory_errors(settings.batch_size or 1),
                arithmetic(self.updater.device, self.updater.precision, settings.deterministic),
                self.graph.stream() if self.graph else nullcontext(),
            ):
                for callback in self.callbacks:
                    started.append(callback)
                    callback.on_start(self)
                while self.state.step < self.total_steps and not self._is_over():
                    self._run_epoch()
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.updater.release()
            with ExitStack() as stack:
                for callback in reversed(started):
                    stack.callback(callback.on_end, self)

    def stop(self) -> None:
        """End the training after this step."""
        self.is_stopped = True

    def note(self, text: str, step: int = 0) -> None:
        """Say what happened, and keep it with the metrics.

        Args:
            text: a sentence.
            step: at which it happened.
        """
        self.messages.append(text)
        self.notes.append({"kind": "note", "step": step, "text": text})

    def restart(self, weights: Mapping[str, Tensor], lr_scale: float, reason: str) -> None:
        """Go back to the start of the training with another learning rate.

        Args:
            weights: state of the model at the start.
            lr_scale: factor of the learning rate.
            reason: a sentence, which is noted.
        """
        self.model.load_state_dict(weights)
        self.updater.reset()
        if self.graph:
            self.graph.reset()
        self.history.clear()
        self.state = TrainingState(lr_scale=lr_scale, restart=reason)
        self.note(reason)

    def _run_epoch(self) -> None:
        """Take the steps of an epoch that are not done yet, unless the training starts again."""
        state = self.state
        epoch, num_steps_done = divmod(state.step, self.steps_per_epoch)
        start = time.perf_counter()
        num_samples = 0
        for item in self.batches.epoch(epoch, num_steps_done):
            self.step(item)
            num_samples += self.ranks.shard_size(len(item.indices))
            is_epoch_end = state.step % self.steps_per_epoch == 0
            if self.reads_each_step or is_epoch_end or is_due(self):
                self._queue.report(self)
            if self.state is not state:
                return
            if is_epoch_end:
                with self.updater.averaged():
                    end_epoch(self, num_samples, time.perf_counter() - start)
            elif self._is_over():
                self._queue.report(self)
                return

    def _is_over(self) -> bool:
        """Whether the training ends here, by a rule or because any rank was asked to stop."""
        self.is_stopped = self.ranks.any(self.is_stopped)
        return self.is_stopped or self.is_finished

    def step(self, item: Batch | Rows) -> None:
        """Take a step, after which the state is that of the next one.

        Args:
            item: of `batches`, for all ranks together.
        """
        state = self.state
        updater = self.updater
        restarts = self.task.lr_restarts
        factor = learning_rate_factor(self.config, state.step, self.total_steps, restarts)
        rates = learning_rates(updater.optimizer, factor, state.lr_scale)
        fraction_trained = min(1.0, state.step / self.planned_steps)
        share = updater.average.share(state.step + 1) if updater.average else 0.0
        self.seed()
        graph = self.graph if self.graph and not self.graph.reason else None
        if graph:  # which also takes the warm-up steps, and updates weights
            means = graph.step(item, [fraction_trained, share, *rates])
        else:
            means = self.compute_gradients(item, fraction_trained)
        num_samples = self.ranks.shard_size(len(item.indices))
        names = [*self.loss_names, "count"]
        self._queue.steps.append((state.step, rates[0], num_samples, names, means))
        if self.reads_each_step:  # before an update, which an infinite loss would spoil
            self._queue.add_to_sums(self)
        state.step += 1
        if graph is None:
            updater.update(rates, share)

    def seed(self) -> None:
        """Let what is drawn next be that of the step."""
        self.batches.seed(self.state.step)
        self.updater.seed(self.state.step)

    def compute_gradients(self, item: Batch | Rows, fraction_trained: float | Tensor) -> Tensor:
        """Compute losses and gradients of a step.

        Args:
            item: of `batches`.
            fraction_trained: share of the training that is done, in [0, 1].

        Returns:
            The means of the losses `loss_names`, `[losses]` on the device.
        """
        with tape.get() or nullcontext():
            batch = self.batches.load(item)
        self.losses = self.updater.compute_gradients(batch, fraction_trained)
        self.loss_names = [name for name, loss in self.losses.items() if loss.dim() == 0]
        return torch.stack([self.losses[name] for name in self.loss_names])


class LossQueue:
    """Losses of steps that the callbacks have not been told of. On a GPU they wait there unread.

    Attributes:
        steps: of each step its number, counted from 0, learning rate, samples of this rank, names
            and means of the losses.
        rows: losses that were read and not told yet, a row a step.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[int, float, int, list[str], Tensor]] = []
        self.rows: list[Losses] = []

    def add_to_sums(self, trainer: Trainer) -> None:
        """Read the losses, for which the host waits once, and add them to those of the epoch.

        Raises TrainingError for one that is not finite.
        """
        if not self.steps:
            return
        sums = trainer.state.sums
        table = torch.stack([means for *_, means in self.steps]).cpu().double()
        for (step, lr, num_samples, names, _), means in zip(self.steps, table, strict=True):
            count = means.new_tensor([num_samples])
            totals = trainer.ranks.sum(torch.cat([means * num_samples, count])).tolist()
            row = {"step": step + 1}
            for name, total in zip(names, totals, strict=True):
                sums[name] = sums.get(name, 0.0) + total
                row[name] = total / totals[-1]
            del row["count"]
            check_number(row["loss"], "loss", step, trainer.checkpoint)
            self.rows.append(row | {"lr": lr})
        self.steps.clear()

    def report(self, trainer: Trainer) -> None:
        """Tell the callbacks of the steps since the last call."""
        self.add_to_sums(trainer)
        for losses in self.rows:
            for callback in trainer.callbacks:
                callback.on_step(trainer, losses)
        self.rows.clear()


def is_due(trainer: Trainer) -> bool:
    """Whether callbacks are told of the steps so far, though the epoch goes on."""
    step = trainer.state.step
    every = trainer.config.training.checkpoint_every
    return step in (1, trainer.probe_step) or step % LOG_INTERVAL == 0 or step % every == 0


def end_epoch(trainer: Trainer, num_samples: int, seconds: float) -> None:
    """Make the row of an epoch, and tell the callbacks of it. Its sums of losses begin anew.

    The model has the averaged weights here, where there is an average.

    Args:
        trainer: of the training.
        num_samples: of this rank in the epoch.
        seconds: that they took.
    """
    from torchcaps.tasks.metrics import extra_metrics

    state = trainer.state
    task = trainer.task
    check_finite(trainer.model, trainer.checkpoint)
    # What `eval_step` gives for every validation image, by name `[images, ...]`.
    outputs = eval_outputs(task, trainer.val_images, precision=trainer.updater.precision)
    metrics = task.compute_metrics(outputs)
    # Metrics that the configuration names.
    metrics |= extra_metrics(trainer.config.task.metrics, outputs)
    for name, metric in metrics.items():
        check_number(metric, f"validation {name}", state.step, trainer.checkpoint)

    # After fewer steps than `probe_step` it is too early to say how a training will end.
    warnings = []
    if state.step >= min(PROBE_STEP, trainer.total_steps // 2):
        warnings = task.warnings(outputs, state.step / trainer.total_steps)
    # The best epoch has the highest score, and of several the lowest loss.
    score = metrics[task.score]
    loss = metrics["loss"]
    is_best = (score, -loss) > (state.best_score, -state.best_loss)
    epoch = state.step // trainer.steps_per_epoch
    if is_best:
        state.best_score = score
        state.best_loss = loss
        state.best_epoch = epoch
    count = state.sums.pop("count")
    works = trainer.ranks.gather({"images": num_samples, "seconds": round(seconds, 2)})
    row = {
        "kind": "epoch",
        "step": state.step,
        "epoch": epoch,
        "epochs": trainer.config.training.epochs,
        **{f"train_{name}": total / count for name, total in state.sums.items()},
        **{f"val_{name}": metric for name, metric in metrics.items()},
        "score": task.score,
        "best": is_best,
        "warnings": warnings,
        "images": count,
        "images_per_second": round(sum(work["images"] for work in works) / seconds, 1),
    }
    if len(works) > 1:  # samples and seconds of each process
        row["ranks"] = works
    if state.restart:
        row["restart"] = state.restart
    state.sums = {}
    trainer.history.append(row)
    for callback in trainer.callbacks:
        callback.on_epoch(trainer, row)


def check_number(number: float, name: str, step: int, checkpoint: Path | None) -> None:
    """Raise TrainingError, which says what to do, unless the number is finite."""
    if math.isfinite(number):
        return
    if step == 0:
        raise TrainingError(
            f"the first {name} was already {number}, before any update; "
            "look at the images, the augmentations and the options of the model"
        )
    raise TrainingError(
        f"the {name} became {number} after step {step}; {recovery_hint(checkpoint)}"
    )


def check_finite(model: nn.Module, checkpoint: Path | None) -> None:
    """Raise TrainingError, which ends with a hint, unless every weight is a finite number."""
    for name, weight in model.state_dict().items():
        if not torch.isfinite(weight).all():
            raise TrainingError(
                f"the weights {name} became infinite or NaN; {recovery_hint(checkpoint)}"
            )


def recovery_hint(checkpoint: Path | None) -> str:
    """State of a training that diverged, and how to continue."""
    advice = "start again with a lower lr, or with clip"
    if not checkpoint:
        return advice
    if checkpoint.exists():
        return f"the last good state is kept in {checkpoint}; {advice}"
    return f"there was no checkpoint yet; {advice}"
