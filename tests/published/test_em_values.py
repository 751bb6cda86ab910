"""EM routing equals the layers of IBM's code: golden/em_ibm.npz."""

import torch

import torchcaps.functional.routing.em as em_routing
from published.golden_file import GoldenFile, carry_over, difference
from torchcaps.nn import ClassCaps, ConvCaps
from torchcaps.types import Capsules

ITERATIONS = 3
LIMIT = 0.01  # of the inverse temperature
NORM_FACTOR = 100  # their costs are those of 100 children a parent
CENTERS = [(k + 0.5) / 3 for k in range(3)]


def options_for(children, parents):
    """Theirs multiply costs by 100 parents / children: as an inverse temperature, times that."""
    factor = NORM_FACTOR * parents / children
    return factor, {"iterations": ITERATIONS, "inverse_temperature": LIMIT * factor}


def weights_of(golden, name, vote, factor):
    """Weights of a layer by our names: `beta_a` is stored as lambda * beta_a."""
    last = LIMIT * (1 - 0.95**ITERATIONS)
    return {
        "votes.weight": golden.weights[f"{name}/{vote}/w"][0],
        "router.beta_u": golden.weights[f"{name}/routing/beta_v"].flatten(),
        "router.beta_a": last * golden.weights[f"{name}/routing/beta_a"].flatten(),
    }


def test_layers(monkeypatch):
    """With their floors, 1e-9 of variances and none of sums, in place of ours."""
    monkeypatch.setattr(em_routing, "EPSILON", 0.0)
    monkeypatch.setattr(em_routing, "VAR_MIN", 1e-9)
    golden = GoldenFile("em_ibm")
    factor, options = options_for(18, 3)
    convolution = ConvCaps(2, 3, 3, 1, impl="reference", **options)
    carry_over(convolution, weights_of(golden, "conv_caps", "votes", factor))
    factor, options = options_for(27, 4)
    classes = ClassCaps(
        3, 4, centers=(CENTERS, CENTERS), indices=(7, 3), impl="reference", **options
    )
    carry_over(classes, weights_of(golden, "class_caps", "v", factor))

    # Coordinates in double precision.
    places = classes.votes.places
    for axis, index in ((0, 7), (1, 3)):
        shape = [-1 if k == axis else 1 for k in range(2)]
        places[..., index] = torch.tensor(CENTERS, dtype=places.dtype).view(shape)

    children = Capsules(golden.inputs["pose"], golden.inputs["activation"][..., 0])
    parents = convolution(children)
    assert difference(parents.pose, golden.outputs["conv/pose"]) < 1e-13
    assert difference(parents.activation, golden.outputs["conv/activation"][..., 0]) < 1e-13
    pose, activation = classes(parents)
    assert difference(pose, golden.outputs["class/pose"]) < 1e-13
    assert difference(activation, golden.outputs["class/activation"]) < 1e-13
    activation[:, 0].sum().backward()
    gradient = convolution.votes.weight.grad
    assert difference(gradient, golden.gradients["conv_caps/votes/w"][0]) < 1e-12
