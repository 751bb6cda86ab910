"""Capsules routed by variational Bayes, at other sizes than the published ones."""

import pytest
import torch

import torchcaps as tc
from torchcaps.data import ImageBatch
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.testing import check_module, seeded

TINY = {"channels": 8, "primary_types": 2, "types": (3, 4)}
SMALL = {"channels": 8, "primary_types": 2}


def images_of(model, batch=3):
    return torch.rand(batch, model.in_chans, *model.img_size, generator=seeded())


@pytest.mark.parametrize(
    ("num_classes", "in_chans", "img_size"), [(10, 1, 17), (3, 3, (20, 29)), (1, 1, 18)]
)
@pytest.mark.parametrize("name", ["vb_caps", "vb_caps_small"])
def test_any_size(name, num_classes, in_chans, img_size):
    options = TINY if name == "vb_caps" else SMALL
    model = tc.create_model(
        name, num_classes=num_classes, in_chans=in_chans, img_size=img_size, **options
    )
    capsules = model.capsules(images_of(model))
    assert capsules.pose.shape == (3, num_classes, 16)
    assert 0.01 < capsules.activation.mean() < 0.99  # starts neither dead nor saturated


def test_maps_and_coordinates_of_the_authors_code():
    model = tc.create_model("vb_caps", **TINY)
    with tc.record_routing(model) as record:
        model(images_of(model))
    shapes = {name: tuple(recorded.coupling.shape) for name, recorded in record.last().items()}
    assert shapes == {
        "conv_capsules.0": (3, 6, 6, 9 * 2, 3),
        "conv_capsules.1": (3, 4, 4, 9 * 3, 4),
        "class_capsules": (3, 4 * 4 * 4, 5),
    }
    centers = model.class_capsules.centers
    assert centers[:, 0, 0, 0, 3].tolist() == pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert centers[0, :, 0, 0, 7].tolist() == pytest.approx([0.025, 0.05, 0.075, 0.1])


@pytest.mark.parametrize(
    "options",
    [
        {"covariance": "full"},
        {"outlier": -25.33},
        {"weighted": True},
        {"iterations": 1},
        {"convolutions": 3},
        {"convention": "type"},
        {"standardized": True},
        {"types": ()},
    ],
)
def test_options_keep_every_property(options):
    model = tc.create_model("vb_caps", img_size=20, **TINY | options)
    model.train()(torch.rand(8, 2, 20, 20, generator=seeded(1)))  # means and variances of their own
    check_module(model, images_of(model))
    routers = [layer.router for layer in (*model.conv_capsules, model.class_capsules)]
    for name, value in options.items():
        if name in ("covariance", "outlier", "weighted", "iterations"):
            assert all(getattr(router, name) == value for router in routers)


def test_training_steps_lower_the_loss():
    torch.manual_seed(0)
    model = tc.create_model("vb_caps", num_classes=3, in_chans=1, img_size=18, iterations=2, **TINY)
    task = create_task(model, TrainConfig()).train()
    labels = torch.arange(24) % 3
    images = 0.2 * torch.rand(24, 1, 18, 18, generator=seeded())
    for image, label in zip(images, labels, strict=True):
        image[:, :, label * 6 : label * 6 + 6] += 0.7
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(16):
        optimizer.zero_grad()
        losses.append(task(ImageBatch(images, labels), 1.0)["loss"])
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]


def test_wrong_sizes():
    with pytest.raises(ValueError, match=r"types: expected 2 numbers or none, got \[3\]"):
        tc.create_model("vb_caps", types=(3,))
    with pytest.raises(ValueError, match="types: expected at least 1, got 0"):
        tc.create_model("vb_caps", types=(0, 3))
    with pytest.raises(ValueError, match="convolutions: expected at least 1, got 0"):
        tc.create_model("vb_caps", convolutions=0)
    with pytest.raises(
        ValueError, match="img_size: expected images of at least 17x17 pixels, got 16x16"
    ):
        tc.create_model("vb_caps", img_size=16)
