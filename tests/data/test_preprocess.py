"""Prediction prepares an image as training did, whatever it is given as."""

import json

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from torchcaps.data import Preprocess, load_dataset

from .makers import picture, refusal, write_folder

PREPROCESS = Preprocess((8, 6), 3)


def test_every_form_of_an_image_gives_the_same(tmp_path):
    image = picture((8, 6))
    path = tmp_path / "a.png"
    image.save(path)
    array = np.array(image)
    tensor = torch.from_numpy(array)
    expected = tensor.movedim(-1, 0).float() / 255
    forms = [
        path,
        str(path),
        image,
        array,
        np.moveaxis(array, -1, 0),
        tensor,
        tensor.movedim(-1, 0),
        expected,
        expected.double(),
    ]
    for form in forms:
        prepared = PREPROCESS(form)
        assert prepared.dtype == torch.float32
        assert_close(prepared, expected, rtol=0, atol=1e-6)


def test_the_callers_tensor_stays_as_it_is():
    image = torch.rand(3, 8, 6)
    original = image.clone()
    PREPROCESS(image).zero_()
    assert torch.equal(image, original)


@pytest.mark.parametrize("in_chans", [1, 3])
def test_prediction_sees_what_training_saw(tmp_path, in_chans):
    root = write_folder(tmp_path / "own", count=3, size=(21, 17), levels=("train", "test"))
    trained = load_dataset(root, img_size=(12, 10), in_chans=in_chans)
    preprocess = Preprocess(trained.img_size, trained.in_chans)
    for index, image in enumerate(trained.float_images()):
        label = trained.classes[trained.labels[index]]
        path = root / "train" / label / f"{index % 3}.png"
        assert torch.equal(preprocess(path), image)


def test_channels_and_size_are_set():
    white = Preprocess((5, 4), 1)(np.full((10, 8, 3), 65535, dtype=np.uint16))
    assert white.shape == (1, 5, 4)
    assert white.unique().tolist() == [1]
    assert Preprocess((5, 4), 3)(np.zeros((10, 8), dtype=np.uint8)).shape == (3, 5, 4)


def test_it_is_stored_as_json():
    assert Preprocess.from_dict(json.loads(json.dumps(PREPROCESS.to_dict()))) == PREPROCESS
    assert PREPROCESS.to_dict() == {"img_size": [8, 6], "in_chans": 3}


@pytest.mark.parametrize(
    "settings", [{}, {"img_size": 3, "in_chans": 1}, {"img_size": [1, 2], "in_chans": "x"}]
)
def test_other_dictionaries_are_refused(settings):
    message = r"preprocess: expected img_size \[height, width\] and in_chans, got"
    with refusal(message):
        Preprocess.from_dict(settings)


def test_sizes_and_channels_below_one_are_refused():
    with refusal("img_size: expected sides of at least 1 pixel"):
        Preprocess((0, 4), 1)
    with refusal("in_chans: expected at least 1, got 0"):
        Preprocess((4, 4), 0)


def test_a_crop_is_cut_out_of_the_middle():
    preprocess = Preprocess((48, 48), 1, crop=32)
    image = torch.rand(1, 48, 48)
    assert preprocess.model_size == (32, 32)
    assert_close(preprocess(image), image[:, 8:40, 8:40])
    assert Preprocess.from_dict(preprocess.to_dict()) == preprocess
    with refusal("crop: expected from 1 to 40 pixels, got 41"):
        Preprocess((48, 40), 1, crop=41)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.full((8, 6), 200.0), r"expected float pixels in \[0, 1\], got 200"),
        ("nowhere.png", r"nowhere\.png: no such image file"),
    ],
)
def test_unsuitable_images_are_refused(image, message):
    with refusal(message):
        PREPROCESS(image)
