"""DeepCaps: its maps, its decoder and its losses, at other sizes than the published ones."""

import pytest
import torch

import torchcaps as tc
from torchcaps.data import Batch
from torchcaps.nn import MapRouting
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.testing import check_module, seeded

SMALL = {
    "channels": 4,
    "types": 3,
    "dims": (2, 3, 4, 4),
    "class_dim": 5,
}
SIZES = {
    "num_classes": 3,
    "in_chans": 1,
    "img_size": 16,
}


def make_model(**options):
    return tc.create_model("deepcaps", **SIZES | SMALL | options)


def sample_images(model):
    return torch.rand(3, *model.image_shape, generator=seeded())


@pytest.mark.parametrize(
    ("num_classes", "in_chans", "img_size"),
    [
        (3, 3, (20, 33)),
        (1, 2, 16),
        (2, 1, 70),
    ],
)
def test_any_size(num_classes, in_chans, img_size):
    model = make_model(num_classes=num_classes, in_chans=in_chans, img_size=img_size)
    images = sample_images(model)
    capsules = model.capsules(images)
    assert capsules.pose.shape == (3, num_classes, 5)
    assert model.reconstruct(capsules).shape == images.shape
    assert 0.001 < capsules.activation.mean() < 0.9  # starts neither dead nor saturated


def test_maps_of_the_paper():
    """4 x 4 and 8 x 8 positions of 32 types are 2,560 capsules for the classes."""
    model = tc.create_model("deepcaps")
    shapes = []
    for cell in model.cells:
        cell.register_forward_hook(lambda *call: shapes.append(tuple(call[2].shape[1:])))
    with torch.no_grad(), tc.record_routing(model) as record:
        model(torch.rand(1, 3, 64, 64, generator=seeded()))
    assert shapes == [
        (128, 32, 32),
        (256, 16, 16),
        (256, 8, 8),
        (256, 4, 4),
    ]
    recorded = record.last()
    assert recorded["cells.3.skip"].coupling.shape == (1, 4, 4, 32, 32)
    assert recorded["class_capsules"].coupling.shape == (1, 2560, 10)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"local": True},
        {"iterations": 1},
        {"decoder": False},
    ],
)
def test_options_keep_every_property(options):
    model = make_model(**options)
    model.train()(torch.rand(8, 1, 16, 16, generator=seeded(1)))  # means and variances of its own
    check_module(model, sample_images(model), unused=("decoder",))


@pytest.mark.parametrize(
    ("local", "iterations"),
    [
        (False, 3),
        (True, 2),
    ],
)
def test_options_reach_both_routings(local, iterations):
    model = make_model(local=local, iterations=iterations)
    router = model.cells[3].skip.router
    assert isinstance(router, MapRouting)
    assert router.local == local
    assert router.iterations == model.class_capsules.router.iterations == iterations


def test_the_decoder_is_not_told_the_class():
    """Equal poses of other classes are drawn alike."""
    model = make_model().eval()
    capsules = model.capsules(sample_images(model))
    pose = capsules.pose[:, :1].expand_as(capsules.pose)
    capsules = tc.Capsules(pose, capsules.activation)
    first = model.reconstruct(capsules, torch.full((3,), 0))
    second = model.reconstruct(capsules, torch.full((3,), 2))
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize(
    ("progress", "present", "absent", "down_weight"),
    [
        (0.0, 0.9, 0.1, 0.5),
        (0.5, 0.95, 0.05, 0.8),
    ],
)
def test_the_second_half_of_the_training_has_other_margins(progress, present, absent, down_weight):
    model = make_model().eval()
    task = create_task(model, TrainConfig.of(loss="two_margins"))
    batch = Batch(
        sample_images(model),
        {"label": torch.tensor([2, 0, 1])},
        torch.arange(len(torch.tensor([2, 0, 1]))),
    )
    lengths = model(batch.inputs)
    expected = tc.functional.margin_loss(lengths, batch.targets["label"], present, absent, down_weight)
    torch.testing.assert_close(task.training_step(batch, progress)["two_margins"], expected)


@pytest.mark.parametrize("loss", ["margin", "two_margins"])
def test_weight_of_the_reconstruction(loss):
    task = create_task(make_model(), TrainConfig.of(loss=loss))
    assert task.reconstruction_weight == 0.0005


def test_training_steps_lower_the_loss():
    model = make_model(generator=seeded())
    task = create_task(model, TrainConfig()).train()
    labels = torch.arange(24) % 3
    images = 0.2 * torch.rand(24, 1, 16, 16, generator=seeded())
    for image, label in zip(images, labels, strict=True):
        image[:, :, label * 5 : label * 5 + 5] += 0.7
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(15):
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
        ({"dims": (2, 3, 4, 5)}, r"dims: expected 4 numbers .* the last two alike, got \[2, 3, 4"),
        ({"types": 0}, "types: expected at least 1, got 0"),
        ({"img_size": 15}, "img_size: expected images of at least 16x16"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        make_model(**options)
