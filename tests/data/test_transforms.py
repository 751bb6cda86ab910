"""The augmentations of a run: their order, their settings, what goes along with the images."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch

from torchcaps.data import Batch, Transforms, register_augmentation
from torchcaps.data.augment import AUGMENTATIONS, ordered_augmentations
from torchcaps.data.augment.transforms import MOVED
from torchcaps.errors import ArgumentError
from torchcaps.settings import TrainConfig, known_settings, setting
from torchcaps.testing import seeded

from .makers import refusal

ZEROS = torch.zeros(4, 1, 6, 6)
LABELS = torch.arange(4)


@dataclass(frozen=True)
class TagSettings:
    tag: float = setting(0.0, "number added to every pixel")


@pytest.fixture
def register_tag():
    """Registers an augmentation that adds a number to what it is applied to."""
    with AUGMENTATIONS.restored():

        def register(settings_class=TagSettings, **options):
            @register_augmentation("tag", settings_class, **options)
            def add(images, settings, generator):
                return images + settings.tag

        yield register


def transform(settings, images=ZEROS, crop=None, mask_classes=None, **targets):
    """The inputs and the targets of a batch after its augmentations."""
    augmentation = TrainConfig.of(**{"shift": 0} | settings).augmentation
    generator = seeded(0)
    transforms = Transforms(augmentation, crop, mask_classes=mask_classes)
    batch = Batch(images, targets, torch.arange(len(images)))
    inputs, targets, _ = transforms(batch, generator)
    return inputs, targets


def test_they_are_applied_in_the_order_of_their_numbers():
    names = [augmentation.name for augmentation in ordered_augmentations()]
    assert names == ["shift", "flip", "morphology", "affine", "erase", "color_jitter"]


def test_an_erased_square_lies_in_the_window():
    images, _ = transform({"erase": 3}, torch.ones(50, 1, 9, 9), crop=4)
    assert images.shape == (50, 1, 4, 4)
    assert torch.equal((images == 0).flatten(1).sum(dim=1), torch.full((50,), 9))


@pytest.mark.parametrize("moves", [MOVED, ()])
def test_targets_are_changed_that_are_declared_to_move(register_tag, moves):
    register_tag(moves=moves)
    images, targets = transform({"tag": 2.0}, singles=torch.zeros(4, 3, 1, 6, 6), label=LABELS)
    assert torch.equal(images, ZEROS + 2)
    expected = 2.0 if moves else 0.0
    assert torch.equal(targets["singles"], torch.full((4, 3, 1, 6, 6), expected))
    assert torch.equal(targets["label"], LABELS)


@pytest.mark.parametrize(
    "settings", [{"shift": 3}, {"flip": True}, {"degrees": 30.0}, {"erase": 4}]
)
def test_singles_and_masks_move_as_their_images(settings):
    """A mask is what is bright; of turned ones, what is at least half bright."""
    masks = (torch.rand(20, 12, 12, generator=seeded(1)) > 0.5).byte()
    images = masks.unsqueeze(1).float()
    changed, targets = transform(
        settings, images, crop=8, mask_classes=2, mask=masks, singles=images.unsqueeze(1)
    )
    assert torch.equal(changed, targets["singles"].squeeze(1))
    assert torch.equal(changed.squeeze(1) > 0.5, targets["mask"] == 1)
    assert not torch.equal(changed, images[:, :, 2:10, 2:10])


def test_a_color_jitter_leaves_masks():
    masks = torch.tensor([[[0, 1], [2, 1]]], dtype=torch.uint8)
    _, targets = transform(
        {"color_jitter": True}, torch.rand(1, 1, 2, 2), mask_classes=3, mask=masks
    )
    assert torch.equal(targets["mask"], masks.long())


def test_masks_refuse_what_does_not_fit_them(register_tag):
    register_tag(moves=("singles",))
    for name in ("tag", "morphology"):
        with refusal(f"^{name}: ", ArgumentError):
            transform({name: 0.5}, mask_classes=2)
    transform({"degrees": 10.0}, mask_classes=2)


@dataclass(frozen=True)
class OnByDefaultSettings:
    tag: float = setting(1.0, "number added to every pixel")


def test_masks_are_never_changed_by_what_does_not_fit_them(register_tag):
    register_tag(OnByDefaultSettings, moves=("singles",))
    masks = torch.zeros(4, 6, 6, dtype=torch.uint8)
    images, targets = transform({}, mask_classes=2, mask=masks)
    assert torch.equal(images, ZEROS)
    assert torch.equal(targets["mask"], masks)
    assert torch.equal(transform({})[0], ZEROS + 1)


def test_a_taken_name_or_setting_is_refused(register_tag):
    register_tag(moves=MOVED)
    with refusal("'tag' is registered already", ValueError):
        register_tag(moves=MOVED)
    with refusal("'tag' is one of tag", ArgumentError):
        register_augmentation("other", TagSettings, moves=MOVED)(lambda x, _s, _g: x)
    register_tag(moves=(), replace=True)
    assert AUGMENTATIONS["tag"].moves == ()


def test_settings_are_those_of_registered_augmentations(register_tag):
    register_tag(moves=MOVED)
    config = TrainConfig.of(tag=2)
    assert config.augmentation.tag == 2
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert known_settings()["tag"].about == "number added to every pixel"
    with refusal("tag: expected a number", ArgumentError):
        TrainConfig.of(tag="much")


@dataclass(frozen=True)
class ThresholdSettings:
    invert: float = setting(0.0, "share of images that are inverted", low=0, high=1)
    invert_above: float = setting(0.5, "values that are inverted", low=0, high=1)


def test_a_parameter_switches_nothing_on_and_is_refused_by_nothing():
    calls = []
    with AUGMENTATIONS.restored():

        @register_augmentation(
            "invert",
            ThresholdSettings,
            moves=("singles",),
            parameters=["invert_above"],
        )
        def invert(images, settings, generator):
            calls.append(settings)
            return images

        transform({"invert_above": 0.25}, mask_classes=2)
        assert calls == []
        transform({"invert": 1, "invert_above": 0.25})
        assert calls == [ThresholdSettings(1, 0.25)]


@pytest.mark.parametrize(
    "function",
    [
        lambda images: images.numpy(),
        lambda images: images[..., 1:],
        lambda images: images / 0,
    ],
    ids=["array", "narrower", "nan"],
)
@pytest.mark.parametrize("moves", [(), MOVED])
def test_an_augmentation_that_returns_no_images_is_named(function, moves):
    with AUGMENTATIONS.restored():

        @register_augmentation("broken", TagSettings, moves=moves)
        def change(images, settings, generator):
            return function(images)

        with refusal("^broken: ", ArgumentError):
            transform({"tag": 1.0}, singles=ZEROS.unsqueeze(1))
