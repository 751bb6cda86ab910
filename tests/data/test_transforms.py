from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch

from torchcaps.data import Transforms, register_augmentation
from torchcaps.data.augment import AUGMENTATIONS, ordered_augmentations
from torchcaps.errors import ArgumentError
from torchcaps.settings import TrainConfig, known_settings, setting


@dataclass(frozen=True)
class TagSettings:
    tag: float = setting(0.0, "number added to every pixel")


@pytest.fixture
def tagging():
    """Registers an augmentation that adds a number to what it is applied to."""
    with AUGMENTATIONS.restored():

        def register(**options):
            @register_augmentation("tag", TagSettings, **options)
            def add(images, settings, generator):
                return images + settings.tag

        yield register


def transformed(changes, crop=None, companions=None, masks=False, images=None):
    settings = TrainConfig.of(**{"shift": 0} | changes).augmentation
    images = torch.zeros(4, 1, 6, 6) if images is None else images
    generator = torch.Generator().manual_seed(0)
    return Transforms(settings, crop, masks=masks)(images, generator, companions)


def test_they_are_applied_in_the_order_of_their_numbers():
    names = [augmentation.name for augmentation in ordered_augmentations()]
    assert names == ["shift", "flip", "morphology", "affine", "erase", "color_jitter"]


def test_an_erased_square_lies_in_what_is_cut_out():
    image, _ = transformed({"erase": 3}, crop=4, images=torch.ones(50, 1, 9, 9))
    assert image.shape == (50, 1, 4, 4)
    assert torch.equal((image == 0).flatten(1).sum(dim=1), torch.full((50,), 9))


@pytest.mark.parametrize("moves_pixels", [True, False])
def test_what_moves_pixels_takes_companions_along(tagging, moves_pixels):
    tagging(moves_pixels=moves_pixels)
    image, companions = transformed({"tag": 2.0}, companions=torch.zeros(4, 3, 6, 6))
    assert torch.equal(image, torch.full((4, 1, 6, 6), 2.0))
    assert torch.equal(companions, torch.full((4, 3, 6, 6), 2.0 if moves_pixels else 0.0))


@pytest.mark.parametrize("name", ["shift", "flip", "degrees", "erase"])
def test_companions_go_the_same_way(name):
    images = torch.rand(20, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    value = {"shift": 3, "flip": True, "degrees": 30.0, "erase": 4}[name]
    image, companions = transformed({name: value}, crop=8, images=images, companions=images)
    assert torch.equal(image, companions)
    assert not torch.equal(image, images[:, :, 2:10, 2:10])


def test_masks_refuse_what_cannot_be_done_to_them(tagging):
    tagging(moves_pixels=True, fits_masks=False)
    for changes in ({"tag": 1.0}, {"morphology": 0.5}):
        with pytest.raises(ArgumentError) as raised:
            transformed(changes, masks=True)
        assert {raised.value.argument} == changes.keys()
    transformed({"degrees": 10.0}, masks=True)


def test_a_taken_name_or_setting_is_refused(tagging):
    tagging(moves_pixels=True)
    with pytest.raises(ValueError, match="'tag' is registered already"):
        tagging(moves_pixels=True)
    with pytest.raises(ArgumentError, match="'tag' is one of tag"):
        register_augmentation("other", TagSettings, moves_pixels=True)(lambda x, _s, _g: x)
    tagging(moves_pixels=False, replace=True)
    assert AUGMENTATIONS["tag"].moves_pixels is False


def test_settings_come_and_go_with_what_is_registered(tagging):
    tagging(moves_pixels=True)
    config = TrainConfig.of(tag=2)
    assert config.augmentation.tag == 2
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert known_settings()["tag"].about == "number added to every pixel"
    with pytest.raises(ArgumentError, match="tag: expected a number"):
        TrainConfig.of(tag="much")
