"""Where on the image the votes for a class capsule come from.

A child i gives parent j the vector `c_ij vote_ij`; its part along the parent's pose p_j is the child's support for j:

    support_ij = c_ij * strength_ij * cos(vote_ij, p_j)

with `strength = |vote|` for vector capsules, whose lengths are their activations, and `strength = a_i` for capsules
that have an activation beside their pose. For vector capsules without a bias the supports of all children sum to |s_j|,
the length before squashing (arXiv 1710.09829, equation 2). Summed over capsule types they are a map over positions, and
each position's sum is spread over the pixels that it sees, in proportion to the number of ways from a pixel to it
through the convolutions, softened at the edges of strides so that even supports make an even map. This reading of
routing is the library's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.checks import check_images, check_labels
from torchcaps.evaluation.forward import device_of, evaluating
from torchcaps.evaluation.recording import children_of, routed_layers
from torchcaps.functional import Windows, matrix_votes
from torchcaps.nn import CapsuleLinear, ClassCaps, ConvCaps, Recorded, record_routing
from torchcaps.types import Capsules

BATCH = 16  # images at a time: the votes for one parent are stored


@dataclass(frozen=True, eq=False)
class CouplingMaps:
    """The support of one class capsule of each image, by place.

    Attributes:
        maps: `[n, height, width]`, over the pixels of the images; negative where votes point away from the class.
        positions: `[n, rows, columns]`, the same over the positions of the first capsules; both have the same sum.
        shown: `[n]` int64, the class whose support it is.
        activations: `[n, classes]` of the class capsules, in [0, 1].
    """

    maps: Float[Tensor, "n height width"]
    positions: Float[Tensor, "n rows columns"]
    shown: Int64[Tensor, " n"]
    activations: Float[Tensor, "n classes"]


def coupling_maps(
    model: nn.Module,
    images: Float[Tensor, "n channels height width"],
    labels: Int64[Tensor, " n"] | None = None,
    *,
    batch_size: int = BATCH,
) -> CouplingMaps:
    """Where the votes for the winning class of each image come from, or for the classes given.

    Args:
        model: its class capsules are a `CapsuleLinear` or `ClassCaps` over capsules that have places, perhaps with
            `ConvCaps` between: then the support of a parent is handed down to its children by their shares in it.
        images: `[n, channels, height, width]` in [0, 1], n at least 1.
        labels: `[n]` class indices; by default the most active class of each image.
        batch_size: images at a time, at least 1.

    Raises:
        ValueError: for a model whose capsules have no places, or whose layers are of other kinds; or arguments that do
            not fit.
    """
    check_images(images)
    check_range("batch_size", batch_size, low=1)
    if labels is not None:
        check_shape("labels", labels, ("n",), n=len(images))
    given = [None] * len(images.split(batch_size)) if labels is None else labels.split(batch_size)
    place, parts = device_of(model), []
    with evaluating(model):
        for batch, chosen in zip(images.split(batch_size), given, strict=True):
            parts.append(_of_batch(model, batch.to(place), chosen))
    return CouplingMaps(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


@dataclass
class _Seen:
    """What ran before the capsules had places: (kernel, stride, padding) of each convolution, and their outcome."""

    spatial: Capsules | None = None
    convolutions: list[tuple[tuple[int, int], tuple[int, int], tuple[int, int]]] = field(default_factory=list)
    size: tuple[int, int] | None = None  # of the newest map
    chain: bool = True  # whether each convolution took what the one before gave


def _of_batch(model: nn.Module, images: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    layers = routed_layers(model)
    with record_routing(model) as record, children_of(model) as children, _places_of(model) as seen:
        activation = model(images).float()
    names = [name for name in layers if name in children and record[name]]
    if labels is None:
        labels = activation.argmax(dim=1)
    check_labels(labels, activation.shape[1])
    shown = labels.to(activation.device)
    top: Any = layers[names[-1]]
    support = _class_support(top, children[names[-1]], record.last()[names[-1]], shown)
    spatial = seen.spatial if len(names) == 1 else children[names[-1]]
    below = _with_places(names[-1], support, children[names[-1]], spatial)
    for name in reversed(names[:-1]):
        below = _handed_down(name, layers[name], below, children[name], record.last()[name])
    positions = below.sum(dim=-1)
    maps = _over_pixels(positions, seen, (images.shape[2], images.shape[3]))
    return maps.cpu(), positions.cpu(), shown.cpu(), activation.cpu()


def _class_support(layer: nn.Module, children: Capsules, recorded: Recorded, shown: Tensor) -> Tensor:
    """`[batch, children]`: the support of each child for the class shown."""
    if isinstance(layer, CapsuleLinear):
        weight = layer.weight[:, shown].float()  # [children, batch, dim, in_dim]
        votes = torch.einsum("bid,ibkd->bik", children.pose.float(), weight)
        activation = children.activation
    elif isinstance(layer, ClassCaps):
        votes, activation = _matrix_class_votes(layer, children, shown), children.activation.flatten(1)
    else:
        raise ValueError(
            f"model: expected CapsuleLinear or ClassCaps as class capsules, whose votes are known, got "
            f"{type(layer).__name__}"
        )
    each = torch.arange(len(shown), device=shown.device)
    coupling, parent = recorded.coupling[each, :, shown].float(), recorded.pose[each, shown].float()
    along = torch.einsum("bik,bk->bi", votes, F.normalize(parent, dim=-1))
    length = children.pose.flatten(1, -2).float().norm(dim=-1)
    if torch.allclose(length, activation.float(), atol=1e-3):  # vector capsules: the votes carry the activation
        return coupling * along
    return coupling * activation.float() * along / votes.norm(dim=-1).clamp(min=1e-12)


def _matrix_class_votes(layer: ClassCaps, children: Capsules, shown: Tensor) -> Tensor:
    """`[batch, positions * types, P * P]` votes for the class shown."""
    _, rows, columns, _, _ = children.pose.shape
    weight = layer.weight[:, shown].float().repeat(rows * columns, 1, 1, 1)  # [children, batch, P, P]
    pose = children.pose.float().flatten(1, 3)
    votes = torch.stack([matrix_votes(pose[k : k + 1], weight[:, k : k + 1])[0, :, 0] for k in range(len(shown))])
    if layer.centres is not None:
        places = layer.centres.flatten(0, 1).expand(rows * columns, layer.in_types, 1, -1).flatten(0, 1)
        votes = votes + places[:, 0]
    return votes if layer.bias is None else votes + layer.bias[shown].unsqueeze(1)


def _with_places(name: str, support: Tensor, children: Capsules, spatial: Capsules | None) -> Tensor:
    """`[batch, rows, columns, types]` of `[batch, children]`."""
    if children.pose.dim() == 5:
        return support.unflatten(1, children.pose.shape[1:4])
    if spatial is not None and torch.equal(spatial.pose.flatten(1, 3), children.pose):
        return support.unflatten(1, spatial.pose.shape[1:4])
    raise ValueError(f"model: expected the children of {name!r} to be capsules with places, position after position")


def _handed_down(name: str, layer: nn.Module, support: Tensor, children: Capsules, recorded: Recorded) -> Tensor:
    """`[batch, height, width, types]` from the support of the parents `[batch, rows, columns, parents]`."""
    if not isinstance(layer, ConvCaps):
        raise ValueError(f"model: expected ConvCaps below the class capsules, got {type(layer).__name__} as {name!r}")
    weight = recorded.coupling.float() * recorded.child_activation.float().unsqueeze(-1)
    shares = weight / weight.sum(dim=-2, keepdim=True).clamp(min=1e-12)
    windows = Windows(children.pose.shape[1], children.pose.shape[2], layer.kernel_size, layer.stride)
    return windows.fold((shares * support.unsqueeze(-2)).sum(dim=-1))


def _over_pixels(positions: Tensor, seen: _Seen, size: tuple[int, int]) -> Tensor:
    """Each position's value over the pixels that it sees; bilinear where the convolutions are no simple chain."""
    x = positions.unsqueeze(1)
    if not seen.chain or seen.size != tuple(positions.shape[1:]):
        stretched = F.interpolate(x, size, mode="bilinear", align_corners=False)
        ratio = positions[0].numel() / (size[0] * size[1])
        return (stretched * ratio)[:, 0]
    for kernel, stride, padding in reversed(seen.convolutions):
        down, right = (_spread(k, s).to(x) for k, s in zip(kernel, stride, strict=True))
        x = F.conv_transpose2d(x, torch.outer(down, right)[None, None], stride=stride)
        x = x[:, :, padding[0] : x.shape[2] - padding[0], padding[1] : x.shape[3] - padding[1]]
    # What a stride leaves over at the lower and right edges nobody sees.
    return F.pad(x, (0, size[1] - x.shape[3], 0, size[0] - x.shape[2]))[:, 0]


def _spread(kernel: int, stride: int) -> Tensor:
    """`[kernel]`, of sum one: copies `stride` apart sum to a constant, where a plain box would leave a comb."""
    step = min(stride, kernel)
    ramp = torch.arange(1, kernel + 1)
    weight = torch.minimum(ramp, ramp.flip(0)).clamp(max=min(step, kernel - step + 1)).float()
    return weight / weight.sum()


@contextmanager
def _places_of(model: nn.Module) -> Iterator[_Seen]:
    """Watch a forward pass up to the first capsules that have places."""
    seen = _Seen()

    def watch(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Capsules) and output.pose.dim() == 5 and seen.spatial is None:
            seen.spatial = output
        elif isinstance(module, nn.Conv2d) and seen.spatial is None:
            _add(seen, module, inputs[0].shape[2:], output.shape[2:])

    handles = [module.register_forward_hook(watch) for module in model.modules()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _add(seen: _Seen, module: nn.Conv2d, before: torch.Size, after: torch.Size) -> None:
    if seen.size is not None and seen.size != tuple(before):
        seen.chain = False
    if isinstance(module.padding, str) or module.dilation != (1, 1):
        seen.chain = False
        return
    kernel, stride = (module.kernel_size[0], module.kernel_size[1]), (module.stride[0], module.stride[1])
    seen.convolutions.append((kernel, stride, (module.padding[0], module.padding[1])))
    seen.size = (after[0], after[1])
