"""How models show themselves in a notebook: HTML without script, style sheet or anything to load."""

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.functional.votes import Votes
from torchcaps.nn.routed import RoutedLayer
from torchcaps.nn.routers import Router
from torchcaps.templates import render
from torchcaps.types import Capsules, Routed, spec_of

MAX_CLASSES = 12  # names in the line on classes


class Stage(NamedTuple):
    """A row of the table."""

    name: str  # of the module
    kind: str  # what it is, in words
    output: str  # the shape of what it gives for one image, in words
    parameters: int  # numbers that training can change


def times(*sizes: int) -> str:
    """`6 × 6 × 32`."""
    return " × ".join(map(str, sizes))


def capsules_in_words(shape: Sequence[int], unit: str = "dims") -> str:
    """`6 × 6 × 32 capsules of 8 dims` for `[6, 6, 32, 8]`."""
    return (
        f"{times(*shape[:-1])} {'capsule' if shape[-2] == 1 else 'capsules'} of {shape[-1]} {unit}"
    )


def measured_stages(model: Any) -> list[Stage]:
    """What each stage of a classifier gives for one image, measured by one forward pass through a copy without weights.

    The model, its mode, its hooks and random numbers are not touched. Of a router, which may be the user's own, the
    shapes are those that it has to give. A chain is listed one by one."""
    bare = _without_weights(model)
    outputs: dict[str, Any] = {}
    for name, module in _stages(bare):
        module.register_forward_hook(partial(_keep_output, outputs, name))
    dtype = next(bare.parameters()).dtype
    images = torch.zeros(1, bare.in_chans, *bare.img_size, dtype=dtype, device="meta")
    with torch.no_grad():
        _ = bare.reconstruct(bare.capsules(images)) if spec_of(bare).decoder else bare(images)
    return [
        Stage(name, _kind(module), _in_words(outputs[name]), parameter_count(module))
        for name, module in _stages(model)
    ]


def _keep_output(outputs: dict[str, Any], name: str, *call: Any) -> None:
    """A forward hook, which is called with a module, its inputs and its output."""
    outputs[name] = call[-1]


def stages_by_name(model: nn.Module, rows: dict[str, tuple[str, str]]) -> list[Stage]:
    """Stages by a part of the names of their parameters, with what each is and gives in words."""
    return [
        Stage(
            name,
            *words,
            sum(p.numel() for path, p in model.named_parameters() if name in path.split(".")),
        )
        for name, words in rows.items()
    ]


def parameter_count(module: nn.Module) -> int:
    """Numbers that training can change."""
    return sum(parameter.numel() for parameter in module.parameters())


class _Shapes(Router):
    """In place of any router: parents that are all zeros."""

    adds_bias = True

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        pose = votes.children.pose.new_zeros(1, *votes.field.positions, votes.parents, votes.dim)
        return Routed(pose, pose[..., 0], None)


def _without_weights(model: nn.Module) -> Any:
    """A copy in evaluation mode of shapes alone, whose routers do nothing; hooks and recordings stay behind."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            memo[id(hooks)] = type(hooks)()
        if isinstance(module, RoutedLayer):
            memo[id(module.router)] = _Shapes()
    for tensor in (*model.parameters(), *model.buffers()):
        memo[id(tensor)] = nn.Parameter(torch.empty_like(tensor, device="meta"), False)
    metadata = vars(model).get("_torchcaps")  # its options may hold a router module
    memo[id(metadata)] = metadata
    bare = copy.deepcopy(model, memo).eval()
    for module in bare.modules():
        if "impl" in vars(module):
            vars(module)["impl"] = "reference"
    return bare


def _stages(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, child in model.named_children():
        if isinstance(child, nn.Sequential | nn.ModuleList):
            yield from ((f"{name}.{inner}", one) for inner, one in _stages(child))
        elif not isinstance(child, nn.ReLU | nn.Dropout):
            yield name, child


def _in_words(output: Tensor | Capsules) -> str:
    return (
        times(*output.shape[1:])
        if isinstance(output, Tensor)
        else capsules_in_words(output.pose.shape[1:])
    )


def _kind(module: nn.Module) -> str:
    """`PrimaryCaps 9 × 9, stride 2`, `CapsuleLinear, dynamic routing, 3 iterations`."""
    conv: Any = getattr(module, "conv", module)
    name = type(module).__name__
    if hasattr(conv, "kernel_size"):
        kernel, stride = (
            (n, n) if isinstance(n, int) else n for n in (conv.kernel_size, conv.stride)
        )
        name += f" {times(*kernel)}, stride {stride[0]}"
    if isinstance(module, RoutedLayer):
        name += f", {module.router.describe()} routing"
        iterations = getattr(module.router, "iterations", None)
        name += (
            ""
            if iterations is None
            else f", {iterations} iteration{'' if iterations == 1 else 's'}"
        )
    return name


def model_card(model: Any) -> str:
    """HTML of a model: a title and a line, facts, and a table of its stages."""
    images = Stage("images", "", times(model.in_chans, *model.img_size), 0)
    total = Stage("total", "", "", parameter_count(model))
    stages = [images, *model.notebook_stages(), total]
    return render(
        "torchcaps.models",
        "card.html",
        title=type(model).__name__,
        about=(type(model).__doc__ or "").strip().split("\n")[0],
        facts=facts_of(model),
        heads=("stage", "", "output", "parameters"),
        rows=[
            (*stage[:3], f"{stage.parameters:,}" if stage.parameters else "") for stage in stages
        ],
    )


def facts_of(model: Any) -> list[tuple[str, str]]:
    """Lines on the images and the classes of a model."""
    height, width = model.img_size
    channels = f"{model.in_chans} channel{'' if model.in_chans == 1 else 's'}"
    lines = [("images", f"{channels}, {height} × {width} pixels (height × width)")]
    names = getattr(model, "classes", None)
    if names is not None:
        more = ", …" if len(names) > MAX_CLASSES else ""
        lines.append(
            ("classes", f"{len(names)} ({', '.join(map(str, names[:MAX_CLASSES]))}{more})")
        )
    elif hasattr(model, "num_classes"):
        lines.append(("classes", str(model.num_classes)))
    return lines
