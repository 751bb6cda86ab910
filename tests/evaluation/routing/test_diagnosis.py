import json
import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn

from checks import assert_equal
from torchcaps import create_model, data
from torchcaps.errors import ArgumentError
from torchcaps.evaluation import Starvation, diagnose
from torchcaps.models import matched_cnn
from torchcaps.models.notebook import parameter_count

from ..stubs import RoutedPixels, StubData, assert_model_is_back

OPTIONS = {
    "num_classes": 10,
    "in_chans": 1,
    "img_size": 28,
    "impl": "reference",
    "channels": 8,
    "primary_types": 2,
}
COUNT = 12


@pytest.fixture(scope="module")
def digits():
    return data.load_dataset("digits", "test")


@pytest.fixture(scope="module")
def capsnet():
    return create_model("capsnet", **OPTIONS)


@pytest.fixture(scope="module")
def of_capsnet(capsnet, digits):
    return diagnose(capsnet, digits, baseline=matched_cnn(capsnet), count=COUNT)


def random_data():
    images = torch.rand(40, 1, 6, 4, generator=torch.Generator().manual_seed(0))
    return StubData(images, torch.arange(40) % 3, ("a", "b", "c"))


def assert_names(diagnosis, names):
    """Every measure is of the routed layers, by name."""
    assert [layer.name for layer in diagnosis.layers] == names
    assert diagnosis.decay.layers == ("children", *names)
    assert list(diagnosis.iterations.entropy) == names
    assert all(map(math.isfinite, diagnosis.decay.median + diagnosis.decay.strongest))
    json.dumps(diagnosis.to_dict(), allow_nan=False)


def test_every_measure_of_vector_capsules(capsnet, of_capsnet):
    assert_names(of_capsnet, ["class_capsules"])
    [layer] = of_capsnet.layers
    assert of_capsnet.num_samples == COUNT
    assert of_capsnet.children.capsules == layer.starvation.capsules == 72
    assert of_capsnet.parameters == parameter_count(capsnet)
    assert of_capsnet.iterations.iterations == (1, 2, 3)
    assert layer.entropy.mean < 1
    assert layer.sign.blind  # nothing in this network has a bias


def test_planted_defects_are_found():
    """A child without a way on, a parent that never fires, and answers that need the routing."""
    model = RoutedPixels(6, 5, 3)
    data = random_data()
    with torch.no_grad():
        torch.nn.init.normal_(model.layers[0].weight, std=2.0)
        model.layers[0].weight[1] = 0
        model.layers[0].weight[:, 2] = 0
        data.labels = model(data.images).argmax(dim=1)
    diagnosis = diagnose(model, data, count=40)
    first, second = diagnosis.layers
    assert diagnosis.accuracy == diagnosis.ablation.routed == 1
    assert diagnosis.verdicts()["baseline"].startswith("No baseline was given")
    assert diagnosis.ablation.uniform < 1
    assert (first.starvation.starved, first.parents.dead) == pytest.approx((1 / 6, 1 / 5))
    assert (second.starvation.starved, second.parents.dead) == (0, 0)
    assert second.tree.possible == pytest.approx(class_entropy(data.labels))


def test_a_check_is_of_the_worst_layer(of_capsnet):
    first, second = (
        replace(of_capsnet.layers[0], name=name, starvation=Starvation(starved, 1.0, 9))
        for name, starved in (("below", 0.5), ("top", 0.0))
    )
    stack = replace(of_capsnet, layers=(first, second))
    checks = {check.question: check for check in stack.checks()}
    check = checks["Does the gradient reach the children?"]
    assert check == (False, check.question, "50% starved, below")
    assert check.mark == "✗"
    still, moving = (
        replace(layer, dynamics=replace(layer.dynamics, mean=mean, high=2 * mean))
        for layer, mean in ((first, 0.004), (second, 0.1))
    )
    question = "Do couplings follow the image?"
    for layers in ((still, moving), (moving, still)):
        checks = replace(of_capsnet, layers=layers).checks()
        assert (False, question, "they vary by 0.004 on average, below") in checks
    fed = replace(of_capsnet, layers=(second,)).checks()
    assert (True, check.question, "0% starved") in fed
    assert stack.table().rows[0][0] == "?"  # so few images do not decide


def class_entropy(labels):
    shares = labels.bincount().double() / len(labels)
    return -float((shares * shares.log2()).nansum())


def test_every_measure_of_matrix_capsules(digits):
    model = create_model("matrix_caps_small", **OPTIONS, types=(3, 4))
    diagnosis = diagnose(model, digits, count=COUNT)
    assert_names(diagnosis, ["conv_capsules.0", "conv_capsules.1", "class_capsules"])
    assert diagnosis.children.capsules == 144 * 2
    # The coordinates of the last layer tell signs apart.
    assert [layer.sign.blind for layer in diagnosis.layers] == [True, True, False]


def test_figures_agree_with_each_other(of_capsnet):
    [layer] = of_capsnet.layers
    iterations = of_capsnet.iterations
    assert of_capsnet.accuracy == of_capsnet.ablation.routed == iterations.accuracy[-1]
    assert iterations.accuracy[0] == of_capsnet.ablation.uniform
    assert iterations.entropy["class_capsules"][-1] == pytest.approx(layer.entropy.mean)
    strongest = (of_capsnet.children.strongest, layer.parents.strongest)
    assert of_capsnet.decay.strongest == strongest


def test_a_cnn_is_a_baseline_but_has_no_routing(capsnet, of_capsnet, digits):
    baseline = of_capsnet.baseline
    assert baseline.first == of_capsnet.accuracy
    assert baseline.num_samples == COUNT
    assert of_capsnet.baseline_parameters == pytest.approx(of_capsnet.parameters, rel=0.05)
    sentence = of_capsnet.verdicts()["baseline"]
    assert f"{of_capsnet.parameters:,} parameters against" in sentence
    with pytest.raises(
        ArgumentError, match="model: expected a capsule network with routed layers, got CNN"
    ):
        diagnose(matched_cnn(capsnet), digits, count=COUNT)


def test_the_model_is_left_as_it_was():
    model = RoutedPixels(6, 5, 3).train()
    weights = deepcopy(model.state_dict())
    first, second = model.layers
    routers = (first.router, second.router)
    diagnose(model, random_data(), count=8)
    assert_model_is_back(model)
    assert_equal(model.state_dict(), weights)
    assert first.router is routers[0]
    assert second.router is routers[1]


def test_a_seed_chooses_the_images():
    model = RoutedPixels(6, 3)
    diagnosis = diagnose(model, random_data(), count=8)
    assert diagnose(model, random_data(), count=8).to_dict() == diagnosis.to_dict()
    assert diagnose(model, random_data(), count=8, seed=1).decay != diagnosis.decay
    assert diagnose(model, random_data(), count=500).num_samples == 40


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (RoutedPixels(6, 3), {"count": 1}, "count: expected at least 2, got 1"),
        (nn.Flatten(), {}, "expected a capsule network with routed layers, got Flatten"),
        (RoutedPixels(6, 2), {}, "labels: expected between 0 and 1, got 2"),
    ],
)
def test_arguments_that_do_not_fit(model, options, message):
    with pytest.raises(ArgumentError, match=message):
        diagnose(model, random_data(), **options)
