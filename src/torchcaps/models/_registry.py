"""The registry of models: names, what is known of each, construction."""

import fnmatch
import math
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass, replace as with_changes
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from torchcaps.errors import ArgumentError, check_positive
from torchcaps.models._pretrained import FOLDER, Options, pretrained_model
from torchcaps.nn import use_generator
from torchcaps.nn.generator import on_meta
from torchcaps.registry import Registry
from torchcaps.types import ModelSpec, model_metadata

Builder = Callable[..., nn.Module]
B = TypeVar("B", bound=Builder)

GIB = 1 << 30
BYTES_PER_PARAMETER = 4 * 4  # of float32: the weight, its gradient, two moments of Adam
MEMORY_FILE = Path("/proc/meminfo")
GROUP_FILE = Path("/sys/fs/cgroup/memory.max")  # the limit of a control group of version 2


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """The origin of a model, the sizes it was published for, and a published figure.

    Attributes:
        title: of the paper.
        year: of the paper.
        arxiv: identifier, or empty.
        img_size: height and width of the images; by default those of MNIST, as are the next two.
        in_chans: channels of the images.
        num_classes: 0 where labels have no part in it, and it is not told of classes.
        parameters: their number at these sizes.
        published: the paper's own figure, in words.
        purpose: what it is for, one line.
        named: its builder takes the names of the classes, as `classes`, for their label tree.
        control: name of the plain network that it is compared with by `torchcaps train`, or empty;
            its option `hidden` makes a head of as many weights.
        control_options: those of its options that the control takes, too.
    """

    title: str
    year: int
    arxiv: str = ""
    img_size: tuple[int, int] = (28, 28)
    in_chans: int = 1
    num_classes: int = 10
    parameters: int
    published: str
    purpose: str = ""
    named: bool = False
    control: str = ""
    control_options: tuple[str, ...] = ()


class OptionError(TypeError, ValueError):
    """An option that a model does not take."""


def option_error(name: str, options: Mapping[str, Any], reason: Exception) -> OptionError:
    """The error of a model of this name that refuses its options."""
    wording = ", ".join(f"{option}={value!r}" for option, value in options.items())
    return OptionError(f"{name} takes no {wording} ({str(reason).splitlines()[0]})")


MODELS: Registry[tuple[Builder, ModelInfo]] = Registry("model")


def register_model(
    info: ModelInfo, *, name: str | None = None, replace: bool = False, **options: Any
) -> Callable[[B], B]:
    """Decorator that registers a model by the class or function that makes it.

    Args:
        info: the model's origin and published sizes.
        name: name of the model, by default that of the builder.
        replace: allow a name that is taken.
        options: of the builder, unless a caller passes others.

    Returns:
        The decorator, which returns the builder as it is.

    Raises:
        ValueError: for a name that is taken, unless `replace`.

    Example:
        >>> @register_model(ModelInfo(title="", year=2026, parameters=7850, published="none"))
        ... def my_network(num_classes=10, in_chans=1, img_size=(28, 28)): ...
    """

    def register(builder: B) -> B:
        MODELS.add(name or builder.__name__, (partial(builder, **options), info), replace=replace)
        return builder

    return register


def register_variant(name: str, base: str, **changes: Any) -> None:
    """Register a model that differs from another one.

    Args:
        name: of the model.
        base: name of the other model.
        changes: fields of its `ModelInfo`, and options of its builder.

    Raises:
        ValueError: for a name that is taken, or an unknown one.
    """
    builder, info = MODELS[base]
    fields = {key: changes.pop(key) for key in vars(info) if key in changes}
    register_model(with_changes(info, **fields), name=name, **changes)(builder)


def list_models(filter: str = "*", pretrained: bool = False) -> list[str]:
    """Names of models.

    Args:
        filter: a wildcard, such as "caps*".
        pretrained: of those alone whose weights come with the package.

    Returns:
        Their names, sorted.
    """
    names = fnmatch.filter(MODELS.names(), filter)
    if pretrained:
        names = [name for name in names if (FOLDER / f"{name}.safetensors").is_file()]
    return names


def model_info(name: str) -> ModelInfo:
    """Facts about a model: title, year, published sizes and figures.

    Args:
        name: of the model; see `list_models()`.

    Returns:
        Its `ModelInfo`.

    Raises:
        ValueError: for an unknown name.
    """
    return MODELS[name][1]


def default_task(name: str) -> str:
    """The task that a model is trained for, a name of `tasks.list_tasks()`.

    Args:
        name: of the model; see `list_models()`. A function that builds it makes a classifier.

    Returns:
        Name of the task.

    Raises:
        ValueError: for an unknown name.
    """
    builder: Any = MODELS[name][0]
    while isinstance(builder, partial):
        builder = builder.func
    return getattr(builder, "spec", ModelSpec()).task


def create_model(
    name: str,
    pretrained: bool = False,
    num_classes: int | None = None,
    in_chans: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> nn.Module:
    """Build a model by name (see `list_models()`).

    Args:
        name: of the model.
        pretrained: take the weights that come with the package, and the options that they were
            trained with; see `weights_info`. With another `num_classes`, the layers that depend on
            it start anew.
        num_classes: number of classes, at least 1; by default as published, as are the next two.
        in_chans: channels of the images, at least 1.
        img_size: height and width in pixels, or one number for both.
        generator: draws the weights, the same for equal seeds whatever other threads draw; None is
            torch's own.
        options: the model's own; see its class.

    Returns:
        The model, in training mode.

    Raises:
        ValueError: for an unknown name, a size that the model cannot take, parameters that the
            memory at hand cannot train, or weights that are not there or do not fit.
        ArgumentError: for a name or a size of another type, or three sides.
        TypeError: for an option that the model does not take.

    Example:
        >>> model = create_model("capsnet", num_classes=3, in_chans=3, img_size=(40, 28))
    """
    sizes = {"num_classes": num_classes, "in_chans": in_chans, "img_size": img_size}
    if not isinstance(name, str):
        raise ArgumentError("model", f"expected a name of list_models(), got {name!r}")
    check_sizes(**{key: size for key, size in sizes.items() if size is not None})
    with nullcontext() if generator is None else use_generator(generator):
        if pretrained:
            return pretrained_model(name, MODELS[name][0], sizes, options)
        return construct_model(name, sizes, options, torch.get_default_device())


def check_sizes(*, img_size: Any = 1, **counts: Any) -> None:
    """Check the sizes of a network: whole numbers, and one or two sides of images.

    Raises:
        ArgumentError: other ones.
    """
    check_positive(**counts)
    sides = img_size if isinstance(img_size, list | tuple) else (img_size, img_size)
    if len(sides) != 2:
        raise ArgumentError(
            "img_size", f"expected pixels of a side, or (height, width), got {img_size!r}"
        )
    for side in sides:
        check_positive(img_size=side)


def construct_model(
    name: str,
    sizes: Options,
    options: Options,
    device: torch.device | None = None,
) -> nn.Module:
    """Build a model by name; see `create_model`.

    Args:
        name: of the model.
        sizes: num_classes, in_chans and img_size; None is as published.
        options: the model's own.
        device: whose memory it has to fit with its training; None checks nothing.

    Raises:
        ArgumentError: the model does not fit.
    """
    builder, info = MODELS[name]
    parameters = signature(builder).parameters
    # A backbone that is read from a file (`freeze`) is not counted.
    if device is not None and device.type != "meta" and "freeze" not in parameters:
        _check_memory(name, sizes, options, device)
    sizes = {key: getattr(info, key) if size is None else size for key, size in sizes.items()}
    if not info.num_classes:
        del sizes["num_classes"]
    try:
        model = builder(**sizes, **options)
    except TypeError as error:
        if not options:
            raise
        raise option_error(name, options, error) from error
    metadata = model_metadata(model)
    # What the builder itself states takes precedence: it builds the model without its sources.
    options = {**sizes, **options, **metadata.options}
    model._torchcaps = with_changes(metadata, name=name, options=options)  # type: ignore[assignment]
    return model


def _check_memory(name: str, sizes: Options, options: Options, device: torch.device) -> None:
    """Refuse a model whose parameters cannot be trained in the memory at hand.

    They are counted on the device "meta", where nothing is allocated and nothing drawn. A model
    that computes with numbers while it is built is not counted.
    """
    try:
        with on_meta():
            model = construct_model(name, sizes, deepcopy(options))
        count = sum(weight.numel() for weight in model.parameters())
    except (RuntimeError, TypeError):  # what torch raises where a tensor has no numbers
        return
    available = available_memory(device)
    if BYTES_PER_PARAMETER * count > available:
        raise ArgumentError(
            "model",
            f"expected one to train in {available / GIB:.1f} GiB of memory, got {name} with "
            f"{count:,} parameters, which take {BYTES_PER_PARAMETER * count / GIB:.1f} GiB with "
            "gradients and optimizer; take a smaller img_size or num_classes, or another model",
        )


def available_memory(device: torch.device) -> float:
    """Bytes that a process can allocate on a device.

    Args:
        device: a GPU, or else the CPU.

    Returns:
        On the CPU, the least of what the machine has available and its control group's limit;
        infinity where the system does not tell.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limits = [math.inf]
    with suppress(OSError, ValueError):
        (kibibytes,) = re.findall(r"MemAvailable:\s*(\d+)", MEMORY_FILE.read_text())
        limits.append(int(kibibytes) << 10)
    with suppress(OSError, ValueError):  # "max" is no limit
        limits.append(int(GROUP_FILE.read_text()))
    return min(limits)
