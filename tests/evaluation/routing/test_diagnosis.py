from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

from torchcaps import create_model, data
from torchcaps.evaluation import diagnose
from torchcaps.models import matched_cnn

from ..stubs import RoutedPixels, StubData

SIZES = {"num_classes": 10, "in_chans": 1, "img_size": 28, "impl": "reference"}
SMALL = {"channels": 8, "primary_types": 2}
NETWORKS = {
    "dynamic": ("capsnet", SMALL),
    "uniform": ("capsnet", SMALL | {"routing": "uniform"}),
    "matrix": ("matrix_caps_small", SMALL | {"types": (3, 4)}),
}
LAYERS = {"matrix": ["conv_capsules.0", "conv_capsules.1", "class_capsules"]}


@pytest.fixture(scope="module")
def digits() -> data.ImageSet:
    return data.load_dataset("digits", "test")


@pytest.mark.parametrize("name", NETWORKS)
def test_every_measure_of_every_kind_of_network(name: str, digits: data.ImageSet) -> None:
    kind, options = NETWORKS[name]
    model = create_model(kind, **SIZES, **options)
    found = diagnose(model, digits, count=12, batch_size=8)
    assert found.num_samples == 12
    names = [layer.name for layer in found.layers]
    assert names == LAYERS.get(name, ["class_capsules"])
    assert found.decay.layers == ("children", *names)
    assert list(found.iterations.entropy) == names
    assert (
        found.children.capsules
        == found.layers[0].starvation.capsules
        == (144 * 2 if name == "matrix" else 72)
    )
    assert found.parameters == sum(p.numel() for p in model.parameters())
    if name == "uniform":
        assert found.layers[0].entropy.mean == pytest.approx(1)
        assert found.ablation.changed == 0
        assert found.iterations.iterations == (1,)
    else:
        assert found.iterations.iterations == (1, 2, 3)
        assert found.layers[0].entropy.mean < 1
    # Nothing in these networks has a bias; the coordinates of the last matrix layer tell signs apart.
    blind = [layer.sign.blind for layer in found.layers]
    assert blind == ([True, True, False] if name == "matrix" else [True])
    assert all(math.isfinite(value) for value in (*found.decay.median, *found.decay.strongest))
    json.dumps(found.to_dict(), allow_nan=False)


def test_figures_agree_with_each_other(digits: data.ImageSet) -> None:
    kind, options = NETWORKS["dynamic"]
    found = diagnose(create_model(kind, **SIZES, **options), digits, count=12)
    assert found.accuracy == found.ablation.routed == found.iterations.accuracy[-1]
    assert found.iterations.accuracy[0] == found.ablation.uniform
    assert found.iterations.entropy["class_capsules"][-1] == pytest.approx(
        found.layers[0].entropy.mean
    )
    assert found.decay.strongest == (found.children.strongest, found.layers[0].parents.strongest)


def test_a_cnn_is_a_baseline_but_has_no_routing(digits: data.ImageSet) -> None:
    kind, options = NETWORKS["dynamic"]
    model = create_model(kind, **SIZES, **options)
    cnn = matched_cnn(model)
    found = diagnose(model, digits, baseline=cnn, count=12)
    assert found.baseline is not None
    assert found.baseline.first == found.accuracy
    assert found.baseline.num_samples == 12
    assert found.baseline_parameters == pytest.approx(found.parameters, rel=0.05)
    assert f"{found.parameters:,} parameters against" in found.verdicts()["baseline"]
    with pytest.raises(
        ValueError, match="model: expected a capsule network with routed layers, got CNN"
    ):
        diagnose(cnn, digits, count=12)


def test_without_a_baseline_this_is_said() -> None:
    found = diagnose(RoutedPixels(6, 3), _data(), count=8)
    assert found.baseline is None
    assert found.verdicts()["baseline"].startswith("No baseline was given")
    assert found.to_dict()["baseline"] is None


def test_the_model_is_left_as_it_was() -> None:
    model = RoutedPixels(6, 5, 3).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    routers = [layer.router for layer in model.layers]
    diagnose(model, _data(), count=8)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(layer.router is router for layer, router in zip(model.layers, routers, strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_a_seed_chooses_the_images() -> None:
    model, data = RoutedPixels(6, 3), _data()
    assert diagnose(model, data, count=8).to_dict() == diagnose(model, data, count=8).to_dict()
    assert diagnose(model, data, count=8).decay != diagnose(model, data, count=8, seed=1).decay
    assert diagnose(model, data, count=500).num_samples == 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 1}, "count: expected at least 2, got 1"),
        ({"model": nn.Flatten()}, "expected a capsule network with routed layers, got Flatten"),
        ({"model": RoutedPixels(6, 2)}, "labels: expected class indices from 0 to 1, got 2"),
        (
            {"dataset": StubData(torch.rand(3, 1, 6, 4), torch.zeros(3, 2).long(), ("a", "b"))},
            r"labels: expected \[n\]",
        ),
    ],
)
def test_arguments_that_do_not_fit(options, message: str) -> None:
    given = {"model": RoutedPixels(6, 3), "dataset": _data()} | options
    with pytest.raises(ValueError, match=message):
        diagnose(**given)


def _data() -> StubData:
    images = torch.rand(40, 1, 6, 4, generator=torch.Generator().manual_seed(0))
    return StubData(images, torch.arange(40) % 3, ("a", "b", "c"))
