"""The augmentations of a run: their order, their settings, what goes along with the images."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch

from torchcaps.data import Transforms, register_augmentation
from torchcaps.data.augment import AUGMENTATIONS, ordered_augmentations
from torchcaps.errors import ArgumentError
from torchcaps.settings import TrainConfig, known_settings, setting

ZEROS = torch.zeros(4, 1, 6, 6)


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


def transform(settings, images=ZEROS, companions=None, crop=None, masks=False):
    augmentation = TrainConfig.of(**{"shift": 0} | settings).augmentation
    generator = torch.Generator().manual_seed(0)
    return Transforms(augmentation, crop, masks=masks)(images, generator, companions)


def test_they_are_applied_in_the_order_of_their_numbers():
    names = [augmentation.name for augmentation in ordered_augmentations()]
    assert names == ["shift", "flip", "morphology", "affine", "erase", "color_jitter"]


def test_an_erased_square_lies_in_the_window():
    images, _ = transform({"erase": 3}, torch.ones(50, 1, 9, 9), crop=4)
    assert images.shape == (50, 1, 4, 4)
    assert torch.equal((images == 0).flatten(1).sum(dim=1), torch.full((50,), 9))


@pytest.mark.parametrize("moves_pixels", [True, False])
def test_companions_are_changed_where_pixels_move(register_tag, moves_pixels):
    register_tag(moves_pixels=moves_pixels)
    images, companions = transform({"tag": 2.0}, companions=torch.zeros(4, 3, 6, 6))
    assert torch.equal(images, ZEROS + 2)
    expected = 2.0 if moves_pixels else 0.0
    assert torch.equal(companions, torch.full((4, 3, 6, 6), expected))


@pytest.mark.parametrize(
    "settings", [{"shift": 3}, {"flip": True}, {"degrees": 30.0}, {"erase": 4}]
)
def test_companions_move_as_their_images(settings):
    images = torch.rand(20, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    changed, companions = transform(settings, images, companions=images, crop=8)
    assert torch.equal(changed, companions)
    assert not torch.equal(changed, images[:, :, 2:10, 2:10])


def test_masks_refuse_what_does_not_fit_them(register_tag):
    register_tag(moves_pixels=True, fits_masks=False)
    for settings in ({"tag": 1.0}, {"morphology": 0.5}):
        with pytest.raises(ArgumentError) as error:
            transform(settings, masks=True)
        assert {error.value.argument} == settings.keys()
    transform({"degrees": 10.0}, masks=True)


@dataclass(frozen=True)
class OnByDefaultSettings:
    tag: float = setting(1.0, "number added to every pixel")


def test_masks_are_never_changed_by_what_does_not_fit_them(register_tag):
    register_tag(OnByDefaultSettings, moves_pixels=True, fits_masks=False)
    images, masks = transform({}, companions=ZEROS, masks=True)
    assert torch.equal(images, ZEROS)
    assert torch.equal(masks, ZEROS)
    assert torch.equal(transform({})[0], ZEROS + 1)
    with pytest.raises(ArgumentError):
        transform({"tag": 2.0}, masks=True)


def test_a_taken_name_or_setting_is_refused(register_tag):
    register_tag(moves_pixels=True)
    with pytest.raises(ValueError, match="'tag' is registered already"):
        register_tag(moves_pixels=True)
    with pytest.raises(ArgumentError, match="'tag' is one of tag"):
        register_augmentation("other", TagSettings, moves_pixels=True)(lambda x, _s, _g: x)
    register_tag(moves_pixels=False, replace=True)
    assert AUGMENTATIONS["tag"].moves_pixels is False


def test_settings_are_those_of_registered_augmentations(register_tag):
    register_tag(moves_pixels=True)
    config = TrainConfig.of(tag=2)
    assert config.augmentation.tag == 2
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert known_settings()["tag"].about == "number added to every pixel"
    with pytest.raises(ArgumentError, match="tag: expected a number"):
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
            moves_pixels=True,
            fits_masks=False,
            parameters=["invert_above"],
        )
        def invert(images, settings, generator):
            calls.append(settings)
            return images

        transform({"invert_above": 0.25}, masks=True)
        assert calls == []
        transform({"invert": 1, "invert_above": 0.25})
        assert calls == [ThresholdSettings(1, 0.25)]
        with pytest.raises(ArgumentError) as refused:
            transform({"invert": 1}, masks=True)
        assert refused.value.argument == "invert"


@pytest.mark.parametrize(
    "function",
    [
        lambda images: None,
        lambda images: images.numpy(),
        lambda images: images[..., 1:],
        lambda images: images / 0,
    ],
    ids=["none", "array", "narrower", "nan"],
)
@pytest.mark.parametrize("moves_pixels", [False, True])
def test_an_augmentation_that_returns_no_images_is_named(function, moves_pixels):
    with AUGMENTATIONS.restored():

        @register_augmentation("broken", TagSettings, moves_pixels=moves_pixels)
        def change(images, settings, generator):
            return function(images)

        with pytest.raises(ArgumentError) as raised:
            transform({"tag": 1.0}, companions=ZEROS)
    assert raised.value.argument == "broken"
