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

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_shape
from torchcaps.evaluation.base import Images, Labels, check_images, check_labels
from torchcaps.evaluation.forward import batches, evaluating
from torchcaps.evaluation.routing.layers import children_of, routed_layers
from torchcaps.evaluation.routing.places import places_of
from torchcaps.functional.geometry import Slide
from torchcaps.nn import RoutedLayer, RoutingTrace, record_routing
from torchcaps.types import Capsules

BATCH = 16  # images at a time: the votes for one parent are stored


@dataclass(frozen=True, eq=False)
class CouplingMaps:
    """The support of one class capsule of each image, by place."""

    maps: Float[
        Tensor, "n height width"
    ]  # over pixels; negative where votes point away from the class
    positions: Float[
        Tensor, "n rows columns"
    ]  # over the positions of the first capsules, with the same sum
    shown: Labels  # `[n]` int64, the class whose support it is
    activations: Float[Tensor, "n classes"]  # `[n, classes]` of the class capsules, in [0, 1]


def coupling_maps(
    model: nn.Module, images: Images, labels: Labels | None = None, *, batch_size: int = BATCH
) -> CouplingMaps:
    """Where the votes for the winning class of each image come from, or for the classes given.

    The last routed layer makes the class capsules, from capsules that have places, perhaps with routed layers between:
    then the support of a parent is handed down to its children by their shares in it. Raises ValueError for a model
    whose capsules have no places, or whose layers are of other kinds; or arguments that do not fit."""
    check_images(images)
    if labels is not None:
        check_shape("labels", labels, ("n",), n=len(images))
    with evaluating(model):
        parts = [
            _of_batch(model, batch, None if labels is None else chosen)
            for batch, chosen in batches(model, images, labels, batch_size=batch_size)
        ]
    return CouplingMaps(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def _of_batch(
    model: nn.Module, images: Tensor, labels: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    layers = routed_layers(model)
    with record_routing(model) as record, children_of(model) as children, places_of(model) as seen:
        activation = model(images).float()
    names = [name for name in layers if name in children and record[name]]
    if labels is None:
        labels = activation.argmax(dim=1)
    check_labels(labels, activation.shape[1])
    shown = labels.to(activation.device)
    top, recorded = names[-1], record.last()
    support = _class_support(layers[top], children[top], recorded[top], shown)
    own = seen.map_of(children[top])
    if own is None:
        raise ArgumentError(
            "model",
            f"expected the children of {top!r} to be capsules with places, position after position",
        )
    below = support.unflatten(1, own.capsules.pose.shape[1:4])
    for name in reversed(names[:-1]):
        below = _handed_down(layers[name], below, children[name], recorded[name])
    first = seen.map_of(children[names[0]])
    positions = below.sum(dim=-1)
    maps = _over_pixels(
        positions, None if first is None else first.slides, (images.shape[2], images.shape[3])
    )
    return maps.cpu(), positions.cpu(), shown.cpu(), activation.cpu()


def _class_support(
    layer: RoutedLayer, children: Capsules, recorded: RoutingTrace, shown: Tensor
) -> Tensor:
    """`[batch, children]`: the support of each child for the class shown."""
    if recorded.coupling.dim() != 3:
        raise ArgumentError(
            "model",
            f"expected class capsules without places at its end, got {type(layer).__name__}",
        )
    votes = layer.make_votes(children)
    each = torch.arange(len(shown), device=shown.device)
    towards = votes.dense().float()[each, :, shown]
    coupling, parent = recorded.coupling[each, :, shown].float(), recorded.pose[each, shown].float()
    along = torch.einsum("bik,bk->bi", towards, F.normalize(parent, dim=-1))
    if layer.router.activation != "probability":  # the votes carry the activation
        return coupling * along
    return coupling * votes.activation.float() * along / towards.norm(dim=-1).clamp(min=1e-12)


def _handed_down(
    layer: RoutedLayer, support: Tensor, children: Capsules, recorded: RoutingTrace
) -> Tensor:
    """`[batch, *space, types]` from the support of the parents `[batch, *positions, parents]`."""
    weight = recorded.coupling.float() * recorded.child_activation.float().unsqueeze(-1)
    shares = weight / weight.sum(dim=-2, keepdim=True).clamp(min=1e-12)
    return layer.make_votes(children).field.scatter((shares * support.unsqueeze(-2)).sum(dim=-1))


def _over_pixels(
    positions: Tensor, slides: tuple[Slide, ...] | None, size: tuple[int, int]
) -> Tensor:
    """Each position's value over the pixels that it sees; bilinear where the convolutions are no simple chain."""
    x = positions.unsqueeze(1)
    if slides is None:
        stretched = F.interpolate(x, size, mode="bilinear", align_corners=False)
        ratio = positions[0].numel() / (size[0] * size[1])
        return (stretched * ratio)[:, 0]
    for kernel, stride, padding in reversed(slides):
        down, right = (_window(k, s).to(x) for k, s in zip(kernel, stride, strict=True))
        x = F.conv_transpose2d(
            x, torch.outer(down, right)[None, None], stride=stride, padding=padding
        )
    # What a stride leaves over at the lower and right edges nobody sees.
    return F.pad(x, (0, size[1] - x.shape[3], 0, size[0] - x.shape[2]))[:, 0]


def _window(kernel: int, stride: int) -> Tensor:
    """`[kernel]`, of sum one: copies `stride` apart sum to a constant, where a plain box would leave a comb."""
    step = min(stride, kernel)
    ramp = torch.arange(1, kernel + 1)
    weight = torch.minimum(ramp, ramp.flip(0)).clamp(max=min(step, kernel - step + 1)).float()
    return weight / weight.sum()
