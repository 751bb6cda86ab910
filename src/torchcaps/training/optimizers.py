"""Optimizers by name. Add one here, or anywhere with `register_optimizer`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from torchcaps.errors import ArgumentError
from torchcaps.registry import Registry
from torchcaps.settings import CHOICES, OptimizerSettings
from torchcaps.training.parameters import scale_rates, trainable_parameters

NamedParameters = list[tuple[str, nn.Parameter]]
# (parameters by name, peak learning rate, settings) -> optimizer
OptimizerBuilder = Callable[[NamedParameters, float, OptimizerSettings], torch.optim.Optimizer]
OPTIMIZERS: Registry[OptimizerBuilder] = CHOICES["optimizer"]


register_optimizer = OPTIMIZERS.register
"""Decorator that registers an optimizer for the setting `optimizer`.

The function is given the parameters that are trained with their names, the peak learning rate and
the settings, whose `options` are the optimizer's own (setting `optimizer_options`). It may build
parameter groups with rates of their own: schedule and `lr_scale` multiply each group's rate.
`reads` names those of the settings `momentum` and `nesterov` that it reads; a run that gives
another one of them is refused. ValueError for a name that is taken, unless `replace`.

Example:
    >>> @register_optimizer("rmsprop")
    ... def rmsprop(parameters, lr, settings):
    ...     return torch.optim.RMSprop([p for _, p in parameters], lr, **settings.options)
"""


def create_optimizer(task: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """The optimizer of a run, over the parameters of a task that are trained.

    Their names are those in its model.

    Raises UnknownNameError if there is none of this name, ArgumentError for options that it does
    not take, for a weight decay that it does not apply, and for rates of parameters that there are
    not.
    """
    parameters = trainable_parameters(task)
    build = OPTIMIZERS[settings.name]
    try:
        optimizer = build([*parameters.items()], settings.lr or 0.0, settings)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            "optimizer_options",
            f"expected options of {settings.name}, got {settings.options} ({error})",
        ) from error
    if settings.weight_decay and not any(g.get("weight_decay") for g in optimizer.param_groups):
        raise ArgumentError(
            "weight_decay",
            f"has no effect with the optimizer {settings.name}, got {settings.weight_decay}; leave "
            "it out",
        )
    if settings.lr_scale:
        scale_rates(optimizer, parameters, settings.lr_scale)
    return optimizer


def _build(
    optimizer: Callable[..., torch.optim.Optimizer],
    parameters: NamedParameters,
    lr: float,
    settings: OptimizerSettings,
    **defaults: Any,
) -> torch.optim.Optimizer:
    """An optimizer of torch, in one kernel where there is one."""
    weights = [weight for _, weight in parameters]
    is_fused = all(weight.device.type in ("cpu", "cuda") for weight in weights)
    options = {"fused": is_fused, "weight_decay": settings.weight_decay, **defaults}
    return optimizer(weights, lr, **(options | settings.options))


# Adam (arXiv 1412.6980), and Adam with decoupled weight decay (arXiv 1711.05101).
OPTIMIZERS.add("adam", partial(_build, torch.optim.Adam))
OPTIMIZERS.add("adamw", partial(_build, torch.optim.AdamW))


@register_optimizer("sgd", reads=("momentum", "nesterov"))
def sgd(
    parameters: NamedParameters, lr: float, settings: OptimizerSettings
) -> torch.optim.Optimizer:
    """Stochastic gradient descent with the settings `momentum` and `nesterov`."""
    options = {"momentum": settings.momentum or 0.0, "nesterov": settings.nesterov}
    return _build(torch.optim.SGD, parameters, lr, settings, **options)
