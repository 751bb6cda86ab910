"""Where on the image the votes for a class capsule come from.

A child i gives parent j the vector `c_ij vote_ij`; its part along the parent's pose p_j is the
child's support for j:

    support_ij = c_ij * strength_ij * cos(vote_ij, p_j)

with `strength = |vote|` for vector capsules, whose lengths are their activations, and
`strength = a_i` for capsules that have an activation beside their pose. For vector capsules without
a bias the supports of all children sum to |s_j|, the length before squashing (arXiv 1710.09829,
equation 2). Summed over capsule types they are a map over positions, and each position's sum is
spread over the pixels that it sees, in proportion to the number of ways from a pixel to it through
the convolutions, softened at the edges of strides so that even supports make an even map. This
reading of routing is the library's own.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import ArgumentError
from torchcaps.evaluation.base import (
    Activations,
    Images,
    Labels,
    batches,
    check_images,
    check_labels,
    evaluating,
)
from torchcaps.evaluation.routing.layers import children_of, routed_layers
from torchcaps.functional.fields import ConvField
from torchcaps.functional.geometry import Slide
from torchcaps.nn import RoutedLayer, RoutingTrace, record_routing
from torchcaps.types import Capsules

BATCH = 16  # images at a time: the votes for one parent are stored

Slides = tuple[Slide, ...] | None
"""Those of the layers from the image on; None where they are no chain of plain convolutions."""


@dataclass(frozen=True, eq=False)
class CouplingMaps:
    """The support of one class capsule of each image, by place.

    Attributes:
        maps: over pixels; negative where votes oppose the class.
        positions: over the first capsules, with the same sum.
        selected: `[n]` int64, the class whose support it is.
        activations: `[n, classes]` of the class capsules, in [0, 1].
    """

    maps: Float[Tensor, "n height width"]
    positions: Float[Tensor, "n rows columns"]
    selected: Labels
    activations: Activations


def coupling_maps(
    model: nn.Module,
    images: Images,
    labels: Labels | None = None,
) -> CouplingMaps:
    """Return where the votes for one class of each image come from.

    The last routed layer makes the class capsules, from capsules that have places. With routed
    layers between, the support of a parent is handed down to its children by their shares in it.

    Args:
        model: a model with such layers.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` classes; by default the most active ones.

    Returns:
        Maps over pixels and over positions, with the class of each image; on the CPU.

    Raises:
        ArgumentError: for a model whose capsules have no places, or with layers of other kinds; or
            arguments that do not fit.
    """
    check_images(images)
    if labels is not None:
        check_labels(labels, n=len(images))
    with evaluating(model):
        parts = [
            _map_batch(model, batch, None if labels is None else batch_labels)
            for batch, batch_labels in batches(model, images, labels, batch_size=BATCH)
        ]
    return CouplingMaps(*map(torch.cat, zip(*parts, strict=True)))


def _map_batch(model: nn.Module, images: Images, labels: Labels | None) -> tuple[Tensor, ...]:
    """Return the fields of `CouplingMaps` for a batch, on the CPU."""
    layers = routed_layers(model)
    with (
        record_routing(model) as record,
        children_of(model) as children,
        places_of(model) as places,
    ):
        activation = model(images).float()
    traces = record.last()
    names = list(traces)
    if labels is None:
        labels = activation.argmax(dim=1)
    check_labels(labels, activation.shape[1])

    # The support of the children of the last layer, by place and type.
    top = names[-1]
    class_support = _class_support(layers[top], children[top], traces[top], labels)
    top_children = places.map_of(children[top])
    if top_children is None:
        raise ArgumentError(
            "model",
            f"expected the children of {top!r} to be capsules with places, position after position",
        )
    support = class_support.unflatten(1, top_children.capsules.pose.shape[1:4])
    for name in reversed(names[:-1]):
        support = _hand_down(layers[name], support, children[name], traces[name])

    positions = support.sum(dim=-1)
    first_children = places.map_of(children[names[0]])
    slides = first_children and first_children.slides
    maps = _spread_over_pixels(positions, slides, images.shape[2:])
    return maps.cpu(), positions.cpu(), labels.cpu(), activation.cpu()


def _class_support(
    layer: RoutedLayer,
    children: Capsules,
    trace: RoutingTrace,
    labels: Labels,
) -> Tensor:
    """Return the support `[batch, children]` of each child for one class of each image."""
    if trace.coupling.dim() != 3:
        raise ArgumentError(
            "model",
            f"expected class capsules without places at its end, got {type(layer).__name__}",
        )
    votes = layer.make_votes(children)
    rows = torch.arange(len(labels), device=labels.device)
    vote = votes.dense().float()[rows, :, labels]
    coupling = trace.coupling[rows, :, labels].float()
    parent = F.normalize(trace.pose[rows, labels].float(), dim=-1)
    along = torch.einsum("bik,bk->bi", vote, parent)
    if layer.router.activation != "probability":  # the votes carry the activation
        return coupling * along
    return coupling * votes.activation.float() * along / vote.norm(dim=-1).clamp(min=1e-12)


def _hand_down(
    layer: RoutedLayer,
    support: Tensor,
    children: Capsules,
    trace: RoutingTrace,
) -> Tensor:
    """Return the support of children from that of their parents.

    Args:
        layer: the layer between them.
        support: `[batch, *positions, parents]`.
        children: the capsules below, `[batch, *space, types]`.
        trace: the couplings of the layer.

    Returns:
        `[batch, *space, types]`.
    """
    weight = trace.coupling.float() * trace.child_activation.float().unsqueeze(-1)
    shares = weight / weight.sum(dim=-2, keepdim=True).clamp(min=1e-12)
    return layer.make_votes(children).field.scatter((shares * support.unsqueeze(-2)).sum(dim=-1))


def _spread_over_pixels(
    positions: Tensor, slides: Sequence[Slide] | None, size: Sequence[int]
) -> Tensor:
    """Spread the support of each position over the pixels that it sees.

    It is bilinear where the convolutions are no simple chain.

    Args:
        positions: `[n, rows, columns]`.
        slides: of the layers from the image to the positions; None where they are no chain.
        size: height and width of the image.

    Returns:
        `[n, height, width]`.
    """
    height, width = size
    x = positions.unsqueeze(1)
    if slides is None:
        ratio = positions[0].numel() / (height * width)
        return (F.interpolate(x, (height, width), mode="bilinear") * ratio)[:, 0]
    for kernel, stride, padding in reversed(slides):
        weight = torch.outer(*map(_window, kernel, stride))[None, None].to(x)
        x = F.conv_transpose2d(x, weight, stride=stride, padding=padding)
    # Nothing sees the pixels that a stride leaves over at the lower and right edges.
    return F.pad(x, (0, width - x.shape[3], 0, height - x.shape[2]))[:, 0]


def _window(kernel: int, stride: int) -> Tensor:
    """Return weights of sum one whose copies, `stride` apart, sum to a constant.

    A plain box would leave a comb.
    """
    step = min(stride, kernel)
    ramp = torch.arange(1, kernel + 1)
    weight = torch.minimum(ramp, ramp.flip(0)).clamp(max=min(step, kernel - step + 1)).float()
    return weight / weight.sum()


class CapsuleMap(NamedTuple):
    """Capsules with places."""

    capsules: Capsules  # pose `[batch, height, width, types, dim]`, activation likewise
    slides: Slides  # of the layers below


@dataclass
class Places:
    """The maps that a forward pass has made so far."""

    maps: list[CapsuleMap]  # in the order of the pass
    slides: Slides = ()
    _size: Sequence[int] | None = None

    def add(self, slide: Slide | None, before: Sequence[int], after: Sequence[int]) -> None:
        """Record a layer that has slid over a map of one size and made one of another size."""
        if slide and self.slides is not None and self._size in (None, before):
            self.slides = (*self.slides, slide)
        else:
            self.slides = None
        self._size = after

    def map_of(self, children: Capsules) -> CapsuleMap | None:
        """Return the newest map that holds capsules, with their places or in a row."""
        for candidate in reversed(self.maps):
            pose = candidate.capsules.pose
            if torch.equal(pose, children.pose) or torch.equal(pose.flatten(1, 3), children.pose):
                return candidate
        return None


@contextmanager
def places_of(model: nn.Module) -> Iterator[Places]:
    """Record the maps of the forward passes of a model."""
    places = Places([])

    def record(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        slide = None  # for padding by name, dilated kernels, and other fields
        if isinstance(module, nn.Conv2d):
            if not isinstance(module.padding, str) and module.dilation == (1, 1):
                slide = Slide(module.kernel_size, module.stride, module.padding)
            places.add(slide, inputs[0].shape[2:], output.shape[2:])
        elif isinstance(module, RoutedLayer) and output.pose.dim() == 5:
            pose = inputs[0].pose if isinstance(inputs[0], Capsules) else inputs[0]
            before = pose.shape[1:-2]
            windows = module.field(*before)
            if type(windows) is ConvField:
                sizes = (windows.kernel, windows.stride, windows.padding)
                slide = Slide._make((size, size) for size in sizes)
            places.add(slide, before, output.pose.shape[1:3])
        if isinstance(output, Capsules) and output.pose.dim() == 5:
            places.maps.append(CapsuleMap(output, places.slides))

    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(module.register_forward_hook(record).remove)
        yield places
