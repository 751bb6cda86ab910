import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.data import ReadRequest, load_dataset, read_folder
from torchcaps.data.images import natural_key
from torchcaps.errors import DataError

from .makers import picture, write_folder


def test_forty_three_classes_of_color(tmp_path):
    classes = [str(i) for i in range(43)]
    root = write_folder(
        tmp_path / "signs", classes, count=2, size=(32, 32), levels=("train", "test")
    )
    train, test = (load_dataset(root, split) for split in ("train", "test"))
    assert train.classes == test.classes == tuple(classes)
    assert (len(train), train.in_chans, train.img_size, train.name) == (86, 3, (32, 32), "signs")
    assert torch.equal(train.labels, torch.arange(43).repeat_interleave(2))
    stored = np.asarray(Image.open(root / "train" / "10" / "1.png"))
    assert np.array_equal(train.images[21].movedim(0, -1).numpy(), stored)


def test_three_classes_of_gray(tmp_path):
    root = write_folder(tmp_path / "gray", ("x", "y", "z"), count=10, size=(40, 28), color=False)
    train, test = (load_dataset(root, split) for split in ("train", "test"))
    assert (train.in_chans, train.img_size) == (1, (40, 28))
    assert train.labels.bincount().tolist() == [8, 8, 8]
    assert test.labels.bincount().tolist() == [2, 2, 2]
    every = {image.numpy().tobytes() for image in (*train.images, *test.images)}
    assert len(every) == 30


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_image_file_of_no_bytes_is_refused(tmp_path, split):
    root = write_folder(tmp_path / "own", count=4, levels=("train", "test"))
    (root / split / "cat" / "9.png").touch()
    with pytest.raises(DataError, match=r"9\.png"):
        load_dataset(root, split)


def test_natural_order():
    assert sorted(["img10", "img2", "b", "img1", "10", "9"], key=natural_key) == [
        "9",
        "10",
        "b",
        "img1",
        "img2",
        "img10",
    ]


def test_files_come_in_natural_order(tmp_path):
    root = write_folder(tmp_path / "own", count=12, levels=("train", "test"))
    expected = [np.asarray(Image.open(root / "test" / "cat" / f"{i}.png")) for i in range(12)]
    assert np.array_equal(
        load_dataset(root, "test").images[:12].movedim(1, -1).numpy(), np.stack(expected)
    )


def test_hidden_and_foreign_files_are_passed_over(tmp_path):
    root = write_folder(tmp_path / "own")
    (root / ".cache").mkdir()
    (root / "__MACOSX").mkdir()
    (root / "README.txt").write_text("hello")
    (root / "cat" / ".thumb.png").write_bytes(b"junk")
    (root / "cat" / "notes.txt").write_text("hello")
    assert len(load_dataset(root)) == 8
    assert load_dataset(root).classes == ("cat", "dog")


def test_one_color_image_in_either_split_makes_all_color(tmp_path):
    root = write_folder(tmp_path / "own", color=False, levels=("train", "test"))
    assert load_dataset(root).in_chans == 1
    picture().save(root / "test" / "dog" / "0.png")
    train = load_dataset(root)
    assert train.in_chans == 3
    assert torch.equal(train.images[:, 0], train.images[:, 2])
    assert load_dataset(root, in_chans=1).in_chans == 1


def test_mixed_sizes_say_what_to_do(tmp_path):
    root = write_folder(tmp_path / "own", levels=("train", "test"))
    picture((9, 9)).save(root / "train" / "dog" / "3.png")
    with pytest.raises(
        DataError, match=r"0\.png is 8 × 6, .*dog/3\.png is 9 × 9.*give img_size \(--img-size\)"
    ):
        load_dataset(root)
    assert load_dataset(root, img_size=(5, 7)).img_size == (5, 7)
    assert load_dataset(root, img_size=16).img_size == (16, 16)
    with pytest.raises(DataError, match="img_size: expected sides of at least 1 pixel, got 0 × 4"):
        load_dataset(root, img_size=(0, 4))


def test_a_corrupt_image_is_named(tmp_path):
    root = write_folder(tmp_path / "own", levels=("train", "test"))
    path = root / "train" / "dog" / "2.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match=f"{path}: "):
        load_dataset(root)


def test_an_empty_class_is_named_with_its_path(tmp_path):
    root = write_folder(tmp_path / "own")
    (root / "eel").mkdir()
    with pytest.raises(DataError, match=f"{root / 'eel'}: class 'eel' is empty; expected images"):
        load_dataset(root)


@pytest.mark.parametrize("levels", [("",), ("train", "test")])
def test_one_class_only(tmp_path, levels):
    root = write_folder(tmp_path / "own", ("cat",), levels=levels)
    with pytest.raises(DataError, match="own: expected at least two classes to train on, got cat"):
        load_dataset(root)


def test_too_few_to_split(tmp_path):
    root = write_folder(tmp_path / "own", count=1)
    with pytest.raises(
        DataError, match="own: no class has two images, so that none can be held out"
    ):
        load_dataset(root)
    assert len(load_dataset(write_folder(tmp_path / "two", count=2), "test")) == 2


def test_no_class_folders(tmp_path):
    picture().save(tmp_path / "0.png")
    with pytest.raises(DataError, match=r"no class folders in it; expected .*/<class>/<image>"):
        load_dataset(tmp_path)


@pytest.mark.parametrize(("there", "absent"), [("train", "test"), ("test", "train")])
def test_half_a_split(tmp_path, there, absent):
    root = write_folder(tmp_path / "own", levels=(there,))
    with pytest.raises(DataError, match=f"{there}/ has no {absent}/ beside it"):
        load_dataset(root)
    assert load_dataset(root / there).num_classes == 2


def test_a_class_called_train(tmp_path):
    root = write_folder(tmp_path / "vehicles", ("bus", "train"))
    assert load_dataset(root).classes == ("bus", "train")


def test_capital_train_and_test(tmp_path):
    root = write_folder(tmp_path / "own", levels=("Train", "Test"))
    assert len(load_dataset(root, "test")) == 10


def test_test_classes_are_training_classes(tmp_path):
    root = write_folder(tmp_path / "own", levels=("train", "test"))
    write_folder(tmp_path / "more", ("eel",), levels=("test",))
    (tmp_path / "more" / "test" / "eel").rename(root / "test" / "eel")
    with pytest.raises(DataError, match="test class 'eel' is not among the training classes"):
        load_dataset(root, "test")


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="nowhere: cannot be read"):
        read_folder(tmp_path / "nowhere", ReadRequest("train"))
