"""How models show themselves in a notebook: HTML without script, style sheet or anything to load."""

import copy
from collections.abc import Iterator, Sequence
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


def card(
    title: str,
    about: str,
    facts: Sequence[tuple[str, str]],
    *,
    heads: Sequence[str] = (),
    rows: Sequence[Sequence[str]] = (),
    picture: Any = None,
) -> str:
    """HTML of a title and a line, names with their values, a table, and a picture; text is escaped.

    Args:
        title, about: the first line.
        facts: names and values.
        heads, rows: of the table, whose first column names its rows and whose last holds numbers.
        picture: with `source` (a data URL), `alt`, and `width` in pixels.
    """
    return render(
        "torchcaps.models",
        "card.html",
        title=title,
        about=about,
        facts=facts,
        heads=heads,
        rows=rows,
        picture=picture,
    )


def times(*sizes: int) -> str:
    """`6 × 6 × 32`."""
    return " × ".join(map(str, sizes))


def capsules_in_words(shape: Sequence[int]) -> str:
    """`6 × 6 × 32 capsules of 8 dims` for `[6, 6, 32, 8]`."""
    return f"{times(*shape[:-1])} {'capsule' if shape[-2] == 1 else 'capsules'} of {shape[-1]} dims"


def measured_stages(model: Any) -> list[Stage]:
    """What each stage of a classifier gives for one image, measured by one forward pass through a copy without weights.

    The model, its mode, its hooks and random numbers are not touched. Of a router, which may be the user's own, the
    shapes are those that it has to give. A chain is listed one by one."""
    bare = _without_weights(model)
    shapes: dict[str, str] = {}
    for name, module in _stages(bare):
        module.register_forward_hook(
            lambda *seen, name=name: shapes.update({name: _in_words(seen[2])})
        )
    images = torch.zeros(1, bare.in_chans, *bare.img_size, dtype=next(bare.parameters()).dtype)
    with torch.no_grad():
        _ = bare.reconstruct(bare.capsules(images)) if spec_of(bare).decoder else bare(images)
    counts = {name: sum(p.numel() for p in module.parameters()) for name, module in _stages(model)}
    return [
        Stage(name, _kind(module), shapes[name], counts[name]) for name, module in _stages(model)
    ]


class _Shapes(Router):
    """In place of any router: parents that are all zeros."""

    adds_bias = True

    def route(self, votes: Votes, parents: Capsules | None) -> Routed:
        pose = votes.children.pose.new_zeros(1, *votes.field.positions, votes.parents, votes.dim)
        return Routed(pose, pose[..., 0], None)


def _without_weights(model: nn.Module) -> Any:
    """A copy on the CPU in evaluation mode, all zeros, whose routers do nothing; hooks and recordings stay behind."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        memo |= {
            id(hooks): type(hooks)() for hooks in (module._forward_hooks, module._forward_pre_hooks)
        }
        if isinstance(module, RoutedLayer):
            memo[id(module.router)] = _Shapes()
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(_zeros(parameter), requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = _zeros(buffer)
    metadata = vars(model).get("_torchcaps")  # its options may hold a router module
    memo[id(metadata)] = metadata
    bare = copy.deepcopy(model, memo).eval()
    for module in bare.modules():
        if "impl" in vars(module):
            vars(module)["impl"] = "reference"
    return bare


def _zeros(x: Tensor) -> Tensor:
    return torch.zeros(x.shape, dtype=x.dtype)  # the system hands these out without touching memory


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
