"""DeepCaps at other sizes than the published ones."""

import pytest
import torch

import torchcaps as tc
from torchcaps.data import ImageBatch
from torchcaps.nn import MapRouting
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.testing import check_module, seeded

TINY = {"channels": 4, "types": 3, "dims": (2, 3, 4, 4), "class_dim": 5}


def tiny(**options):
    return tc.create_model(
        "deepcaps", **{"num_classes": 3, "in_chans": 1, "img_size": 16} | TINY | options
    )


def images_of(model, batch=3):
    return torch.rand(batch, model.in_chans, *model.img_size, generator=seeded())


@pytest.mark.parametrize(
    ("num_classes", "in_chans", "img_size"),
    [(3, 3, (20, 33)), (1, 2, 16), (2, 1, 70)],
)
def test_any_size(num_classes, in_chans, img_size):
    model = tiny(num_classes=num_classes, in_chans=in_chans, img_size=img_size)
    images = images_of(model)
    capsules = model.capsules(images)
    assert capsules.pose.shape == (3, num_classes, 5)
    assert model.reconstruct(capsules).shape == images.shape
    assert 0.001 < capsules.activation.mean() < 0.9  # starts neither dead nor saturated


def test_maps_of_the_paper():
    """4 x 4 and 8 x 8 positions of 32 types are 2,560 capsules for the classes."""
    model, maps = tc.create_model("deepcaps"), []
    for cell in model.cells:
        cell.register_forward_hook(
            lambda module, inputs, output: maps.append(tuple(output.shape[1:]))
        )
    with torch.no_grad(), tc.record_routing(model) as record:
        model(torch.rand(1, 3, 64, 64, generator=seeded()))
    assert maps == [(128, 32, 32), (256, 16, 16), (256, 8, 8), (256, 4, 4)]
    shapes = {name: tuple(recorded.coupling.shape) for name, recorded in record.last().items()}
    assert shapes == {"cells.3.skip": (1, 4, 4, 32, 32), "class_capsules": (1, 2560, 10)}


@pytest.mark.parametrize("options", [{}, {"local": True}, {"iterations": 1}, {"decoder": False}])
def test_options_keep_every_property(options):
    model = tiny(**options)
    model.train()(torch.rand(8, 1, 16, 16, generator=seeded(1)))  # means and variances of its own
    check_module(model, images_of(model), unused=("decoder",))
    routers = [module for module in model.modules() if isinstance(module, MapRouting)]
    assert [router.local for router in routers] == [options.get("local", False)]
    assert (
        model.class_capsules.router.iterations
        == routers[0].iterations
        == options.get("iterations", 3)
    )


def test_the_decoder_is_not_told_the_class():
    """Equal poses of other classes are drawn alike."""
    model = tiny().eval()
    pose, activation = model.capsules(images_of(model))
    same = tc.Capsules(pose[:, :1].expand_as(pose), activation)
    one, other = (model.reconstruct(same, torch.full((3,), label)) for label in (0, 2))
    torch.testing.assert_close(one, other)


def test_the_second_half_of_the_training_asks_for_more():
    model = tiny().eval()
    task = create_task(model, TrainConfig.of(loss="two_margins"))
    margin = create_task(model, TrainConfig.of(loss="margin"))
    assert task.reconstruction_weight == margin.reconstruction_weight == 0.0005
    batch = ImageBatch(images_of(model), torch.tensor([2, 0, 1]))
    lengths = model(batch.images)
    for share, (present, absent, down_weight) in ((0.0, (0.9, 0.1, 0.5)), (0.5, (0.95, 0.05, 0.8))):
        expected = tc.functional.margin_loss(lengths, batch.labels, present, absent, down_weight)
        torch.testing.assert_close(task(batch, share)["two_margins"], expected)


def test_training_steps_lower_the_loss():
    torch.manual_seed(0)
    model = tiny()
    task = create_task(model, TrainConfig()).train()
    labels = torch.arange(24) % 3
    images = 0.2 * torch.rand(24, 1, 16, 16, generator=seeded())
    for image, label in zip(images, labels, strict=True):
        image[:, :, label * 5 : label * 5 + 5] += 0.7
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        losses.append(task(ImageBatch(images, labels), 1.0)["loss"])
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]


def test_wrong_sizes():
    with pytest.raises(
        ValueError, match=r"dims: expected 4 numbers of .*, the last two alike, got \[2, 3, 4, 5\]"
    ):
        tiny(dims=(2, 3, 4, 5))
    with pytest.raises(ValueError, match="types: expected at least 1, got 0"):
        tiny(types=0)
    with pytest.raises(ValueError, match="img_size: expected images of at least 16x16"):
        tiny(img_size=15)
