"""The votes of one image for its classes, with their couplings after each iteration."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_shape
from torchcaps.evaluation.base import check_images
from torchcaps.evaluation.forward import device_of, evaluating
from torchcaps.evaluation.routing.layers import children_of, routed_layers, swapped_routers
from torchcaps.functional.squash import full_precision
from torchcaps.functional.votes import straightness
from torchcaps.nn import Router, record_routing


@dataclass(frozen=True, eq=False)
class VotePaths:
    """The last routed layer, for one image; the layers before it route as they were trained.

    Attributes:
        votes: u_ij, `[children, parents, dim]`.
        coupling: c_ij after each iteration, `[iterations, children, parents]`; where activations
            depend on the spread of votes, times the activations of the children.
        activation: of the parents after each iteration, `[iterations, parents]`, in [0, 1].
        agreement: whether activations depend on the spread of votes, as in EM routing; then a
            parent is a Gaussian, and not a sum of votes.
    """

    votes: Float[Tensor, "children parents dim"]
    coupling: Float[Tensor, "iterations children parents"]
    activation: Float[Tensor, "iterations parents"]
    agreement: bool

    @property
    def straightness(self) -> Float[Tensor, "iterations parents"]:
        """How far the votes for each parent agree; see `functional.straightness`."""
        votes = self.votes.expand(len(self.coupling), -1, -1, -1)
        return straightness(self.coupling, votes)


def vote_paths(model: nn.Module, image: Float[Tensor, "channels height width"]) -> VotePaths:
    """Run a model with 1, 2, ... iterations in its last routed layer.

    Args:
        model: a model whose last routed layer has parents in one position, such as class capsules.
        image: `[channels, height, width]` in [0, 1].

    Returns:
        Votes, couplings and activations, on the CPU.

    Raises:
        ArgumentError: for a model without routed layers, whose last one has a map of parents, or
            whose router gives no couplings over votes; or an image that does not fit.
    """
    check_shape("image", image, ("channels", "height", "width"))
    images = image.unsqueeze(0)
    check_images(images)
    name, layer = list(routed_layers(model).items())[-1]
    router = layer.router
    couplings = []
    activations = []
    with evaluating(model), children_of(model) as children:
        for count in range(1, router.num_iterations + 1):

            def change(each: Router, count: int = count) -> Router:
                return each.with_iterations(count) if each is router else each

            with swapped_routers(model, change), record_routing(model) as record:
                model(images.to(device_of(model)))
            trace = record.last().get(name)
            coupling = None if trace is None else full_precision(trace.coupling)
            if trace is None or coupling is None or coupling.dim() != 3:
                problem = "expected class capsules in one position, with couplings over votes"
                raise ArgumentError("model", f"{problem}, got {type(layer).__name__} {name!r}")
            if router.agreement:
                coupling = coupling * trace.child_activation.unsqueeze(-1)
            couplings.append(coupling)
            activations.append(trace.activation)
        votes = full_precision(layer.make_votes(children[name]).dense())
    return VotePaths(
        votes[0].cpu(),
        torch.cat(couplings).cpu(),
        full_precision(torch.cat(activations)).cpu(),
        router.agreement,
    )
