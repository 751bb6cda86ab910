"""The folder of a run, held by the process that trains in it: made or resumed, and written to."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data import Dataset
from torchcaps.data.files import identities
from torchcaps.distributed import current, main_first
from torchcaps.errors import RunError, TrainingError, check_range
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.training.calibration import calibration_of
from torchcaps.training.callbacks import Callback, Losses
from torchcaps.training.checkpoint import describe, load
from torchcaps.training.device import check_threads, environment
from torchcaps.training.files import (
    CALIBRATION_FILE,
    FORMAT,
    LOCK_FILE,
    atomic,
    checksum,
    exclusive,
    load_tensors,
    make_folder,
    move,
    save_tensors,
    write_json,
)
from torchcaps.training.initial import InitialWeights
from torchcaps.training.loop import LOG_INTERVAL, Row, Trainer, TrainingState, check_finite
from torchcaps.training.run import (
    CONFIG_FILE,
    ENVIRONMENT_FILE,
    EVALUATION_FILE,
    METRICS_FILE,
    MODEL_FILE,
    RESUME_OVERRIDES,
    Run,
    epoch_model_path,
    is_run,
)
from torchcaps.training.schedules import EXTENSION_LR_SCALE, part_ends
from torchcaps.training.update import Updater
from torchcaps.transfer import device_of
from torchcaps.types import Json, Tensors


class Interrupted(Exception):
    """Training was asked to stop: no error, its state is saved and `resume` continues it."""


class RunFolder(Callback):
    """A run folder: metrics, checkpoints to continue from, and the best model.

    Only the first process writes. From `on_start` to `on_end` it holds the folder. After an error
    without a checkpoint a new folder is removed.

    Args:
        run: the folder.
        train_images: to be the same when the run is resumed.
        val_images: to be the same when the run is resumed.
        initial: weights of another training that this one begins with; a copy is kept.
        resumed: configuration of the run that is resumed; None for a new one. One of more epochs
            takes the place of that in the folder, and the figures of the test images, which are
            those of the shorter training, are removed.

    Attributes:
        end: why the training ended before its end without an error, if it did.

    Raises:
        RunError: in `on_start`, where there is a run already, or another process holds the folder.
        TrainingError: a file cannot be written.
    """

    is_late = True

    def __init__(
        self,
        run: Run,
        train_images: Dataset,
        val_images: Dataset,
        initial: InitialWeights | None = None,
        resumed: TrainConfig | None = None,
    ) -> None:
        self.run = run
        self.initial = initial
        self.resumed = resumed
        self.is_main = current().is_main
        self.stack = ExitStack()
        self.end: BaseException | None = None
        threads = run.environment.get("threads")
        if resumed and threads is not None:
            self.threads = check_threads(f"{run.path / ENVIRONMENT_FILE}: threads", threads)
        tensors: Tensors = {}
        for split, images in (("train", train_images), ("held out", val_images)):
            tensors |= {f"{split} {name}": x for name, x in identities(images).items()}
        self.checksum = checksum(tensors)

    def on_start(self, trainer: Trainer) -> None:
        config = trainer.config
        if self.initial:
            config = config.updated(init=self.initial.source)
            trainer.note(self.initial.sentence)
        with main_first():  # the others wait until the folder is held
            if self.is_main:
                self.stack.enter_context(
                    hold(self.run, self.resumed or config, self.resumed is None)
                )
                # That of an older model, where a finished run goes on.
                (self.run.path / CALIBRATION_FILE).unlink(missing_ok=True)
        self.description = describe(trainer.model) | {"task": trainer.task.name}
        # Properties that must be the same when the run is resumed, by name.
        self.fingerprint = config.flat() | {
            "threads": self.run.environment.get("threads"),
            "checksum of images and labels": self.checksum,
        }
        for name in RESUME_OVERRIDES:
            del self.fingerprint[name]
        trainer.checkpoint = self.run.checkpoint_path
        if self.is_main:
            self._restore(trainer)
        self._share(trainer)
        self.saved_step = trainer.state.step

    def on_step(self, trainer: Trainer, losses: Losses) -> None:
        if losses["step"] % LOG_INTERVAL == 0:
            self._write({"kind": "step", **losses})
        step = trainer.state.step
        if step == 0 and self.is_main:  # the training has started again
            truncate_metrics(self.run, -1)
            self._write_notes(trainer)
        is_epoch_end = step > 0 and step % trainer.steps_per_epoch == 0
        is_due = losses["step"] == step and step % trainer.config.training.checkpoint_every == 0
        if step == 0 or (is_due and not is_epoch_end):
            self._save(trainer)

    def on_epoch(self, trainer: Trainer, row: Row) -> None:
        paths = [self.run.model_path] if row["best"] else []
        if trainer.config.training.keep_epochs:
            paths.append(epoch_model_path(self.run, row["epoch"]))
        for path in paths if self.is_main else []:
            save_tensors(path, trainer.model.state_dict(), self.description)
        self._write_notes(trainer)
        self._write(row)
        self._save(trainer)

    def on_end(self, trainer: Trainer) -> None:
        step = trainer.state.step
        error = self.end = trainer.error
        if error:
            self.stack.__exit__(type(error), error, error.__traceback__)
            return
        with self.stack:
            self._write_notes(trainer)
            if trainer.is_stopped:
                if step != self.saved_step:  # within an epoch
                    self._save(trainer)
                self.end = Interrupted(
                    f"stopped after step {step} of {trainer.total_steps}; the state is saved"
                )
            elif self.is_main:
                # Of the best model, in its folder and with its weights.
                model = load(self.run.path, device=device_of(trainer.model))
                task = create_task(model, trainer.task.config, trainer.val_images)
                calibration = trainer.calibration = calibration_of(task, trainer.val_images)
                if calibration:
                    write_json(self.run.path / CALIBRATION_FILE, {"format": FORMAT} | calibration)
                    description = self.description | {"calibration": calibration}
                    save_tensors(self.run.model_path, model.state_dict(), description)

    def _restore(self, trainer: Trainer) -> None:
        """Restore the newest state, and forget the metrics after it."""
        state = trainer.state = load_state(self.run, trainer, self.fingerprint)
        truncate_metrics(self.run, state.step)
        if self.initial:
            self.initial.save_copy()
        training = trainer.config.training
        *_, begin, _ = (0, *part_ends(trainer.config, trainer.total_steps))
        if state.step == trainer.total_steps:
            trainer.messages.append(
                f"{self.run.path}: all {training.epochs} epochs are done; resume it with more of "
                f"them, such as --epochs {2 * training.epochs}, to train it further"
            )
        elif 0 < begin <= state.step:
            lr = (trainer.config.optimizer.lr or 0.0) * state.lr_scale * EXTENSION_LR_SCALE
            trainer.note(
                f"the finished training goes on after epoch {training.extended_at[-1]} to epoch "
                f"{training.epochs}; its learning rate begins at {lr:g}, a tenth of the first one, "
                "and falls to zero along a cosine",
                begin,
            )
        self._write_notes(trainer)

    def _share(self, trainer: Trainer) -> None:
        """Give the state of the first process to all; TrainingError where their data differs."""
        ranks = current()
        if ranks.world_size == 1:
            return
        updater = trainer.updater
        if len(set(ranks.gather(self.checksum))) > 1:
            raise TrainingError(
                "data: expected the same images and labels in all processes, got different ones"
            )
        average = updater.average
        trainer.state, moments, weights, averages = ranks.broadcast(
            (
                trainer.state,
                updater.optimizer.state_dict(),
                trainer.model.state_dict(),
                average.weights if average else {},
            )
        )
        trainer.model.load_state_dict(weights)
        updater.optimizer.load_state_dict(moments)
        if average:
            average.load(averages)
        if trainer.state.loss_scale:  # there is none before the first step
            updater.scaler.load_state_dict(trainer.state.loss_scale)

    def _save(self, trainer: Trainer) -> None:
        """Save the state; that of the loss scale is read from the device here."""
        trainer.state.loss_scale = trainer.updater.scaler.state_dict()
        self.saved_step = trainer.state.step
        if self.is_main:
            save_state(self.run, trainer, self.fingerprint)

    def _write_notes(self, trainer: Trainer) -> None:
        """Add the notes that the metrics do not have yet."""
        written = self.run.notes if trainer.notes and self.is_main else []
        for row in trainer.notes:
            if row["text"] not in written:
                self._write(row)

    def _write(self, row: Row) -> None:
        if self.is_main:
            append_metrics(self.run, row)


def check_new(run: Run) -> None:
    """Raise RunError if there is a run already, or a file that a run would replace."""
    if is_run(run.path):
        with exclusive(run.path):  # names the process that is training here
            pass
    _check_empty(run)


@contextmanager
def hold(run: Run, config: TrainConfig, is_new: bool = True) -> Iterator[None]:
    """Hold the folder of a run; after an error without a checkpoint that of a new one is removed.

    Args:
        run: that is not there yet, or goes on.
        config: the resolved configuration. Of a run that is extended, it takes the place of the one
            in the folder, and the figures of the test images are removed.
        is_new: whether the run begins.

    Raises:
        RunError: there is a run already, another process holds the folder, or it cannot be made.
        TrainingError: the folder cannot be written to.
    """
    with exclusive(run.path):
        if is_new:
            _check_empty(run)
        try:
            make_folder(run.checkpoint_path.parent)  # copying may leave out empty folders
            facts = {} if is_new else run.environment
            if facts.get("threads") is None:
                write_json(run.path / ENVIRONMENT_FILE, environment() | facts)
            if is_new or config != run.config:
                if not is_new:
                    (run.path / EVALUATION_FILE).unlink(missing_ok=True)
                # The configuration comes last: it makes the folder a run.
                write_json(run.path / CONFIG_FILE, {"format": FORMAT} | config.to_dict())
            yield
        except Exception:
            checkpoints = (run.model_path, run.checkpoint_path, run.previous_checkpoint_path)
            if is_new and not any(map(Path.exists, checkpoints)):
                # What the run wrote goes; other files stay, and the folder with them.
                with suppress(OSError):
                    run.initial_path.unlink(missing_ok=True)
                    for name in (CONFIG_FILE, ENVIRONMENT_FILE, METRICS_FILE):
                        (run.path / name).unlink(missing_ok=True)
                    run.checkpoint_path.parent.rmdir()
                    (run.path / LOCK_FILE).unlink(missing_ok=True)
                    run.path.rmdir()
            raise


def _check_empty(run: Run) -> None:
    if is_run(run.path):
        raise RunError(
            f"{run.path}: there is a run here already; "
            "continue it with --resume, or name another --output"
        )
    states = sorted(run.checkpoint_path.parent.glob("*.safetensors"))
    obstacles = [run.metrics_path, run.model_path, *states]
    if "torchcaps" not in run.environment:  # else it is of a start that was killed
        obstacles.append(run.path / ENVIRONMENT_FILE)
    for file in obstacles:
        if file.exists():
            raise RunError(f"{file}: is in the way, and no part of a run; name another --output")


def append_metrics(run: Run, row: Row) -> None:
    """Add a row to the metrics; TrainingError when it cannot be written.

    A part of a row is left out by `Run.rows`, and removed when the run goes on.
    """
    try:
        with open(run.metrics_path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    except OSError as error:
        raise TrainingError(f"{run.metrics_path}: cannot be written ({error.strerror})") from error


def truncate_metrics(run: Run, step: int) -> None:
    """Forget metrics after `step`, and what killed writes left: training continues from there.

    Raises RunError or TrainingError if the metrics cannot be read or written.
    """
    rows = [json.dumps(row) + "\n" for row in run.rows if row["step"] <= step]
    leftovers = list(run.checkpoint_path.parent.glob(".*.partial"))
    # Other files may be in the work of another process, as a report.
    for name in (CONFIG_FILE, ENVIRONMENT_FILE, METRICS_FILE, MODEL_FILE):
        leftovers += run.path.glob(f".{name}.*partial")
    for leftover in leftovers:
        with suppress(OSError):
            leftover.unlink()
    with atomic(run.metrics_path) as partial:
        partial.write_text("".join(rows), encoding="utf-8")


def save_state(run: Run, trainer: Trainer, fingerprint: Json) -> None:
    """Write weights and the state of optimizer and training; the last file is kept.

    Args:
        run: whose checkpoint is written.
        trainer: has them.
        fingerprint: JSON-ready values by name that must not change until the file is read.

    Raises:
        TrainingError: a weight is not finite, or the file cannot be written; it is then as it was.
    """
    updater = trainer.updater
    check_finite(trainer.model, run.checkpoint_path)
    weights = trainer.model.state_dict()
    tensors: Tensors = {}
    if updater.average:
        weights = updater.average.trained or weights  # where the model has the averaged ones
        tensors = {f"average.{name}": x for name, x in updater.average.weights.items()}
    tensors |= {f"model.{name}": x for name, x in weights.items()}
    for index, entries in updater.optimizer.state_dict()["state"].items():
        for name, entry in entries.items():
            if isinstance(entry, Tensor):
                tensors[f"optimizer.{index}.{name}"] = entry
    description = {"fingerprint": fingerprint, "state": asdict(trainer.state)}
    save_tensors(run.checkpoint_path, tensors, description, previous=run.previous_checkpoint_path)


def load_state(run: Run, trainer: Trainer, fingerprint: Json) -> TrainingState:
    """Restore what `save_state` wrote, or a damaged file's predecessor.

    Returns:
        The state, that of the start where there is neither file.

    Raises:
        RunError: there is no whole state, or it is one of another model, or of another fingerprint.
    """
    path = run.checkpoint_path
    faults: list[str] = []
    for file in filter(Path.exists, (path, run.previous_checkpoint_path)):
        try:
            tensors, description = load_tensors(file)
            if not description.keys() >= {"fingerprint", "state"}:
                raise RunError(f"{file}: is not the state of a training")
        except RunError as error:
            faults.append(str(error))
            continue
        try:
            saved = description["fingerprint"]
            expected = json.loads(json.dumps(fingerprint))
            *extensions, last_extension = expected.get("extended_at") or [None]
            if saved.get("extended_at") == extensions and saved.get("epochs") == last_extension:
                # The end of a training that goes on.
                expected |= {"epochs": last_extension, "extended_at": extensions}
            for name, value in expected.items():
                if saved.get(name) != value:
                    raise RunError(
                        f"{file}: {name} was {saved.get(name)} when the run was stopped, and is "
                        f"{value} now"
                    )
            state = TrainingState(**description["state"])
            check_range("step", state.step, low=0, high=trainer.total_steps)
            _restore(tensors, trainer.updater)
            trainer.updater.scaler.load_state_dict(state.loss_scale)
        except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise RunError(
                f"{file}: is not the state of this training ({str(error).splitlines()[-1].strip()})"
            ) from error
        if file != path:
            move(file, path)  # else the next state would put the damaged file in its place
            faults = faults or [f"{path}: is missing"]
            trainer.messages.append(
                f"warning: {faults[0]}; going on from the checkpoint before it, of step "
                f"{state.step}"
            )
        return state
    if faults:
        raise RunError("; ".join(faults))
    return TrainingState()


def _restore(tensors: Tensors, updater: Updater) -> None:
    """Put the tensors of a file into model, optimizer and average."""
    optimizer = updater.optimizer
    parameters = [weight for group in optimizer.param_groups for weight in group["params"]]
    states: dict[str, Tensors] = {"model": {}, "average": {}}
    entries: dict[int, Tensors] = {}
    for name, tensor in tensors.items():
        owner, _, key = name.partition(".")
        if owner in states:
            states[owner][key] = tensor
            continue
        index, _, key = key.partition(".")
        parameter = parameters[int(index)]
        if tensor.shape == parameter.shape:
            # The fused optimizer walks memory: its state must lie as its parameter does.
            tensor = torch.empty_like(parameter).copy_(tensor)
        entries.setdefault(int(index), {})[key] = tensor
    updater.task.model.load_state_dict(states["model"])
    if updater.average:
        updater.average.load(states["average"])
    optimizer.load_state_dict(optimizer.state_dict() | {"state": entries})
