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
MAX_BYTES = 6_000_000


def pretrained(name="capsnet_small", **options):
    return tc.create_model(name, pretrained=True, **options).eval()


def test_there_are_small_files_of_weights():
    assert {"capsnet_small", "efficient_capsnet"} <= set(NAMES)
    assert sum(weights_file(name).stat().st_size for name in NAMES) <= MAX_BYTES
    assert tc.list_models("caps*", pretrained=True) == ["capsnet_small"]


@pytest.mark.parametrize("name", NAMES)
def test_they_know_digits_as_their_description_says(name):
    model = pretrained(name)
    digits = load_dataset("digits", "test")
    assert model.classes == digits.classes
    accuracy = weights_info(name)["accuracy"]
    assert accuracy > 0.99
    # The digits are a tenth of the images.
    assert evaluate(model, digits).accuracy == pytest.approx(accuracy, abs=0.005)


@pytest.mark.parametrize("name", NAMES)
def test_a_description_tells_where_the_weights_come_from(name):
    description = json.loads(json.dumps(weights_info(name)))
    assert description["data"] == "mnist"
    assert description["command"].startswith("torchcaps train ")
    assert {"seed", "license", "torch", "epochs"} <= description.keys()


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_a_model_file_like_any_other(name):
    loaded = tc.load(weights_file(name))
    model = pretrained(name)
    images = torch.rand(2, 1, 28, 28)
    torch.testing.assert_close(loaded(images), model(images), rtol=0, atol=0)
    assert loaded.preprocess == model.preprocess


@pytest.mark.parametrize("name", NAMES)
def test_for_other_classes_the_convolutions_stay(name):
    model = pretrained(name, num_classes=3)
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 3)
    assert model.classes == ()
    convolution = next(model.parameters())
    assert torch.equal(convolution, next(pretrained(name).parameters()))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("capsnet_small", {"img_size": 32}, r"img_size: the weights of .* are for \(28, 28\), got"),
        ("capsnet_small", {"in_chans": 3}, "in_chans: the weights of .* are for 1, got 3"),
        ("capsnet_small", {"channels": 8}, r"do not fit these options, such as conv\.weight"),
        ("efficient_capsnet", {"decoder": True}, r"do not fit .*, such as decoder\.layers"),
        ("capsnet", {}, "pretrained: no weights of 'capsnet' come with the package, only of caps"),
    ],
)
def test_weights_that_do_not_fit(name, options, message):
    with pytest.raises(ValueError, match=message):
        pretrained(name, **options)


def test_options_that_fit():
    assert pretrained(decoder=False).decoder is None
    assert pretrained(img_size=28).img_size == (28, 28)


def test_images_that_are_cropped_fit_the_model(tmp_path, monkeypatch):
    options = {
        "channels": 4,
        "primary_types": 2,
        "decoder": False,
    }
    model = tc.create_model("capsnet_small", img_size=20, **options)
    description = {
        "classes": list("0123456789"),
        "preprocess": {"img_size": [28, 28], "in_chans": 1, "crop": 20},
        "options": options,
        "task": "classify",
    }
    file = tmp_path / "capsnet_small.safetensors"
    save_file(model.state_dict(), file, {"torchcaps": json.dumps(description)})
    monkeypatch.setattr(_pretrained, "FOLDER", tmp_path)
    loaded = pretrained()
    assert loaded.img_size == loaded.preprocess.model_size == (20, 20)
    assert torch.equal(loaded.class_capsules.weight, model.class_capsules.weight)
