"""How models show themselves in a notebook: HTML without script, style sheet or anything to load."""

import copy
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.errors import counted
from torchcaps.functional.votes import Votes
from torchcaps.nn.routed import RoutedLayer
from torchcaps.nn.routers import Router
from torchcaps.templates import render
from torchcaps.types import Capsules, Routed, spec_of
from torchcaps.words import join_names

MAX_CLASSES = 12  # names in the line on classes


class Stage(NamedTuple):
    """A row of the table of a model.

    Attributes:
        name: of the module.
        kind: of the module, in words.
        output: shape of its output for one image, in words.
        parameters: numbers that training can change.
    """

    name: str
    kind: str
    output: str
    parameters: int


def times(sizes: Iterable[int]) -> str:
    """`6 × 6 × 32` for `[6, 6, 32]`."""
    return " × ".join(map(str, sizes))


def parameter_count(module: nn.Module) -> int:
    """Numbers that training can change."""
    return sum(map(Tensor.numel, module.parameters()))


def list_stages(model: Any) -> list[Stage]:
    """The stages of a model by one forward pass through a copy without weights.

    The model, its mode, its hooks and random numbers are not touched. Of a router, which may be the
    user's own, the shapes are those that it has to give. The members of a chain are stages of their
    own, and so are parameters that belong to no layer.
    """
    bare = copy_without_weights(model)
    outputs: dict[str, Any] = {}
    for name, part in named_stages(bare):
        if isinstance(part, nn.Module):
            part.register_forward_hook(lambda *call, name=name: outputs.update({name: call[-1]}))
    images = next(bare.parameters()).new_zeros(bare.image_shape).unsqueeze(0)  # on "meta"
    with torch.no_grad():
        if spec_of(bare).decoder:
            bare.reconstruct(bare.capsules(images))
        else:
            bare(images)
    stages = []
    for name, part in named_stages(model):
        if isinstance(part, nn.Module):
            stages.append(
                Stage(
                    name, kind_in_words(part), shape_in_words(outputs[name]), parameter_count(part)
                )
            )
        else:
            stages.append(Stage(name, "parameter", times(part.shape), part.numel()))
    return stages


class ShapeRouter(Router):
    """In place of any router: parents of the right shape."""

    adds_bias = True

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        pose = votes.children.pose.new_zeros(1, *votes.field.positions, votes.parents, votes.dim)
        return Routed(pose, pose[..., 0], None)


def copy_without_weights(model: nn.Module) -> Any:
    """A copy in evaluation mode on the device "meta", whose routers do nothing.

    Hooks and recordings stay behind.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            memo[id(hooks)] = type(hooks)()
        if isinstance(module, RoutedLayer):
            memo[id(module.router)] = ShapeRouter()
    for tensor in chain(model.parameters(), model.buffers()):
        memo[id(tensor)] = nn.Parameter(torch.empty_like(tensor, device="meta"), False)
    metadata = vars(model).get("_torchcaps")  # its options may hold a router module
    memo[id(metadata)] = metadata
    bare = copy.deepcopy(model, memo).eval()
    for module in bare.modules():
        if "impl" in vars(module):
            vars(module)["impl"] = "reference"
    return bare


def named_stages(model: nn.Module) -> Iterator[tuple[str, nn.Module | nn.Parameter]]:
    """Parameters and modules of a model that are rows of its table."""
    yield from model.named_parameters(recurse=False)
    for name, child in model.named_children():
        if isinstance(child, nn.Sequential | nn.ParameterDict):
            for index, part in named_stages(child):
                yield f"{name}.{index}", part
        elif isinstance(child, nn.ModuleList):
            for index, part in child.named_children():
                yield f"{name}.{index}", part
        elif not isinstance(child, nn.ReLU | nn.Dropout):
            yield name, child


def shape_in_words(output: Tensor | Capsules) -> str:
    """The shape of an output without the batch: `6 × 6 × 32 capsules of 8 dims`, `10 × 3`."""
    if isinstance(output, Tensor):
        return times(output.shape[1:])
    counts = output.pose.shape[1:-1]
    ending = "" if counts[-1] == 1 else "s"
    return f"{times(counts)} capsule{ending} of {output.pose.shape[-1]} dims"


def kind_in_words(module: nn.Module) -> str:
    """`PrimaryCaps 9 × 9, stride 2`, `CapsuleLinear, dynamic routing, 3 iterations`."""
    if isinstance(module, nn.Sequential):
        return ", ".join(map(kind_in_words, module))
    kind = type(module).__name__
    conv: Any = getattr(module, "conv", module)
    if hasattr(conv, "kernel_size"):
        kernel = conv.kernel_size
        stride = conv.stride
        if isinstance(kernel, int):
            kernel = (kernel, kernel)
        if not isinstance(stride, int):
            stride = stride[0]
        kind += f" {times(kernel)}, stride {stride}"
    if isinstance(module, RoutedLayer):
        kind += f", {module.router.describe()} routing"
        iterations = getattr(module.router, "iterations", None)
        if iterations is not None:
            kind += f", {counted(iterations, 'iteration')}"
    return kind


def model_card(model: Any) -> str:
    """HTML of a model: a title and a line, facts, and a table of its stages."""
    images = Stage("images", "", times(model.image_shape), 0)
    total = Stage("total", "", "", parameter_count(model))
    rows = [
        (name, kind, output, f"{parameters:,}" if parameters else "")
        for name, kind, output, parameters in [images, *list_stages(model), total]
    ]
    return render(
        "torchcaps.models",
        "card.html",
        title=type(model).__name__,
        about=(type(model).__doc__ or "").strip().split("\n")[0],
        facts=facts_of(model),
        heads=("stage", "", "output", "parameters"),
        rows=rows,
    )


def facts_of(model: Any) -> list[tuple[str, str]]:
    """Lines on the images and the classes of a model: names and values."""
    height, width = model.img_size
    lines = [
        (
            "images",
            f"{counted(model.in_chans, 'channel')}, {height} × {width} pixels (height × width)",
        )
    ]
    names = getattr(model, "classes", None)
    if names is not None:
        words = join_names(list(map(str, names)), MAX_CLASSES)
        lines.append(("classes", f"{len(names)} ({words})"))
    elif hasattr(model, "num_classes"):
        lines.append(("classes", str(model.num_classes)))
    return lines
