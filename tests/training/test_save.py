"""Models that are saved by `tc.save`, and come back in this or another process."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest
import torch

import torchcaps as tc
from torchcaps import plugins
from torchcaps.data import Dataset
from torchcaps.errors import ArgumentError, RunError, TorchcapsError
from torchcaps.training.files import load_tensors, save_tensors
from torchcaps.types import model_metadata

from .makers import TINY

OWN_NETS = """
from os import system
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes=3, width=4):
        super().__init__()
        self.conv = nn.Conv2d(1, width, 5)
        self.head = nn.Linear(width, num_classes)
        self.drop = nn.Dropout(0.1)

    def forward(self, images):
        return self.head(self.drop(self.conv(images).relu().mean(dim=(2, 3))))

def small(**options):
    return Net(width=2, **options)

def no_module(**options):
    return "a word"
"""
SETTINGS = {"epochs": 1, "batch_size": 16, "holdout": 6, "shift": 0}
LOAD_ALL = """
import sys
import torch, torchcaps as tc
torch.set_num_threads(1)
import user_nets
images = torch.load("images.pt")
for folder, builder in (("pretrained", None), ("own", user_nets.Net)):
    model = tc.load(folder, builder=builder)
    torch.save((model(images), model.classes), f"{folder}.pt")
"""


@pytest.fixture
def user_nets(tmp_path, monkeypatch):
    """A module of a user, in the current folder."""
    (tmp_path / "user_nets.py").write_text(OWN_NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("user_nets")
    del sys.modules["user_nets"]


@pytest.fixture
def digits():
    """Sixty digits of four classes with names."""
    images = tc.data.load_dataset("digits", "train")
    subset = images.subset(torch.nonzero(images.labels < 4).flatten()[:60])
    return Dataset(subset.images, {"label": subset.labels}, ("zero", "one", "two", "three"), "four")


def test_fitted_models_give_identical_outputs_in_another_process(user_nets, digits, tmp_path):
    models = {
        "pretrained": tc.create_model("capsnet_small", pretrained=True, num_classes=4),
        "own": user_nets.Net(num_classes=4),
    }
    for model in models.values():
        tc.fit(model, digits, **SETTINGS)
    assert tc.save(models["pretrained"], "pretrained") == tmp_path.__class__("pretrained")
    tc.save(models["own"], tmp_path / "own", builder=user_nets.Net, options={"num_classes": 4})

    images = digits.float_images(range(8))
    torch.save(images, "images.pt")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", LOAD_ALL], check=True, env=environment)
    for folder, model in models.items():
        outputs, classes = torch.load(f"{folder}.pt")
        assert torch.equal(outputs, model(images))
        assert classes == digits.classes


@pytest.mark.parametrize("channels", [1, 3])
def test_the_layout_of_convolutions_comes_back(channels, tmp_path):
    model = tc.create_model("capsnet", in_chans=channels, **TINY)
    images = torch.rand(20, channels, 28, 28)
    tc.fit(model, images, torch.arange(20) % 10, holdout=10, epochs=1, batch_size=10)
    strides = {name: weight.stride() for name, weight in model.state_dict().items()}
    loaded = tc.load(tc.save(model, tmp_path / "model"))
    assert {name: weight.stride() for name, weight in loaded.state_dict().items()} == strides
    resized = tc.load(tmp_path / "model", num_classes=3)
    assert resized.conv.weight.stride() == model.conv.weight.stride()


def test_a_model_of_more_classes_than_its_images_is_saved(digits, tmp_path):
    model = tc.create_model("capsnet_small")
    tc.fit(model, digits, **SETTINGS)
    loaded = tc.load(tc.save(model, tmp_path / "model"))
    assert loaded.classes == (*digits.classes, "4", "5", "6", "7", "8", "9")
    images = digits.float_images(range(4))
    assert torch.equal(loaded(images), model(images))


def test_evaluation_and_prediction_take_a_saved_folder(digits, tmp_path):
    model = tc.create_model("capsnet_small", pretrained=True, num_classes=4)
    tc.fit(model, digits, **SETTINGS)
    folder = tc.save(model, tmp_path / "deep" / "model")
    assert os.listdir(folder) == ["model.safetensors"]
    assert tc.evaluate(folder, digits).accuracy == tc.evaluate(model, digits).accuracy
    [row] = tc.predict(folder, digits.images[0])
    assert row["label"] in digits.classes
    with pytest.raises(RunError, match="does not say what data it was trained on; give --data"):
        tc.evaluate(folder)


def test_the_folder_of_a_run_is_not_written_to(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    model = tc.create_model("capsnet", **TINY)
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(RunError, match="is the folder of a run; name another path"):
            tc.save(model, path)
    assert os.listdir(tmp_path) == ["config.json"]


def test_with_other_classes_the_layers_that_depend_on_them_start_anew(tmp_path):
    model = tc.create_model("capsnet", num_classes=3, **TINY)
    path = tc.save(model, tmp_path / "model.safetensors")
    resized = tc.load(path, num_classes=5)
    assert resized.classes == ("0", "1", "2", "3", "4")
    assert not resized.training
    assert resized(torch.rand(2, 1, 28, 28)).shape == (2, 5)
    before = model.state_dict()
    kept = {name for name, x in resized.state_dict().items() if x.shape == before[name].shape}
    assert {"conv.weight", "decoder.layers.2.weight"} < kept < before.keys()
    for name in kept:
        assert torch.equal(resized.state_dict()[name], before[name])

    torch.manual_seed(0)
    first = tc.load(path, num_classes=5)
    second = tc.load(path, num_classes=5)
    weights = [x.class_capsules.votes.weight for x in (first, second)]
    assert not torch.equal(*weights)  # drawn by torch, not by a seed of its own
    copy_of_model = tc.load(path, num_classes=3)
    assert torch.equal(copy_of_model.class_capsules.votes.weight, model.class_capsules.votes.weight)


def test_a_number_of_classes_that_cannot_be_is_refused(user_nets, tmp_path):
    path = tc.save(tc.create_model("capsnet", **TINY), tmp_path / "model")
    with pytest.raises(ArgumentError, match="num_classes: expected at least 1, got 0"):
        tc.load(path, num_classes=0)
    path = tc.save(tc.create_model("scae"), tmp_path / "scae")
    with pytest.raises(ArgumentError, match="num_classes: scae has no such option"):
        tc.load(path, num_classes=3)
    path = tc.save(user_nets.Net(), tmp_path / "own", builder=user_nets.Net, options={"width": 4})
    with pytest.raises(ArgumentError, match="num_classes: user_nets:Net has no such option"):
        tc.load(path, num_classes=5, builder=user_nets.Net)


def test_a_module_of_the_user_comes_back_with_its_builder(user_nets, digits, tmp_path):
    model = user_nets.small(num_classes=4)
    tc.fit(model, digits, **SETTINGS)
    path = tc.save(model, tmp_path / "one", builder=user_nets.small, options={"num_classes": 4})
    loaded = tc.load(path, builder=user_nets.small)
    assert model_metadata(loaded).spec == model_metadata(model).spec
    assert loaded.preprocess == model.preprocess
    assert tc.evaluate(loaded, digits).accuracy == tc.evaluate(model, digits).accuracy

    copy = tc.save(loaded, tmp_path / "two")  # it remembers how it was made
    files = [folder / "model.safetensors" for folder in (path, copy)]
    assert files[0].read_bytes() == files[1].read_bytes()
    resized = tc.load(copy, num_classes=7, builder=user_nets.small)
    assert resized(digits.float_images(range(2))).shape == (2, 7)
    assert torch.equal(resized.conv.weight, model.conv.weight)


def test_a_file_runs_no_code_by_itself(user_nets, tmp_path, monkeypatch):
    model = user_nets.Net()
    path = tc.save(model, tmp_path / "model", builder=user_nets.Net) / "model.safetensors"
    refusal = r"was built by user_nets:Net, and a file never runs code by itself"
    with pytest.raises(RunError, match=refusal):
        tc.load(path)  # although the module is imported already
    monkeypatch.setattr(plugins, "_imported", ["user_nets.py"])
    assert torch.equal(tc.load(path).conv.weight, model.conv.weight)

    tensors, description = load_tensors(path)
    names = ("os:system", "user_nets:system", "user_nets:Net.__init__", "user_nets:nn.Module", "a:")
    for name in names:
        options = {"command": f"touch {tmp_path / 'ran'}"}
        save_tensors(path, tensors, description | {"model": name, "options": options})
        with pytest.raises(RunError, match=f"was built by {name}, and a file never runs code"):
            tc.load(path)
    assert not (tmp_path / "ran").exists()


def test_builders_without_a_name_and_options_that_are_no_json_are_refused(user_nets, tmp_path):
    model = user_nets.Net()

    def local():
        return user_nets.Net()

    for builder in (local, lambda: user_nets.Net(), user_nets.Net().forward, 3):
        with pytest.raises(ArgumentError, match="builder: expected a function or class at the top"):
            tc.save(model, tmp_path / "model", builder=builder)
    for options in ({"num_classes": {1}}, {"width": float("nan")}):
        with pytest.raises(ArgumentError, match="options: expected plain values that a file can"):
            tc.save(model, tmp_path / "model", builder=user_nets.Net, options=options)
    for builder in (user_nets.small, user_nets.no_module):  # builds something else
        with pytest.raises(ArgumentError, match="model: cannot be built again for `load`"):
            tc.save(model, tmp_path / "model", builder=builder)
    with pytest.raises(ArgumentError, match="options: expected a builder beside them, got none"):
        tc.save(model, tmp_path / "model", options={})
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"activation": 3}},
        {"options": {"wide": 3}},
        {"preprocess": {"img_size": "x"}},
    ],
)
def test_damaged_descriptions_of_own_models_are_one_sentence(user_nets, tmp_path, change):
    path = tc.save(user_nets.Net(), tmp_path / "x.safetensors", builder=user_nets.Net)
    tensors, description = load_tensors(path)
    save_tensors(path, tensors, description | change)
    with pytest.raises(TorchcapsError):
        tc.load(path, builder=user_nets.Net)
