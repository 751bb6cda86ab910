"""Training on images that stay on disk: the same bits as in memory, with any number of workers."""

from __future__ import annotations

import shutil

import pytest

import torchcaps as tc
from data.makers import write_folder
from torchcaps.data import entries, files
from torchcaps.errors import DataError, RunError
from torchcaps.training import Interrupted, train

from .makers import Watch, contents, resume, stop_after, tiny, train_until


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """36 pictures of two classes, of which 28 are for training."""
    return write_folder(tmp_path_factory.mktemp("disk") / "own", count=18, size=(30, 40))


@pytest.fixture(scope="module")
def expected(folder, tmp_path_factory):
    """What the training in memory ends in."""
    run = train(config_of(folder, storage="memory"), tmp_path_factory.mktemp("memory") / "run")
    return contents(run.path)


def config_of(folder, **changes):
    settings = {"img_size": 20, "crop": 18, "batch_size": 9, "workers": 0, "storage": "disk"}
    return tiny(folder, **(settings | changes))


def without_description(files_of_run):
    """Weights and metrics; the description of a checkpoint names the storage."""
    return {name: files_of_run[name] for name in ("model.safetensors", "metrics")}


def test_on_disk_it_trains_to_the_same_bits_as_in_memory(folder, expected, tmp_path):
    run = train(config_of(folder), tmp_path / "run")
    assert without_description(contents(run.path)) == without_description(expected)


def test_a_run_is_resumed_with_another_number_of_workers(folder, expected, tmp_path):
    train_until(4, config_of(folder), tmp_path / "run")
    run = resume(tmp_path / "run", workers=2)
    assert without_description(contents(run.path)) == without_description(expected)


def test_a_run_remembers_that_its_images_stay_on_disk(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(entries, "MAX_DECODED_BYTES", 1)
    watch = Watch()
    with pytest.raises(Interrupted):
        train(config_of(folder, storage="auto"), tmp_path / "run", callbacks=[stop_after(1), watch])
    assert sum(text.startswith("own: 28 images stay on disk") for text in watch.messages) == 1
    monkeypatch.undo()
    run = resume(tmp_path / "run")
    assert run.config.data.storage == "disk"
    assert run.is_finished


def test_files_that_changed_are_refused_when_the_run_goes_on(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "own")
    train_until(1, config_of(copy), tmp_path / "run")
    with open(copy / "cat" / "0.png", "ab") as file:
        file.write(b"\0")
    with pytest.raises(RunError, match="checksum of images and labels was"):
        resume(tmp_path / "run")


def test_a_damaged_file_ends_the_training_with_its_name(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "own")
    (copy / "dog" / "7.png").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"dog/7\.png: not an image"):
        train(config_of(copy, workers=1), tmp_path / "run")


def test_evaluation_decodes_a_batch_at_a_time(folder, tmp_path, monkeypatch):
    run = train(config_of(folder, epochs=1), tmp_path / "run")
    expected_evaluation = tc.evaluate(run)
    monkeypatch.setattr(entries, "MAX_DECODED_BYTES", 1)
    monkeypatch.setattr(files, "default_workers", lambda: 0)
    monkeypatch.setattr(tc.tasks.Task, "eval_batch_size", 3)
    sizes = []
    decode = files.EncodedImages.decode
    monkeypatch.setattr(
        files.EncodedImages, "decode", lambda images: sizes.append(len(images)) or decode(images)
    )
    evaluation = tc.evaluate(run)
    assert evaluation.predictions.tolist() == expected_evaluation.predictions.tolist()
    assert evaluation.loss == pytest.approx(expected_evaluation.loss, rel=1e-5)
    assert sizes == [3, 3, 2]
