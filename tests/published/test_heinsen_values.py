"""Heinsen's routings equal the author's code: golden/heinsen_*.npz."""

import pytest

import torchcaps as tc
from published.golden_file import GoldenFile, carry_over, difference, renamed
from torchcaps.nn import RoutedLayer
from torchcaps.nn.votes import FactorizedVotes
from torchcaps.types import Capsules, LayerSizes

VOTES = {"W_F1": "votes.factor", "W_F2": "votes.mix", "B_F2": "votes.offset"}


def layer_name(name):
    """Our name of a weight of `EfficientVectorRouting`."""
    name = name.replace("beta_ign", "beta_ignore").removeprefix("compute_")
    return VOTES.get(name, "router." + name)


@pytest.mark.parametrize(("name", "children"), [("fixed", 7), ("any", 1)])
def test_layer_of_2022(name, children):
    golden = GoldenFile(f"heinsen_2022_{name}")
    votes = FactorizedVotes(LayerSizes(children, 6, 5, 4))
    layer = RoutedLayer(votes, "heinsen_2022", iterations=3)
    carry_over(layer, {layer_name(name): tensor for name, tensor in golden.weights.items()})

    x = golden.inputs["vectors"]
    y = layer(Capsules(x, x.new_ones(x.shape[:-1]))).pose
    assert difference(y, golden.outputs["y"]) < 1e-12
    y[:, 0, 0].sum().backward()
    parameters = dict(layer.named_parameters())
    for name, expected in golden.gradients.items():
        assert difference(parameters[layer_name(name)].grad, expected) < 1e-12


def network_weights(golden):
    """Weights of the network of 2019 by our names."""
    weights = renamed(golden, "convolve.", "convolutions.")
    weights |= renamed(golden, "compute_a.", "score.") | renamed(golden, "compute_mu.", "pose.")
    for source, target in (("routings.0.", "part_capsules."), ("routings.1.", "class_capsules.")):
        layer = golden.of(source)
        weights[target + "votes.weight"] = layer["W"]
        weights[target + "router.B"] = layer["B"].flatten(2)
        weights[target + "router.beta_use"] = layer["beta_use"]
        weights[target + "router.beta_ignore"] = layer["beta_ign"]
    return weights


def test_network_of_2019():
    golden = GoldenFile("heinsen_2019")
    model = tc.create_model("heinsen_2019", channels=8, parts=6, img_size=48)
    carry_over(model, network_weights(golden))
    capsules = model.capsules(golden.inputs["images"])
    logits = capsules.activation.logit()
    assert difference(logits, golden.outputs["logits"]) < 1e-12
    assert difference(capsules.pose, golden.outputs["pose"].flatten(2)) < 1e-12

    logits[:, 0].sum().backward()
    gradient = model.convolutions[1].weight.grad
    assert difference(gradient, golden.gradients["convolve.1.weight"]) < 1e-12
    gradient = model.class_capsules.votes.weight.grad
    assert difference(gradient, golden.gradients["routings.1.W"]) < 1e-12
