"""Optimizers by name. Add one here, or anywhere with `register_optimizer`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torchcaps.errors import ArgumentError
from torchcaps.registry import Registry
from torchcaps.settings import OptimizerSettings

NamedParameters = list[tuple[str, nn.Parameter]]
# (parameters by name, peak learning rate, settings) -> optimizer
OptimizerBuilder = Callable[[NamedParameters, float, OptimizerSettings], torch.optim.Optimizer]
OPTIMIZERS: Registry[OptimizerBuilder] = Registry("optimizer")


def register_optimizer(
    name: str, *, replace: bool = False
) -> Callable[[OptimizerBuilder], OptimizerBuilder]:
    """Decorator that registers an optimizer for the setting `optimizer`.

    The function is given all parameters with their names, the peak learning rate and the settings,
    whose `options` are the optimizer's own (setting `optimizer_options`). It may build parameter
    groups with rates of their own: the schedule multiplies each group's rate. ValueError for a name
    that is taken, unless `replace`.

    Example:
        >>> @register_optimizer("rmsprop")
        ... def rmsprop(parameters, lr, settings):
        ...     return torch.optim.RMSprop([p for _, p in parameters], lr, **settings.options)
    """
    return OPTIMIZERS.register(name, replace=replace)


def create_optimizer(task: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """The optimizer of a run, over the parameters of a task; their names are those in its model.

    Raises UnknownNameError if there is none of this name, ArgumentError for options that it does
    not take.
    """
    parameters = [(name.removeprefix("model."), weight) for name, weight in task.named_parameters()]
    build = OPTIMIZERS[settings.name]
    try:
        return build(parameters, settings.lr or 0.0, settings)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            "optimizer_options",
            f"expected options of {settings.name}, got {settings.options} ({error})",
        ) from error


def _build(
    optimizer: Callable[..., torch.optim.Optimizer],
    parameters: NamedParameters,
    lr: float,
    settings: OptimizerSettings,
    **defaults: Any,
) -> torch.optim.Optimizer:
    """An optimizer of torch, in one kernel where there is one."""
    weights = [weight for _, weight in parameters]
    fused = all(weight.device.type in ("cpu", "cuda") for weight in weights)
    options = {"fused": fused, "weight_decay": settings.weight_decay, **defaults}
    return optimizer(weights, lr, **(options | settings.options))


@register_optimizer("adam")
def adam(
    parameters: NamedParameters, lr: float, settings: OptimizerSettings
) -> torch.optim.Optimizer:
    """Adam (arXiv 1412.6980); options such as betas and eps are torch's."""
    return _build(torch.optim.Adam, parameters, lr, settings)


@register_optimizer("adamw")
def adamw(
    parameters: NamedParameters, lr: float, settings: OptimizerSettings
) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay (arXiv 1711.05101)."""
    return _build(torch.optim.AdamW, parameters, lr, settings)


@register_optimizer("sgd")
def sgd(
    parameters: NamedParameters, lr: float, settings: OptimizerSettings
) -> torch.optim.Optimizer:
    """Stochastic gradient descent with the settings `momentum` and `nesterov`."""
    return _build(
        torch.optim.SGD,
        parameters,
        lr,
        settings,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
    )
