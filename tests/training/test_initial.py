"""Trainings that begin with the weights of another one."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

import torchcaps as tc
from torchcaps.errors import ArgumentError, RunError
from torchcaps.training import load, train

from .makers import Watch, contents, resume, tiny, train_until, write_bars

NEW = "class_capsules.votes.weight, decoder.layers.0.weight"


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    """A data set of five classes."""
    return write_bars(tmp_path_factory.mktemp("five") / "five.npz", classes=5)


def test_what_fits_is_taken_and_class_capsules_are_new(finished, five, tmp_path):
    watch = Watch()
    config = tiny(five, init=str(finished), lr=1e-12, shift=0)
    run = train(config, tmp_path / "run", callbacks=[watch])
    sentence = f"init: 9 of 11 tensors (95 % of the weights) come from {finished}; new: {NEW}"
    assert run.notes == [sentence]
    assert watch.messages.count(sentence) == 1
    assert run.config.model.init == str(finished)

    before = load(finished).state_dict()
    after = load(run.path).state_dict()
    fresh = load(train(tiny(five, lr=1e-12, shift=0), tmp_path / "fresh").path).state_dict()
    for name, weight in after.items():
        origin = fresh if name in NEW.split(", ") else before
        torch.testing.assert_close(weight, origin[name], rtol=0, atol=1e-9)


def test_a_run_resumes_without_the_weights_that_it_began_with(finished, five, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "source")
    config = tiny(five, init=str(copy))
    expected = train(config, tmp_path / "run")
    train_until(3, config, tmp_path / "stopped")
    shutil.rmtree(copy)
    resumed = resume(tmp_path / "stopped")
    assert contents(resumed.path) == contents(expected.path)
    with pytest.raises(RunError, match="source: no such run folder or model file"):
        train(config, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_equal_numbers_of_other_classes_are_other_classes(finished, bars, tmp_path):
    same = train(tiny(bars, init=str(finished)), tmp_path / "same")
    assert same.notes[0].endswith("; new: none")
    with np.load(bars) as arrays:
        named = tmp_path / "named.npz"
        np.savez(named, **arrays, classes=np.array(["left", "middle", "right"]))
    assert tc.data.load_dataset(named, "train").classes == ("left", "middle", "right")
    other = train(tiny(named, init=str(finished)), tmp_path / "other")
    assert other.notes[0].endswith(f"; new: {NEW}")


def test_fit_and_model_files_and_weights_of_the_package(tmp_path):
    images = torch.rand(20, 1, 28, 28)
    labels = torch.arange(20) % 3
    settings = {"epochs": 1, "batch_size": 8, "lr": 1e-12, "shift": 0}
    digits = tc.create_model("capsnet_small", pretrained=True)
    path = tc.save(digits, tmp_path / "digits.safetensors")
    for init in ("capsnet_small", path):
        watch = Watch()
        model = tc.create_model("capsnet_small", num_classes=3)
        tc.fit(model, images, labels, init=init, callbacks=[watch], **settings)
        torch.testing.assert_close(model.conv.weight, digits.conv.weight, rtol=0, atol=1e-9)
        assert any(f"come from {init}; new: {NEW}" in text for text in watch.messages)


def test_nothing_that_fits_is_one_sentence(finished, five, tmp_path):
    sentence = "init: expected weights of CNN, got .*, of which no name and shape fits"
    with pytest.raises(ArgumentError, match=sentence):
        train(
            tiny(five, init=str(finished), model="cnn_matched", model_options={}), tmp_path / "run"
        )
    state = finished / "checkpoints" / "last.safetensors"
    with pytest.raises(ArgumentError, match="init: expected a run or a model file, got .*last.saf"):
        train(tiny(five, init=str(state)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
