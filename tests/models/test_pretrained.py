"""The weights that come with the package, on the digits that come with it."""

import json

import pytest
import torch
from safetensors.torch import save_file

import torchcaps as tc
from torchcaps.data import load_dataset
from torchcaps.models import _pretrained, weights_file, weights_info
from torchcaps.reporting import evaluate

NAMES = tc.list_models(pretrained=True)
MOST_BYTES = 6_000_000


def test_there_are_some_and_they_are_small():
    assert {"capsnet_small", "efficient_capsnet"} <= set(NAMES)
    assert sum(weights_file(name).stat().st_size for name in NAMES) <= MOST_BYTES
    assert tc.list_models("caps*", pretrained=True) == ["capsnet_small"]


@pytest.mark.parametrize("name", NAMES)
def test_they_know_digits_as_their_passport_says(name):
    model = tc.create_model(name, pretrained=True).eval()
    digits = load_dataset("digits", "test")
    assert model.classes == digits.classes
    passport = weights_info(name)
    assert passport["accuracy"] > 0.99
    assert evaluate(model, digits).accuracy == pytest.approx(
        passport["accuracy"], abs=0.005
    )  # a tenth of the images
    assert passport["command"].startswith("torchcaps train ")
    assert {"data", "seed", "license", "torch", "epochs"} <= passport.keys()


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_a_model_file_like_any_other(name):
    loaded, made = tc.load(weights_file(name)), tc.create_model(name, pretrained=True).eval()
    images = torch.rand(2, 1, 28, 28)
    torch.testing.assert_close(loaded(images), made(images), rtol=0, atol=0)
    assert loaded.preprocess == made.preprocess


@pytest.mark.parametrize("name", NAMES)
def test_for_other_classes_the_convolutions_stay(name):
    model, whole = (
        tc.create_model(name, pretrained=True, num_classes=3),
        tc.create_model(name, pretrained=True),
    )
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 3)
    assert model.classes == ()
    first, same = next(model.parameters()), next(whole.parameters())
    assert torch.equal(first, same)


def test_what_does_not_fit_is_refused():
    with pytest.raises(
        ValueError,
        match=r"img_size: the weights of capsnet_small are for \(28, 28\), got \(32, 32\)",
    ):
        tc.create_model("capsnet_small", pretrained=True, img_size=32)
    with pytest.raises(ValueError, match="in_chans: the weights of capsnet_small are for 1, got 3"):
        tc.create_model("capsnet_small", pretrained=True, in_chans=3)
    with pytest.raises(
        ValueError,
        match=r"the weights of capsnet_small do not fit these options, such as conv\.weight",
    ):
        tc.create_model("capsnet_small", pretrained=True, channels=8)
    with pytest.raises(
        ValueError,
        match="pretrained: no weights of 'capsnet' come with the package, only of capsnet_s",
    ):
        tc.create_model("capsnet", pretrained=True)
    assert tc.create_model("capsnet_small", pretrained=True, decoder=False).decoder is None
    assert tc.create_model("capsnet_small", pretrained=True, img_size=28).img_size == (28, 28)


def test_images_that_are_cropped_fit_the_model(tmp_path, monkeypatch):
    model = tc.create_model(
        "capsnet_small", img_size=20, channels=4, primary_types=2, decoder=False
    )
    about = {
        "classes": list("0123456789"),
        "preprocess": {"img_size": [28, 28], "in_chans": 1, "crop": 20},
        "options": {"channels": 4, "primary_types": 2, "decoder": False},
        "task": "classify",
    }
    monkeypatch.setattr(_pretrained, "FOLDER", tmp_path)
    save_file(
        model.state_dict(), tmp_path / "capsnet_small.safetensors", {"torchcaps": json.dumps(about)}
    )
    found = tc.create_model("capsnet_small", pretrained=True)
    assert (found.img_size, found.preprocess.model_size) == ((20, 20), (20, 20))
    assert torch.equal(found.class_capsules.weight, model.class_capsules.weight)


def test_passports_are_plain():
    assert json.loads(json.dumps(weights_info("capsnet_small")))["data"] == "mnist"
