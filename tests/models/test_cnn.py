"""The papers' convolutional baselines, and CNNs of a capsule network's size."""

import numpy as np
import pytest
import torch

import torchcaps as tc
from torchcaps.data import Batch, Dataset
from torchcaps.evaluation import perturb
from torchcaps.models import CNN, matched_cnn
from torchcaps.models.notebook import parameter_count
from torchcaps.reporting import evaluate
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Multilabel, create_task
from torchcaps.testing import check_module, seeded
from torchcaps.training import load, train

SMALL = {
    "channels": (4, 6),
    "kernels": (5, 3),
    "pool": True,
    "hidden": (10, 8),
}
CAPSNET = {"channels": 8, "primary_types": 2}


def small_cnn(**options):
    return CNN(3, 1, 12, **SMALL | options)


def sample_images(count=3):
    return torch.rand(count, 1, 12, 12, generator=seeded())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"multilabel": True},
        {"pool": False},
    ],
)
def test_small_ones_keep_every_property_of_models(options):
    check_module(small_cnn(**options), sample_images())


def test_probabilities_sum_to_one():
    model = small_cnn().eval()
    probabilities = model(sample_images())
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(3))
    torch.testing.assert_close(probabilities, model.logits(sample_images()).softmax(dim=1))


def test_probabilities_of_several_classes_are_sigmoids():
    model = small_cnn(multilabel=True).eval()
    torch.testing.assert_close(model(sample_images()), model.logits(sample_images()).sigmoid())


def test_dropout_in_training_alone():
    model = small_cnn(dropout=0.5)
    assert not torch.equal(model.logits(sample_images()), model.logits(sample_images()))
    model.eval()
    assert torch.equal(model.logits(sample_images()), model.logits(sample_images()))


@pytest.mark.parametrize(
    ("num_classes", "in_chans", "img_size"),
    [
        (1, 1, 4),
        (43, 3, (9, 30)),
        (5, 2, 33),
    ],
)
def test_any_size(num_classes, in_chans, img_size):
    model = CNN(num_classes, in_chans, img_size, **SMALL)
    assert model(torch.rand(2, *model.image_shape)).shape == (2, num_classes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": (4, 0)}, "channels: expected at least 1, got 0"),
        ({"kernels": (4, 3)}, "kernels: expected odd sizes, got 4, 3"),
        ({"kernels": (5,)}, "kernels: expected one for each of 2 convolutions, got 1"),
        ({"dropout": 1.0}, "dropout: expected between 0.0 and 0.99, got 1.0"),
        (
            {"channels": (1,) * 4, "kernels": (3,) * 4},
            "img_size: expected images of at least 16x16",
        ),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        small_cnn(**options)


def test_a_cnn_has_no_capsules():
    model = small_cnn()
    with pytest.raises(ValueError, match="capsules: expected a capsule network; this is a CNN"):
        model.capsules(sample_images())
    with pytest.raises(ValueError, match="reconstruct: .* no decoder"):
        model.reconstruct(None)
    with pytest.raises(ValueError, match="model: expected one with class capsules"):
        perturb(model, sample_images())
    with pytest.raises(ValueError, match="record_routing: CNN has no routed layer"):
        tc.record_routing(model).__enter__()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("capsnet", {}),
        ("matrix_caps", {"num_classes": 10}),
        ("capsnet", CAPSNET | {"num_classes": 3, "img_size": (18, 20)}),
    ],
)
def test_a_matched_cnn_has_the_parameters_and_sizes_of_the_model(name, options):
    capsules = tc.create_model(name, **options)
    cnn = matched_cnn(capsules)
    assert parameter_count(cnn) == pytest.approx(parameter_count(capsules), rel=0.05)
    assert cnn.num_classes == capsules.num_classes
    assert cnn.image_shape == capsules.image_shape


def test_matching_leaves_the_random_numbers_as_they_were():
    torch.manual_seed(3)
    cnn = tc.create_model("cnn_matched", **CAPSNET)
    torch.manual_seed(3)
    expected = CNN(
        channels=(cnn.convolutions[0].out_channels, cnn.convolutions[3].out_channels),
        kernels=(5, 5),
        pool=True,
        hidden=(cnn.hidden[0].out_features,),
    )
    for parameter, expected_parameter in zip(cnn.parameters(), expected.parameters(), strict=True):
        assert torch.equal(parameter, expected_parameter)


def test_the_registered_one_names_the_model_that_it_matches():
    options = CAPSNET | {"img_size": 20, "types": (2, 2)}
    cnn = tc.create_model("cnn_matched", match="matrix_caps_small", **options)
    capsules = tc.create_model("matrix_caps_small", num_classes=10, in_chans=1, **options)
    assert parameter_count(cnn) == pytest.approx(parameter_count(capsules), rel=0.05)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"match": "capsnt"}, ValueError, "unknown model 'capsnt'; did you mean 'capsnet'"),
        ({"match": "cnn_matched"}, ValueError, "model: expected a capsule network, got 'cnn_m"),
        ({"match": "resnet20"}, ValueError, "model: expected a capsule network, got a CNN"),
        ({"chanels": 3}, TypeError, "chanels"),
    ],
)
def test_models_that_cannot_be_matched(options, error, message):
    with pytest.raises(error, match=message):
        tc.create_model("cnn_matched", **options)


def test_too_small_to_be_matched():
    smallest = torch.nn.Linear(2, 2)
    smallest.num_classes = 10
    smallest.in_chans = 1
    smallest.img_size = (28, 28)
    message = "model: no CNN has about as many parameters as this one, 6; the nearest has"
    with pytest.raises(ValueError, match=message):
        matched_cnn(smallest)


def test_one_class_is_learned_by_cross_entropy():
    model = small_cnn(dropout=0.0)
    labels = torch.tensor([2, 0, 1])
    task = create_task(model, TrainConfig())
    assert (task.name, task.loss) == ("classify", "cross_entropy")
    outputs = task.training_step(
        Batch(sample_images(), {"label": labels}, torch.arange(len(labels))), 0.0
    )
    probabilities = model(sample_images())
    torch.testing.assert_close(outputs["activation"], probabilities)
    expected = -probabilities[torch.arange(3), labels].log().mean()
    torch.testing.assert_close(outputs["loss"], expected)
    assert outputs["cross_entropy"] == outputs["loss"]
    assert "reconstruction" not in outputs


def test_several_classes_are_learned_one_by_one():
    model = small_cnn(dropout=0.0, multilabel=True)
    targets = torch.tensor([[1, 1, 0], [0, 1, 1]])
    p = model(sample_images(2))
    log_likelihood = targets * p.log() + (1 - targets) * (1 - p).log()
    expected = -log_likelihood.sum(dim=1).mean()
    task = Multilabel(model, TrainConfig())
    batch = Batch(sample_images(2), {"labels": targets}, torch.arange(2))
    outputs = task.training_step(batch, 0.0)
    torch.testing.assert_close(outputs["loss"], expected)


def test_a_cross_entropy_needs_logits():
    model = tc.create_model("capsnet", **CAPSNET)
    task = create_task(model, TrainConfig.of(loss="cross_entropy"))
    batch = Batch(
        torch.rand(2, 1, 28, 28),
        {"label": torch.tensor([0, 1])},
        torch.arange(len(torch.tensor([0, 1]))),
    )
    message = "loss: cross_entropy needs a model with logits, and this one has none"
    with pytest.raises(ValueError, match=message):
        task.training_step(batch, 0.0)


def test_a_reconstruction_needs_a_decoder():
    message = "reconstruction: expected 0 for a model without a decoder, got 1"
    with pytest.raises(ValueError, match=message):
        create_task(small_cnn(), TrainConfig.of(loss="margin", reconstruction=1.0))


def test_a_run_is_read_back_and_evaluated_like_that_of_any_model(tmp_path):
    labels = np.arange(60) % 3
    images = np.random.default_rng(0).integers(0, 40, (60, 18, 20), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[:, label * 6 : label * 6 + 6] += 180
    np.savez(tmp_path / "bars.npz", images=images, labels=labels)
    config = TrainConfig.of(
        model="cnn_matched",
        model_options=CAPSNET,
        data=str(tmp_path / "bars.npz"),
        epochs=2,
        batch_size=16,
        holdout=6,
        shift=1,
        device="cpu",
    )
    model = load(train(config, tmp_path / "run").path)
    assert isinstance(model, CNN)
    assert not model.training
    pixels = torch.from_numpy(images).unsqueeze(1)
    evaluation = evaluate(
        model, Dataset(pixels, {"label": torch.from_numpy(labels)}, ("0", "1", "2"), "bars")
    )
    assert evaluation.accuracy > 0.9
    torch.testing.assert_close(evaluation.activations.sum(dim=1), torch.ones(60))
