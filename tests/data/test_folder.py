"""Class folders: what becomes a class, a split, an image, and what is refused."""

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.data import Preprocess, load_dataset
from torchcaps.data.inputs import list_inputs

from .makers import assert_refused, picture, write_folder

SPLITS = ("train", "test")


@pytest.fixture
def split_folder(tmp_path):
    """Five color pictures of cats and dogs for training, five for testing."""
    return write_folder(tmp_path / "own", levels=SPLITS)


def stored(path):
    """The pixels of a file as `[channels, height, width]`."""
    return torch.from_numpy(np.array(Image.open(path))).movedim(-1, 0)


def test_forty_three_classes_of_color(tmp_path):
    classes = tuple(map(str, range(43)))
    root = write_folder(tmp_path / "signs", classes, count=2, size=(32, 32), levels=SPLITS)
    train = load_dataset(root)
    assert train.classes == load_dataset(root, "test").classes == classes
    assert (len(train), train.in_chans, train.img_size, train.name) == (86, 3, (32, 32), "signs")
    assert torch.equal(train.labels, torch.arange(43).repeat_interleave(2))
    assert torch.equal(train.images[21], stored(root / "train" / "10" / "1.png"))


@pytest.mark.parametrize("split", SPLITS)
def test_an_image_file_of_no_bytes_is_refused(split_folder, split):
    (split_folder / split / "cat" / "9.png").touch()
    assert_refused(r"9\.png", split_folder, split)


def test_hidden_and_foreign_files_are_skipped(tmp_path):
    root = write_folder(tmp_path / "own")
    (root / ".cache").mkdir()
    (root / "__MACOSX").mkdir()
    (root / "README.txt").write_text("hello")
    (root / "cat" / ".thumb.png").write_bytes(b"junk")
    (root / "cat" / "notes.txt").write_text("hello")
    assert len(load_dataset(root)) == 8
    assert load_dataset(root).classes == ("cat", "dog")


def test_one_color_image_in_either_split_makes_all_color(tmp_path):
    root = write_folder(tmp_path / "own", color=False, levels=SPLITS)
    assert load_dataset(root).in_chans == 1
    picture().save(root / "test" / "dog" / "0.png")
    train = load_dataset(root)
    assert train.in_chans == 3
    assert torch.equal(train.images[:, 0], train.images[:, 2])
    assert load_dataset(root, in_chans=1).in_chans == 1


def test_mixed_sizes_are_refused_unless_they_are_resized(split_folder):
    picture((9, 9)).save(split_folder / "train" / "dog" / "3.png")
    message = r"dog/3\.png: expected an image of 8 × 6 .* got 9 × 9; give img_size \(--img-size\)"
    assert_refused(message, split_folder)
    assert load_dataset(split_folder, img_size=(5, 7)).img_size == (5, 7)
    assert load_dataset(split_folder, img_size=16).img_size == (16, 16)


def test_an_empty_folder_is_said(tmp_path):
    root = write_folder(tmp_path / "own")
    (root / "eel").mkdir()
    assert any("left out 1 empty folder (eel)" in note for note in load_dataset(root).notes)


@pytest.mark.parametrize("levels", [("",), SPLITS])
def test_one_class_alone_is_refused(tmp_path, levels):
    root = write_folder(tmp_path / "own", ("cat",), levels=levels)
    assert_refused("own: expected at least two classes to train on, got cat", root)


def test_one_image_a_class_cannot_be_split(tmp_path):
    root = write_folder(tmp_path / "own", count=1)
    message = "own: no class has two images, so that none can be held out"
    assert_refused(message, root)
    assert len(load_dataset(write_folder(tmp_path / "two", count=2), "test")) == 2


@pytest.mark.parametrize("parts", [("a", "b"), ("images", "masks")])
def test_a_folder_of_files_that_are_no_images_names_them(tmp_path, parts):
    for part in parts:
        (tmp_path / part).mkdir()
        (tmp_path / part / "scan.nii.gz").touch()
    files = f"it holds {parts[0]}/scan.nii.gz, {parts[1]}/scan.nii.gz"
    assert_refused(f"no .*images.*; {files}", tmp_path)
    [item] = list_inputs(str(tmp_path), Preprocess((28, 28), 1))
    assert str(item.source) == f"{tmp_path}: no image in it; {files}"


def test_a_folder_without_class_folders_is_refused(tmp_path):
    picture().save(tmp_path / "0.png")
    assert_refused(
        r"no class folders with images .* expected <class>/<image>, .* the path of a \.csv",
        tmp_path,
    )


@pytest.mark.parametrize("level", ["train", "test", "own/pictures"])
def test_folders_that_wrap_all_images_are_skipped(tmp_path, level):
    root = write_folder(tmp_path / "own", levels=(level,))
    assert load_dataset(root).classes == ("cat", "dog")
    assert torch.equal(load_dataset(root).images, load_dataset(root / level).images)


def test_a_class_may_be_called_train(tmp_path):
    root = write_folder(tmp_path / "vehicles", ("bus", "train"))
    assert load_dataset(root).classes == ("bus", "train")


def test_a_test_class_without_training_images_is_refused(split_folder):
    write_folder(split_folder, ("eel",), levels=("test",))
    assert_refused("test class 'eel' is not among the training classes", split_folder, "test")
