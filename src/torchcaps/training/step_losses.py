"""The losses of steps, on their way from the device to the metrics.

On a CPU the losses of a step are read at once. A GPU works on steps after the host has left them,
and each number that the host reads makes it wait. So the losses of some steps stay there and are
read together. What a checkpoint holds has always been read, and found finite, before.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from torchcaps.distributed import Ranks
from torchcaps.errors import TrainingError
from torchcaps.training.callbacks import Callback
from torchcaps.training.loggers import MemoryLogger
from torchcaps.training.state import TrainingState, mean_losses

LOG_INTERVAL = 20  # steps between rows of kind "step"; losses are read at least as often


class StepLosses:
    """Losses of the last steps: first added, then read, then reported.

    Args:
        ranks: the processes, which exchange their losses when they are read.
        callbacks: are told of each step.
        logger: stores some of the steps.
        total_steps: of the whole training.
        device: of the losses.

    Attributes:
        is_read_each_step: whether losses are to be read before the next step. They are on a CPU,
            where nothing is won; by several processes, which decide in each step whether to stop;
            and for a callback that is told of each step while its gradients are there.
    """

    def __init__(
        self,
        ranks: Ranks,
        callbacks: Sequence[Callback],
        logger: MemoryLogger,
        total_steps: int,
        device: torch.device,
    ) -> None:
        self.ranks = ranks
        self.callbacks = callbacks
        self.logger = logger
        self.total_steps = total_steps
        is_watched = any(map(_watches_steps, callbacks))
        self.is_read_each_step = device.type == "cpu" or ranks.world_size > 1 or is_watched
        self.names: list[str] = []
        self._means: list[Tensor] = []
        # Of each step that is not read: its number, learning rate, and samples of this rank.
        self._steps: list[tuple[int, float, int]] = []
        # Steps that are read and not reported: number of steps done, and means by name.
        self._unreported: list[tuple[int, dict[str, float]]] = []

    def add(self, step: int, lr: float, num_samples: int, losses: dict[str, Tensor]) -> None:
        """Keep the losses of a step, without a look at them.

        Args:
            step: number of steps before it.
            lr: its learning rate.
            num_samples: of this rank.
            losses: means over this rank's samples by name, the same names in all steps. Only
                scalars are kept.
        """
        scalars = {name: loss.detach() for name, loss in losses.items() if loss.dim() == 0}
        self.names = [*scalars]
        self._means.append(torch.stack([*scalars.values()]))
        self._steps.append((step, lr, num_samples))

    def read(self, state: TrainingState, should_stop: bool = False) -> bool:
        """Add the losses that were added since the last call to those of the epoch.

        The host waits for them once.

        Args:
            state: of the training, with the sums of the epoch.
            should_stop: whether this rank is asked to stop.

        Returns:
            Whether any rank is asked to stop.

        Raises:
            TrainingError: a loss is not finite.
        """
        if not self._means:
            return should_stop
        rows = torch.stack(self._means).cpu().double()
        steps = [*self._steps]
        self._means.clear()
        self._steps.clear()
        for means, (step, lr, num_samples) in zip(rows, steps, strict=True):
            counts = torch.tensor([num_samples, should_stop], dtype=torch.float64)
            # One exchange for all numbers: sums of losses, of samples, and of ranks to stop.
            numbers = self.ranks.sum(torch.cat([means * num_samples, counts])).tolist()
            *totals, num_stops = numbers
            sums = dict(zip([*self.names, "count"], totals, strict=True))
            should_stop = num_stops > 0
            state.add_losses(sums)
            mean_by_name = mean_losses(sums)
            check_number(mean_by_name["loss"], "loss", step, self.logger)
            self._unreported.append((step + 1, mean_by_name | {"lr": lr}))
        return should_stop

    def report(self, model: nn.Module) -> None:
        """Tell callbacks and logger of the steps whose losses were read."""
        if not self._unreported:
            return
        for step, losses in self._unreported:
            for callback in self.callbacks:
                callback.on_step(model, {"step": step, **losses})
            log_step(self.logger, step, self.total_steps, losses)
        self._unreported.clear()


def _watches_steps(callback: Callback) -> bool:
    """Whether a callback has an `on_step` of its own."""
    return getattr(callback.on_step, "__func__", None) is not Callback.on_step


def log_step(
    logger: MemoryLogger, step: int, total_steps: int, losses: Mapping[str, float]
) -> None:
    """Report a step, and store some of the steps.

    Args:
        logger: of the training.
        step: number of steps done.
        total_steps: of the whole training.
        losses: of this step, by name, with the learning rate as "lr".
    """
    logger.emit({"kind": "tick", "step": step, "steps": total_steps, "loss": losses["loss"]})
    if step % LOG_INTERVAL == 0:
        logger.log({"kind": "step", "step": step, **losses})


def check_number(number: float, name: str, step: int, logger: MemoryLogger) -> None:
    """Raise TrainingError, which says what to do, unless the number is finite."""
    if math.isfinite(number):
        return
    if step == 0:
        raise TrainingError(
            f"the first {name} was already {number}, before any update; "
            "look at the images, the augmentations and the options of the model"
        )
    raise TrainingError(f"the {name} became {number} after step {step}; {logger.recovery_hint}")
