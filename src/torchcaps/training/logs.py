"""Figures and drawings of a training, for programs that show them: the setting `log`.

They are written beside `metrics.jsonl`, by the first process, with the clients of these programs.
"""

from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchcaps.errors import TrainingError
from torchcaps.training.callbacks import Callback, Losses, Row, register_callback
from torchcaps.training.loop import LOG_INTERVAL, Trainer
from torchcaps.transfer import device_of, evaluating
from torchcaps.types import declares

NUM_DRAWINGS = 8  # held-out images, each above what the network draws of it


class Log(Callback):
    """Base of logs: losses of steps, figures of epochs, and drawings of held-out images.

    Raises:
        ImportError: the package of the program is not there.
    """

    is_late = True
    package: ClassVar[str]
    writer: Any = None  # of the first process; it has the methods of torch's `SummaryWriter`

    def __init__(self) -> None:
        if find_spec(self.package) is None:
            raise ImportError(f"log: {self.package} is not there: pip install 'torchcaps[log]'")

    def on_start(self, trainer: Trainer) -> None:
        if trainer.ranks.is_main:
            self.writer = self.open(trainer)

    def on_step(self, trainer: Trainer, losses: Losses) -> None:
        if self.writer and losses["step"] % LOG_INTERVAL == 0:
            for name, value in losses.items():
                if name != "step":
                    self.writer.add_scalar(f"step/{name}", value, int(losses["step"]))

    def on_epoch(self, trainer: Trainer, row: Row) -> None:
        if not self.writer:
            return
        step = trainer.state.step
        for name, value in row.items():
            if isinstance(value, int | float):
                self.writer.add_scalar(f"epoch/{name}", float(value), step)
        picture = drawings(trainer)
        if picture is not None:
            self.writer.add_image("drawings", picture, step)

    def on_end(self, trainer: Trainer) -> None:
        if self.writer:
            self.writer.close()

    def open(self, trainer: Trainer) -> Any:
        """The writer of a training that begins, or goes on where a run is resumed."""
        raise NotImplementedError


@register_callback(name="tensorboard")
class TensorBoardLog(Log):
    """Event files in the folder `tensorboard` of the run; without one, where TensorBoard does."""

    package = "tensorboard"

    def open(self, trainer: Trainer) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        folder = None
        if trainer.checkpoint:
            folder = str(trainer.checkpoint.parent.with_name("tensorboard"))
        # What a run wrote after the state that it goes on from is not shown.
        return SummaryWriter(folder, purge_step=trainer.state.step + 1)


@register_callback(name="mlflow")
class MLflowLog(Log):
    """A run of MLflow, in the store that its environment names, with the settings as parameters.

    A training that is resumed is another run there.
    """

    package = "mlflow"

    def open(self, trainer: Trainer) -> Any:
        from mlflow import MlflowClient, MlflowException

        name = "torchcaps" if trainer.checkpoint is None else trainer.checkpoint.parent.parent.name
        try:
            self.client = MlflowClient()
            experiment = self.client.get_experiment_by_name("torchcaps")
            number = experiment and experiment.experiment_id
            number = number or self.client.create_experiment("torchcaps")
            self.id = self.client.create_run(number, run_name=name).info.run_id
            for setting, value in trainer.config.flat().items():
                self.client.log_param(self.id, setting, value)
        except MlflowException as error:
            raise TrainingError(f"log: mlflow: {error}") from error
        return self

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Keep a figure of a step."""
        self.client.log_metric(self.id, name, value, step=step)

    def add_image(self, name: str, picture: Tensor, step: int) -> None:
        """Keep a picture `[channels, height, width]` in [0, 1], of a step."""
        pixels = (picture.movedim(0, 2) * 255).round().byte().numpy()
        self.client.log_image(self.id, pixels, f"{name}/{step:06d}.png")

    def close(self) -> None:
        """End the run."""
        self.client.set_terminated(self.id)


def drawings(trainer: Trainer) -> Tensor | None:
    """Held-out images above what the network draws of them, `[channels, height, width]`.

    None where the network draws nothing, or in other sizes.
    """
    model: Any = trainer.model
    if not (declares(model) and trainer.task.spec.decoder and trainer.task.spec.pose):
        return None
    count = min(NUM_DRAWINGS, len(trainer.val_images))
    images = trainer.val_images.float_images(range(count)).to(device_of(model))
    with evaluating(model):
        drawings: Tensor = model.reconstruct(model.capsules(images))
    if drawings.shape != images.shape:
        return None
    rows = torch.stack([images, drawings.clamp(0, 1)])  # [2, n, channels, height, width]
    return rows.permute(2, 0, 3, 1, 4).flatten(3).flatten(1, 2).float().cpu()
