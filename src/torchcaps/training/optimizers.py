"""Optimizers by name, and parameters by patterns of their names: frozen, or with own rates.

Add an optimizer here, or anywhere with `register_optimizer`. The name of a parameter is that in the
model, such as `stem.0.weight`. A pattern has the wildcards of `fnmatch`: `stem.*` matches every
parameter of the module `stem`. A pattern that matches nothing is refused.
"""

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import nn

from torchcaps.errors import ArgumentError, UnknownNameError
from torchcaps.registry import Registry
from torchcaps.settings import CHOICES, OptimizerSettings
from torchcaps.types import Json, WrappedNetwork

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
        optimizer = build(list(parameters.items()), settings.lr or 0.0, settings)
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
        # Multiply the learning rates of some parameters.
        factor_of: dict[nn.Parameter, float] = {}
        for pattern, factor in settings.lr_scale.items():
            is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
            if not is_number or factor <= 0:
                raise ArgumentError(
                    "lr_scale", f"expected a number above 0 for {pattern}, got {factor!r}"
                )
            for name in matching_names("lr_scale", pattern, parameters):
                factor_of[parameters[name]] = factor

        groups = []
        for group in optimizer.param_groups:
            # The first group keeps the rate of the run, which is the one that is reported.
            members: dict[float, list[nn.Parameter]] = {1.0: []}
            for parameter in group["params"]:
                members.setdefault(factor_of.get(parameter, 1.0), []).append(parameter)
            for factor, subset in members.items():
                if subset:
                    groups.append({**group, "params": subset, "lr": group["lr"] * factor})
        optimizer.param_groups = groups
    for group in optimizer.param_groups:
        device = group["params"][0].device
        if group.get("fused") and device.type == "cuda":  # a graph reads the rate of each step
            group["initial_lr"] = group["lr"]
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float32, device=device)
    return optimizer


def _build(
    optimizer: Callable[..., torch.optim.Optimizer],
    parameters: NamedParameters,
    lr: float,
    settings: OptimizerSettings,
) -> torch.optim.Optimizer:
    """An optimizer of torch, in one kernel where there is one."""
    weights = [weight for _, weight in parameters]
    devices = {weight.device.type for weight in weights}
    options: Json = {"fused": devices <= {"cpu", "cuda"}, "weight_decay": settings.weight_decay}
    if optimizer is torch.optim.SGD:
        options |= {"momentum": settings.momentum or 0.0, "nesterov": settings.nesterov}
    else:  # it counts its steps where the parameters are
        options["capturable"] = weights[0].device.type == "cuda"
    return optimizer(weights, lr, **(options | settings.options))


# Adam (arXiv 1412.6980), and Adam with decoupled weight decay (arXiv 1711.05101).
OPTIMIZERS.add("adam", partial(_build, torch.optim.Adam))
OPTIMIZERS.add("adamw", partial(_build, torch.optim.AdamW))
OPTIMIZERS.add("sgd", partial(_build, torch.optim.SGD), reads=("momentum", "nesterov"))


def freeze_parameters(model: nn.Module, patterns: Sequence[str]) -> list[nn.Parameter]:
    """Take parameters out of the training: they get no gradient.

    Args:
        model: whose parameters are frozen.
        patterns: of their names.

    Returns:
        The parameters that were trainable before, so that the caller can release them.

    Raises:
        ArgumentError: a pattern that matches nothing, or patterns that match everything.
    """
    trainable = trainable_parameters(model)
    frozen = {}
    for pattern in patterns:
        for name in matching_names("freeze", pattern, trainable):
            frozen[name] = trainable[name]
    if frozen and len(frozen) == len(trainable):
        raise ArgumentError(
            "freeze", f"expected to leave parameters to train, got {', '.join(patterns)}"
        )
    for parameter in frozen.values():
        parameter.requires_grad_(False)
    return list(frozen.values())


def frozen_modules(model: nn.Module) -> list[nn.Module]:
    """Modules with parameters, none of which is trained.

    What they do differently in training is to be switched off with them: the dropout inside, and
    the running statistics of batch norms.
    """
    modules = []
    for module in model.modules():
        flags = [parameter.requires_grad for parameter in module.parameters()]
        if flags and not any(flags):
            modules.append(module)
    return modules


def trainable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by name that get a gradient. Those of a task have their names in its model."""
    model = getattr(module, "model", module)
    outer = "outer." if isinstance(model, WrappedNetwork) else ""
    parameters = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            parameters[name.removeprefix("model.").removeprefix(outer)] = parameter
    return parameters


def matching_names(setting: str, pattern: str, names: Iterable[str]) -> list[str]:
    """The names that a pattern matches.

    Args:
        setting: that has the pattern, for the error.
        pattern: of names, with the wildcards of `fnmatch`.
        names: of parameters.

    Raises:
        UnknownNameError: none matches.
    """
    matches = [name for name in names if fnmatchcase(name, pattern)]
    if not matches:
        raise UnknownNameError(f"trained parameter of {setting}", pattern, names)
    return matches
