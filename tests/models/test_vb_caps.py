"""Capsules routed by variational Bayes, at other sizes than the published ones."""

import pytest
import torch

import torchcaps as tc
from torchcaps.data import Batch
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.testing import check_module, seeded

SMALL = {
    "channels": 8,
    "primary_types": 2,
    "types": (3, 4),
}
ROUTING_OPTIONS = {
    "covariance": "full",
    "outlier": -25.33,
    "weighted": True,
    "iterations": 1,
}


def make_model(**options):
    return tc.create_model("vb_caps", **SMALL | options)


def sample_images(model):
    return torch.rand(3, *model.image_shape, generator=seeded())


@pytest.mark.parametrize(
    ("num_classes", "in_chans", "img_size"),
    [
        (10, 1, 17),
        (3, 3, (20, 29)),
        (1, 1, 18),
    ],
)
@pytest.mark.parametrize(
    "types",
    [
        (3, 4),
        (),
    ],
)
def test_any_size(types, num_classes, in_chans, img_size):
    model = make_model(types=types, num_classes=num_classes, in_chans=in_chans, img_size=img_size)
    capsules = model.capsules(sample_images(model))
    assert capsules.pose.shape == (3, num_classes, 16)
    assert 0.01 < capsules.activation.mean() < 0.99  # starts neither dead nor saturated


def test_maps_of_the_authors_code():
    model = make_model()
    with tc.record_routing(model) as record:
        model(sample_images(model))
    recorded = record.last()
    assert recorded["conv_capsules.0"].coupling.shape == (3, 6, 6, 9 * 2, 3)
    assert recorded["conv_capsules.1"].coupling.shape == (3, 4, 4, 9 * 3, 4)
    assert recorded["class_capsules"].coupling.shape == (3, 4 * 4 * 4, 5)


def test_coordinates_of_the_authors_code():
    centers = make_model().class_capsules.centers
    expected = pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert centers[:, 0, 0, 0, 3].tolist() == expected
    assert centers[0, :, 0, 0, 7].tolist() == expected


@pytest.mark.parametrize(
    "options",
    [
        ROUTING_OPTIONS,
        {"convolutions": 3, "convention": "type", "standardized": True},
        {"types": ()},
    ],
)
def test_options_keep_every_property(options):
    model = make_model(img_size=20, **options)
    model.train()(torch.rand(8, 2, 20, 20, generator=seeded(1)))  # means and variances of its own
    check_module(model, sample_images(model))


def test_options_reach_every_router():
    model = make_model(img_size=20, **ROUTING_OPTIONS)
    for layer in (*model.conv_capsules, model.class_capsules):
        for name, setting in ROUTING_OPTIONS.items():
            assert getattr(layer.router, name) == setting


def test_training_steps_lower_the_loss():
    model = make_model(num_classes=3, in_chans=1, img_size=18, iterations=2, generator=seeded())
    task = create_task(model, TrainConfig()).train()
    labels = torch.arange(24) % 3
    images = 0.2 * torch.rand(24, 1, 18, 18, generator=seeded())
    for image, label in zip(images, labels, strict=True):
        image[:, :, label * 6 : label * 6 + 6] += 0.7
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(16):
        optimizer.zero_grad()
        loss = task.training_step(Batch(images, {"label": labels}, torch.arange(len(labels))), 1.0)[
            "loss"
        ]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"types": (3,)}, r"types: expected 2 numbers or none, got \[3\]"),
        ({"types": (0, 3)}, "types: expected at least 1, got 0"),
        ({"convolutions": 0}, "convolutions: expected at least 1, got 0"),
        ({"img_size": 16}, "img_size: expected images of at least 17x17 pixels, got 16x16"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        make_model(**options)
