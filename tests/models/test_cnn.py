"""The papers' convolutional baselines, and CNNs of a capsule network's size."""

import numpy as np
import pytest
import torch

import torchcaps as tc
from torchcaps.data import ImageBatch, ImageSet
from torchcaps.evaluation import perturb
from torchcaps.models import CNN, matched_cnn
from torchcaps.models.notebook import parameter_count
from torchcaps.reporting import evaluate
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Multilabel, create_task
from torchcaps.testing import check_module, seeded
from torchcaps.training import load, train

TINY = {"channels": 8, "primary_types": 2}


def tiny(**options):
    return CNN(
        3,
        1,
        12,
        **({"channels": (4, 6), "kernels": (5, 3), "pool": True, "hidden": (10, 8)} | options),
    )


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("pool", [False, True])
def test_small_ones_keep_every_property_of_models(multilabel, pool):
    check_module(
        tiny(multilabel=multilabel, pool=pool), torch.rand(3, 1, 12, 12, generator=seeded())
    )


def test_probabilities_sum_to_one_unless_there_may_be_several_classes():
    images = torch.rand(4, 1, 12, 12, generator=seeded())
    one, multilabel = tiny().eval(), tiny(multilabel=True).eval()
    torch.testing.assert_close(one(images).sum(dim=1), torch.ones(4))
    torch.testing.assert_close(one(images), one.logits(images).softmax(dim=1))
    torch.testing.assert_close(multilabel(images), multilabel.logits(images).sigmoid())


def test_dropout_in_training_alone():
    model, images = tiny(dropout=0.5), torch.rand(4, 1, 12, 12, generator=seeded())
    assert not torch.equal(model.logits(images), model.logits(images))
    model.eval()
    assert torch.equal(model.logits(images), model.logits(images))


@pytest.mark.parametrize(
    ("num_classes", "in_chans", "img_size"), [(1, 1, 4), (43, 3, (9, 30)), (5, 2, 33)]
)
def test_any_size(num_classes, in_chans, img_size):
    model = CNN(
        num_classes, in_chans, img_size, channels=(4, 4), kernels=(5, 5), pool=True, hidden=(8,)
    )
    height, width = model.img_size
    assert model(torch.rand(2, in_chans, height, width, generator=seeded())).shape == (
        2,
        num_classes,
    )


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"channels": (4, 0)}, "channels: expected at least 1, got 0"),
        ({"kernels": (4, 3)}, "kernels: expected odd sizes, got 4, 3"),
        ({"kernels": (5,)}, "kernels: expected one for each of 2 convolutions, got 1"),
        ({"dropout": 1.0}, "dropout: expected between 0.0 and 0.99, got 1.0"),
        (
            {"channels": (1,) * 4, "kernels": (3,) * 4},
            "img_size: expected images of at least 16x16 pixels, got 12x12",
        ),
    ],
)
def test_wrong_options(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        tiny(**options)


def test_what_only_capsules_have():
    model, images = tiny(), torch.rand(2, 1, 12, 12)
    with pytest.raises(ValueError, match="capsules: expected a capsule network; this is a CNN"):
        model.capsules(images)
    with pytest.raises(ValueError, match="reconstruct: .* no decoder"):
        model.reconstruct(None)
    with pytest.raises(ValueError, match="model: expected one with class capsules"):
        perturb(model, images)
    with (
        pytest.raises(ValueError, match="record_routing: CNN has no routed layer"),
        tc.record_routing(model),
    ):
        pass
    with pytest.raises(
        ValueError, match=r"images: expected \[batch, channels=1, height=12, width=12\], got"
    ):
        model(torch.rand(2, 3, 12, 12))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("capsnet", {}),
        ("matrix_caps", {"num_classes": 10}),
        ("capsnet", TINY | {"num_classes": 3, "img_size": (18, 20)}),
    ],
)
def test_matched_in_parameters_and_sizes(name, options):
    capsules = tc.create_model(name, **options)
    cnn = matched_cnn(capsules)
    assert parameter_count(cnn) == pytest.approx(parameter_count(capsules), rel=0.05)
    assert cnn.num_classes == capsules.num_classes
    assert (cnn.in_chans, cnn.img_size) == (capsules.in_chans, capsules.img_size)


def test_matching_leaves_the_random_numbers_as_they_were():
    torch.manual_seed(3)
    cnn = tc.create_model("cnn_matched", **TINY)
    torch.manual_seed(3)
    expected = CNN(
        channels=(cnn.convolutions[0].out_channels, cnn.convolutions[3].out_channels),
        kernels=(5, 5),
        pool=True,
        hidden=(cnn.hidden[0].out_features,),
    )
    for found, truth in zip(cnn.parameters(), expected.parameters(), strict=True):
        assert torch.equal(found, truth)


def test_the_registered_one_names_what_it_matches():
    found = tc.create_model(
        "cnn_matched", match="matrix_caps_small", img_size=20, types=(2, 2), **TINY
    )
    capsules = tc.create_model(
        "matrix_caps_small", img_size=20, types=(2, 2), num_classes=10, in_chans=1, **TINY
    )
    assert parameter_count(found) == pytest.approx(parameter_count(capsules), rel=0.05)
    with pytest.raises(ValueError, match="unknown model 'capsnt'; did you mean 'capsnet'"):
        tc.create_model("cnn_matched", match="capsnt")
    with pytest.raises(ValueError, match="model: expected a capsule network, got 'cnn_matched'"):
        tc.create_model("cnn_matched", match="cnn_matched")
    with pytest.raises(ValueError, match="model: expected a capsule network, got a CNN"):
        matched_cnn(tiny())
    with pytest.raises(TypeError, match="chanels"):
        tc.create_model("cnn_matched", chanels=3)


def test_too_small_to_be_matched():
    smallest = torch.nn.Linear(2, 2)
    smallest.num_classes, smallest.in_chans, smallest.img_size = 10, 1, (28, 28)
    with pytest.raises(
        ValueError,
        match="model: no CNN has about as many parameters as this one, 6; the nearest has",
    ):
        matched_cnn(smallest)


def test_one_class_is_learned_by_cross_entropy():
    model, images = tiny(dropout=0.0), torch.rand(3, 1, 12, 12, generator=seeded())
    task = create_task(model, TrainConfig())
    assert (task.name, task.loss) == ("classify", "cross_entropy")
    found = task(ImageBatch(images, torch.tensor([2, 0, 1])), 0.0)
    right = model(images)[torch.arange(3), torch.tensor([2, 0, 1])]
    torch.testing.assert_close(found["loss"], -right.log().mean())
    torch.testing.assert_close(found["activation"], model(images))
    assert found["cross_entropy"] == found["loss"]
    assert "reconstruction" not in found


def test_several_classes_are_learned_one_by_one():
    model, images = tiny(dropout=0.0, multilabel=True), torch.rand(2, 1, 12, 12, generator=seeded())
    shown, two_hot = torch.tensor([[0, 1], [1, 2]]), torch.tensor([[1, 1, 0], [0, 1, 1]])
    p = model(images)
    expected = -(two_hot * p.log() + (1 - two_hot) * (1 - p).log()).sum(dim=1).mean()
    found = Multilabel(model, TrainConfig())(ImageBatch(images, shown), 0.0)
    torch.testing.assert_close(found["loss"], expected)


def test_losses_and_models_that_do_not_fit():
    images, labels = torch.rand(2, 1, 28, 28), torch.tensor([0, 1])
    capsnet = create_task(tc.create_model("capsnet", **TINY), TrainConfig.of(loss="cross_entropy"))
    with pytest.raises(
        ValueError, match="loss: cross_entropy needs a model with logits, and this one has none"
    ):
        capsnet(ImageBatch(images, labels), 0.0)
    with pytest.raises(
        ValueError, match="reconstruction: expected 0 for a model without a decoder, got 1"
    ):
        create_task(tiny(), TrainConfig.of(loss="margin", reconstruction=1.0))


def test_it_trains_and_is_read_back_and_judged_like_any_model(tmp_path):
    random = np.random.default_rng(0)
    labels = np.arange(60) % 3
    images = random.integers(0, 40, (60, 18, 20), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[:, label * 6 : label * 6 + 6] += 180
    np.savez(tmp_path / "bars.npz", images=images, labels=labels)
    config = TrainConfig.of(
        model="cnn_matched",
        model_options=TINY,
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
    known = ImageSet(
        torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels), ("0", "1", "2"), "bars"
    )
    found = evaluate(model, known)
    assert found.accuracy > 0.9
    torch.testing.assert_close(found.activations.sum(dim=1), torch.ones(60))
