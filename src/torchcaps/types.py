"""The types that flow between capsule layers, and the specification of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from torchcaps.errors import ArgumentError
from torchcaps.transfer import evaluating

Json = dict[str, Any]  # values by name, most of them ready for JSON
Names = tuple[str, ...]  # also of classes, in the order of the labels
StrPath = str | Path
Tensors = dict[str, Tensor]  # by name

# Modules of torch that pass images and outputs on as they are.
WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)
# Methods of networks whose first argument is images.
IMAGE_METHODS = ("align", "capsules", "explain", "levels", "logits")


class Capsules(NamedTuple):
    """A set of capsules.

    Attributes:
        pose: `[batch, *space, num_capsules, pose_dim]`; matrix poses are flat, row-major.
        activation: `[batch, *space, num_capsules]`, in [0, 1]; for vector capsules the length of
            the pose.
    """

    pose: Float[Tensor, "batch *space capsules dim"]
    activation: Float[Tensor, "batch *space capsules"]


class LayerSizes(NamedTuple):
    """Sizes of a layer, which its router is built for."""

    children: int  # that have matrices of their own, at each position of the parents
    in_dim: int  # dimensions of a child's pose
    parents: int  # at each position
    dim: int  # dimensions of a vote


class Routed(NamedTuple):
    """The outcome of a routing function.

    Attributes:
        pose: `[batch, *space, parents, pose_dim]`.
        activation: `[batch, *space, parents]`, in [0, 1] if the router declares a meaning of it.
        coupling: `[batch, *space, children, parents]`; of most routers in [0, 1] and of sum one
            over the parents that compete for a child (at most one where a routing has a "none of
            the above" parent). None where a fast path left it out.
    """

    pose: Float[Tensor, "batch *space parents dim"]
    activation: Float[Tensor, "batch *space parents"]
    coupling: Float[Tensor, "batch *space children parents"] | None


@dataclass(frozen=True)
class ModelSpec:
    """The specification of a model, its attribute `spec`, which it declares itself.

    Attributes:
        pose: `capsules(images)` gives capsules with poses.
        activation: meaning of its outputs: the "length" of a pose, a "probability" in [0, 1], a
            "logit" (any number), or "none", where nothing says whether a capsule is present.
        decoder: `reconstruct(capsules)` draws images.
        logits: `logits(images)` gives the logits that `probabilities(logits)` takes.
        multilabel: an image may show several classes: its probabilities are of each class by
            itself.
        is_dense: its outputs are of each pixel: `[batch, classes - 1, height, width]`, a map for
            each class but the first one, which is the background; `capsules(images)` then has the
            pixels as positions.
        draw_size: height and width of what `draw(capsules, labels)` draws, where that is smaller
            than the images: `reconstruct` enlarges it, and losses compare it. None is the size of
            the images.
        smallest: side of the smallest image it takes, in pixels.
        any_size: it takes images of any size from its `img_size` on, also of several ones in a
            data set: no weight belongs to a place.
        smallest_batch: images of the smallest batch that it can be trained with.
        task: default task, a name of `tasks.list_tasks()`.
        loss: default loss, a name of a loss of that task.
        features: its backbone is frozen: it also takes what `backbone(images)` gives,
            `[batch, *feature_shape]`, in place of images, so that this may be computed once.
    """

    pose: bool = False
    activation: Literal["length", "probability", "logit", "none"] = "logit"
    decoder: bool = False
    logits: bool = False
    multilabel: bool = False
    is_dense: bool = False
    draw_size: tuple[int, int] | None = None
    smallest: int = 1
    any_size: bool = False
    smallest_batch: int = 1
    task: str = "classify"
    loss: str = "cross_entropy"
    features: bool = False


@dataclass(frozen=True)
class ModelMetadata:
    """Facts that the library keeps with a model that it trained or loaded.

    Attributes:
        classes: their names; empty where labels have no part in the task.
        preprocess: the preprocessing of `predict` (`torchcaps.data.Preprocess`), if known.
        task: name of the task it was trained for; "auto" is the one that the model declares.
        spec: the specification that a module without one was trained with.
        name: under which `create_model` built it; empty for other modules.
        options: that it was built with; by `create_model`, sizes are among them.
        builder: the function of the user that built it from these options, if one is known.
        targets: facts about the targets that it was trained with, plain values by name; see
            `Task.target_facts`.
        calibration: what held-out images say of its activations, the dictionary of an
            `evaluation.HeldOutCalibration`; None where nothing is known.
    """

    classes: Names = ()
    preprocess: Any = None
    task: str = "auto"
    spec: ModelSpec | None = None
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    builder: Callable[..., nn.Module] | None = None
    targets: Mapping[str, Any] = field(default_factory=dict)
    calibration: Mapping[str, Any] | None = None


def model_metadata(model: nn.Module) -> ModelMetadata:
    """The metadata of a model, or of the network of this library that it wraps.

    Of a model that the library neither trained nor loaded, the attributes `classes` and
    `preprocess` count.
    """
    model = unwrap(find_network(model))
    metadata = getattr(model, "_torchcaps", None)
    if not isinstance(metadata, ModelMetadata):
        metadata = ModelMetadata()
    if metadata.preprocess is not None:
        return metadata
    classes = getattr(model, "classes", ())
    are_names = isinstance(classes, tuple) and set(map(type, classes)) <= {str}
    preprocess = getattr(model, "preprocess", None)
    return replace(
        metadata,
        classes=metadata.classes or (classes if are_names else ()),
        preprocess=None if isinstance(preprocess, nn.Module) else preprocess,  # a part of its own
    )


def set_model_metadata(
    model: nn.Module, metadata: ModelMetadata | None = None, **changes: Any
) -> None:
    """Keep metadata, by default the model's own, with changes in its one attribute `_torchcaps`.

    The attributes `classes` and `preprocess` are set too, unless the module has its own.
    """
    metadata = replace(metadata or model_metadata(model), **changes)
    model = unwrap(model)
    previous = getattr(model, "_torchcaps", None)
    for name in ("classes", "preprocess"):
        is_ours = previous and getattr(model, name, None) is getattr(previous, name)
        if is_ours or not hasattr(model, name):
            setattr(model, name, getattr(metadata, name))
    model._torchcaps = metadata  # type: ignore[assignment]


def check_module(model: Any) -> None:
    """Raise ArgumentError unless this is a module, and not, say, the name of one."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            "model", f"expected a torch.nn.Module, as create_model(NAME) gives one, got {model!r}"
        )


def declares(model: nn.Module) -> bool:
    """Whether a model, or a network within it, has a specification of its own."""
    return _has_spec(find_network(model))


def spec_of(model: nn.Module) -> ModelSpec:
    """The specification of a model: its own, or that of its training, or a classifier's."""
    model = find_network(model)
    if _has_spec(model):
        return model.spec  # type: ignore[return-value]
    return model_metadata(model).spec or ModelSpec()


def _has_spec(model: Any) -> bool:
    return isinstance(getattr(model, "spec", None), ModelSpec)


def unwrap(model: Any) -> Any:
    """The module within torch's wrappers, which pass images and outputs on as they are.

    They are `DataParallel`, `DistributedDataParallel`, `AveragedModel` and `torch.compile`.
    """
    while True:
        if isinstance(model, WRAPPERS):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model


def find_network(model: Any) -> Any:
    """The network that declares what a model is, wherever it is within the model.

    Args:
        model: a network; one in wrappers of torch; or a module that holds exactly one network: the
            last stage of a `Sequential`, or one whose outputs the module returns as they are, which
            is checked on one image.

    Returns:
        The network itself; a `WrappedNetwork` where other modules are around it; and the model as
        it is where nothing in it declares anything.
    """
    module = unwrap(model)
    if _has_spec(module) or not isinstance(module, nn.Module):
        return module
    paths = [path for path, part in module.named_modules() if _has_spec(unwrap(part))]
    # Networks within the first one are its own affair.
    if paths and all(f"{path}.".startswith(f"{paths[0]}.") for path in paths):
        wrapped = WrappedNetwork(module, paths[0])
        while isinstance(module, nn.Sequential) and module:
            module = unwrap(module[-1])
        if module is unwrap(wrapped.entry) or wrapped.trial()[1]:
            return wrapped
    return model


class InputReached(Exception):
    """The input of a network is known, and nothing further needs to be computed."""


class WrappedNetwork(nn.Module):
    """A network within another module, such as `Sequential(Normalize(), network)`.

    Images go through the outer module. Everything else is asked of the network.

    Args:
        outer: holds the network, and returns what that returns.
        path: of the network within it, as `get_submodule` takes it.
    """

    def __init__(self, outer: nn.Module, path: str) -> None:
        super().__init__()
        self.outer = outer
        self.path = path

    @property
    def entry(self) -> nn.Module:
        """What the outer module calls: the network, perhaps in wrappers of torch."""
        return self.outer.get_submodule(self.path)

    def forward(self, images: Tensor) -> Tensor:
        return self.outer(images)

    def __getattr__(self, name: str) -> Any:
        if name == "outer":
            return super().__getattr__(name)
        if name == "_torchcaps" and hasattr(self.outer, name):
            return self.outer._torchcaps  # of a training of the whole
        attribute = getattr(unwrap(self.entry), name)
        if name not in IMAGE_METHODS:
            return attribute
        return lambda images, *options: attribute(self.network_input(images), *options)

    def network_input(self, images: Tensor) -> Tensor:
        """What the network is given where the outer module is given images."""

        def stop(_: nn.Module, arguments: Any) -> None:
            raise InputReached(*arguments)

        with self.entry.register_forward_pre_hook(stop):
            try:
                return self.outer(images)
            except InputReached as reached:
                return reached.args[0]

    def trial(self) -> tuple[bool, bool]:
        """Of one random image: whether it reaches the network, and whether its output returns.

        Both as they are. All parts are in evaluation mode; of the outer module itself the output is
        also compared in training mode.
        """
        calls: list[Any] = []
        try:
            sizes = model_metadata(self).preprocess or self  # those of its training, if any
            image = torch.rand(1, sizes.in_chans, *sizes.img_size, generator=torch.Generator()).to(
                next(self.parameters())
            )
            with (
                self.entry.register_forward_hook(lambda *call: calls.append(call)),
                evaluating(self),
            ):
                for self.outer.training in (True, False):
                    output = self.outer(image)
                    _, [network_input], network_output = calls.pop()
                    if calls or not torch.equal(network_output, output):
                        return False, False
            return torch.equal(network_input, image), True
        except Exception:  # a module can fail in any way at an image that it is not made for
            return False, False


def output_names(classes: Names, count: int) -> Names:
    """Names of the outputs of a model, which may be more than the classes of its data.

    Further outputs are named by their numbers, such as "2"; where a class has this name, by
    "output 2".

    Args:
        classes: of the data.
        count: number of outputs.
    """
    numbers = map(str, range(len(classes), count))
    return classes + tuple(f"output {name}" if name in classes else name for name in numbers)
