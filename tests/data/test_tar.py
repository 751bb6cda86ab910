"""Archives read as the folder that they hold, without extracting anything."""

import tarfile

import pytest
import torch

from torchcaps.data import load_dataset
from torchcaps.errors import DataError

from .makers import SHARED, needs_shared, picture, write_folder


def pack(root, path, inside="."):
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        archive.add(root, arcname=inside)
    return path


@pytest.mark.parametrize("levels", [("",), ("train", "test")])
@pytest.mark.parametrize(
    ("ending", "inside"), [(".tar", "."), (".tar.gz", "wrapped/twice"), (".tgz", ".")]
)
def test_an_archive_reads_as_its_folder(tmp_path, levels, ending, inside):
    root = write_folder(tmp_path / "own", count=11, levels=levels)
    archive = pack(root, tmp_path / f"own{ending}", inside)
    files = sorted(tmp_path.rglob("*"))
    for split in ("train", "test"):
        from_folder = load_dataset(root, split)
        from_archive = load_dataset(archive, split)
        assert torch.equal(from_folder.images, from_archive.images)
        assert torch.equal(from_folder.labels, from_archive.labels)
        assert from_folder.classes == from_archive.classes
        assert from_folder.name == from_archive.name
    assert sorted(tmp_path.rglob("*")) == files


def test_one_color_image_in_either_split_makes_all_color(tmp_path):
    root = write_folder(tmp_path / "own", color=False, levels=("train", "test"))
    assert load_dataset(pack(root, tmp_path / "a.tar")).in_chans == 1
    picture().save(root / "test" / "dog" / "4.png")
    colored = pack(root, tmp_path / "b.tar")
    for split in ("train", "test"):
        assert load_dataset(colored, split).in_chans == 3


def test_hidden_files_are_skipped_and_images_resized(tmp_path):
    root = write_folder(tmp_path / "own")
    (root / "cat" / "._0.png").write_bytes(b"junk")
    (root / ".git" / "cat").mkdir(parents=True)
    (root / ".git" / "cat" / "a.png").write_bytes(b"junk")
    images = load_dataset(pack(root, tmp_path / "a.tar"), img_size=(4, 5)).images
    assert images.shape == (8, 3, 4, 5)


def test_a_corrupt_member_is_named(tmp_path):
    root = write_folder(tmp_path / "own", levels=("train", "test"))
    (root / "train" / "cat" / "3.png").write_bytes(b"junk")
    with pytest.raises(DataError, match=r"a\.tar:\./train/cat/3\.png@\d+\+4: not an image"):
        load_dataset(pack(root, tmp_path / "a.tar"))


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_archive_is_refused(tmp_path, name, share):
    path = pack(write_folder(tmp_path / "own", size=(40, 40)), tmp_path / name)
    contents = path.read_bytes()
    path.write_bytes(contents[: int(len(contents.rstrip(b"\0")) * share)])
    with pytest.raises(DataError, match=f"{path}: (damaged or )?truncated"):
        load_dataset(path)


def test_an_archive_without_class_folders_is_refused(tmp_path):
    picture().save(tmp_path / "0.png")
    path = pack(tmp_path / "0.png", tmp_path / "a.tar", "0.png")
    with pytest.raises(DataError, match=r"a\.tar: expected images as <class>/<image>"):
        load_dataset(path)


@pytest.mark.parametrize("folder", ["", "cifar10-jpg", "cifar10/cifar10-jpg"])
def test_a_jpeg_copy_of_cifar10_is_found_and_says_so(tmp_path, folder):
    root = write_folder(tmp_path / "own", levels=("train", "test"))
    place = tmp_path / "root" / folder
    place.mkdir(parents=True)
    pack(root, place / "cifar10-jpg.tar.gz")
    assert load_dataset("cifar10", root=tmp_path / "root", cache_dir=tmp_path).name == "cifar10-jpg"


@pytest.mark.slow
@needs_shared("cifar10-jpg")
def test_the_jpeg_copy_of_cifar10_says_so():
    test = load_dataset("cifar10", "test", SHARED)
    assert test.name == "cifar10-jpg"
    assert test.labels.bincount().tolist() == [1000] * 10
    assert (test.img_size, test.in_chans) == ((32, 32), 3)
    assert test.classes[:3] == ("airplane", "automobile", "bird")
