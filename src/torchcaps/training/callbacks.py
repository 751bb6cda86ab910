"""Callbacks: what is told of a training while it runs.

Add one here, or with `register_callback`.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from torchcaps.registry import Registry


class Callback:
    """Base of callbacks. Every process of a run has callbacks of its own.

    A registered subclass is built without arguments for each training that names it in the setting
    `callbacks`.
    """

    def on_step(self, model: nn.Module, losses: dict[str, float]) -> None:
        """Called after each step.

        Args:
            model: in training mode; gradients are still there.
            losses: means over the batch by name, "lr", and "step", the number of steps done.
        """

    def on_epoch(self, model: nn.Module, row: dict[str, Any]) -> None:
        """Called after each epoch with its row of the metrics.

        Args:
            model: in training mode, on its device.
            row: the metrics of the epoch by name, such as "epoch", "train_loss" and "val_accuracy".
        """

    def should_stop(self) -> bool:
        """Asked once in each step; True ends the training after it, with its state saved."""
        return False


CALLBACKS: Registry[Callable[[], Callback]] = Registry("callback")
register_callback = CALLBACKS.register


class FunctionCallback(Callback):
    """A callback of functions, each of which may be left out."""

    def __init__(
        self,
        on_step: Callable[[nn.Module, dict[str, float]], None] | None = None,
        on_epoch: Callable[[nn.Module, dict[str, Any]], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        # A function takes the place of the method.
        functions = {"on_step": on_step, "on_epoch": on_epoch, "should_stop": should_stop}
        for name, function in functions.items():
            if function is not None:
                setattr(self, name, function)
