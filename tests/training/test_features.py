"""Features of a frozen backbone: computed once, kept in a file, the same as those of images."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import torchcaps as tc
from torchcaps.data import Dataset
from torchcaps.errors import ArgumentError, TrainingError
from torchcaps.models import Backbone, register_backbone
from torchcaps.models._backbones import BACKBONES
from torchcaps.testing import seeded
from torchcaps.training import features as stored

PASSES = []  # numbers of images that the backbone was run on


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 5, 7, stride=7)

    def forward(self, x):
        PASSES.append(len(x))
        return self.conv(x)


@pytest.fixture
def encoder(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "default_cache_dir", lambda: tmp_path / "cache")
    with BACKBONES.restored():

        @register_backbone("encoder")
        def encoder(pretrained):
            with torch.random.fork_rng():
                torch.manual_seed(3)
                return Backbone(Encoder(), (0.5,) * 3, (0.5,) * 3)

        PASSES.clear()
        yield


def make_model(**options):
    sizes = {"num_classes": 2, "in_chans": 3, "img_size": 28}
    return tc.create_model("capsule_head", backbone="encoder", **sizes | options).eval()


def make_images(count=100, seed=0):
    pixels = torch.rand(count, 3, 28, 28, generator=seeded(seed))
    return Dataset(pixels, {"label": torch.arange(count) % 2}, ("a", "b"), "noise")


def store(model, images, folder):
    """The features, and the file that they are in."""
    features = stored.stored_features(model, images, verbose=False)
    return features, folder / "cache" / "features" / f"{stored._key(model, images)}.npy"


def test_stored_features_are_those_of_the_images(encoder, tmp_path):
    model = make_model()
    images = make_images()
    features, file = store(model, images, tmp_path)
    expected = model(images.float_images())
    torch.testing.assert_close(model(features.float_images()), expected, atol=1e-3, rtol=0)
    assert torch.equal(features.labels, images.labels)
    assert features.img_size == (4, 4)
    assert np.load(file, mmap_mode="r").shape == (100, 5, 4, 4)


def test_only_what_is_missing_is_computed_also_by_other_heads(encoder, tmp_path):
    images = make_images()
    features, file = store(make_model(), images, tmp_path)
    expected = features.inputs.clone()
    np.load(file, mmap_mode="r+")[40:] = 0
    np.load(file.with_suffix(".done.npy"), mmap_mode="r+")[40:] = False
    other_head = make_model(types=3)
    PASSES.clear()
    assert torch.equal(store(other_head, images, tmp_path)[0].inputs, expected)
    assert sum(PASSES) == 60
    PASSES.clear()
    store(other_head, images, tmp_path)
    assert not PASSES


def test_other_images_or_weights_have_a_file_of_their_own(encoder, tmp_path):
    model = make_model()
    store(model, make_images(), tmp_path)
    store(model, make_images(seed=1), tmp_path)
    with torch.no_grad():
        model.backbone.module.conv.bias[0] += 1
    store(model, make_images(), tmp_path)
    assert len(list(tmp_path.rglob("*.done.npy"))) == 3


def test_files_and_features_that_cannot_be_used_are_refused(encoder, tmp_path, monkeypatch):
    model = make_model()
    images = make_images()
    with monkeypatch.context() as patch:
        patch.setattr(stored.shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
        with pytest.raises(TrainingError, match="GB are free"):
            store(model, images, tmp_path)
    _, file = store(model, images, tmp_path)
    np.save(file, np.zeros(3))
    with pytest.raises(TrainingError, match="delete this file"):
        store(model, images, tmp_path)
    with torch.no_grad():
        model.backbone.module.conv.weight *= 1e6
    with pytest.raises(ArgumentError, match="backbone: expected finite features"):
        store(model, images, tmp_path)


SETTINGS = {"data": "digits", "per_class": 10, "holdout": 20, "epochs": 2, "backbone": "encoder"}


def test_a_run_trains_on_features_and_its_model_takes_images(encoder, tmp_path, capsys):
    options = {"model_options": {"types": 3}, **SETTINGS}
    run = tc.train(
        "capsule_head", tmp_path / "run", callbacks=[tc.training.ProgressBar()], **options
    )
    printed = capsys.readouterr().err
    assert "100 images: 100 to be computed" in printed
    assert "20 images: 20 to be computed" in printed
    assert sum(PASSES) < 2 * 120  # and not once in each epoch
    assert run.config.model.backbone == "encoder"
    assert run.config.augmentation.shift == 0  # which is 2 for other models by their names

    model = tc.load(run.path)
    assert model.spec.features
    images = tc.data.load_dataset("digits", "test").subset(torch.arange(50))
    assert model(images.float_images()).shape == (50, 10)
    assert tc.evaluate(model, images).accuracy > 0.15

    PASSES.clear()
    repeat = tc.train("capsule_head", tmp_path / "again", **options)
    assert sum(PASSES) < 10  # the features are there
    first, second = (tc.load(folder.path).state_dict() for folder in (run, repeat))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_that_is_not_frozen_trains_its_backbone(encoder, tmp_path):
    options = {"freeze": False, "types": 3}
    config = tc.training.TrainConfig.of(model="capsule_head", **SETTINGS, model_options=options)
    run = tc.train(config, tmp_path / "run")
    before = make_model().backbone.module.conv.weight
    assert not torch.equal(tc.load(run.path).backbone.module.conv.weight, before)


@pytest.mark.parametrize("change", [{"degrees": 10.0}, {"crop": 20}])
def test_augmentations_of_stored_features_are_refused(encoder, tmp_path, change):
    config = tc.training.TrainConfig.of(model="capsule_head", **SETTINGS | change)
    (name,) = change
    with pytest.raises(ArgumentError, match=rf"{name}: expected .* freeze=false"):
        tc.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_without_a_backbone_takes_none(tmp_path):
    config = tc.training.TrainConfig.of(model="capsnet", data="digits", backbone="resnet20")
    with pytest.raises(ValueError, match="backbone"):
        tc.train(config, tmp_path / "run")
