import tarfile

import pytest
import torch

from torchcaps.data import load_dataset
from torchcaps.errors import DataError

from .makers import SHARED, needs_shared, picture, write_folder


def packed(root, path, inside=""):
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        archive.add(root, arcname=inside or ".")
    return path


@pytest.mark.parametrize("levels", [("",), ("train", "test")])
@pytest.mark.parametrize("inside", ["", "wrapped/twice"])
@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tgz"])
def test_an_archive_reads_as_its_folder(tmp_path, levels, inside, ending):
    root = write_folder(tmp_path / "own", count=11, levels=levels)
    archive = packed(root, tmp_path / f"own{ending}", inside)
    before = sorted(tmp_path.rglob("*"))
    for split in ("train", "test"):
        one, other = load_dataset(root, split), load_dataset(archive, split)
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
        assert (one.classes, one.name) == (other.classes, other.name)
    assert sorted(tmp_path.rglob("*")) == before


def test_one_color_image_in_either_split_makes_all_color(tmp_path):
    root = write_folder(tmp_path / "own", color=False, levels=("train", "test"))
    assert load_dataset(packed(root, tmp_path / "a.tar")).in_chans == 1
    picture().save(root / "test" / "dog" / "4.png")
    for split in ("train", "test"):
        assert load_dataset(packed(root, tmp_path / "b.tar"), split).in_chans == 3


def test_hidden_files_and_resizing(tmp_path):
    root = write_folder(tmp_path / "own")
    (root / "cat" / "._0.png").write_bytes(b"junk")
    (root / ".git" / "cat").mkdir(parents=True)
    (root / ".git" / "cat" / "a.png").write_bytes(b"junk")
    assert load_dataset(packed(root, tmp_path / "a.tar"), img_size=(4, 5)).images.shape == (
        8,
        3,
        4,
        5,
    )


def test_a_corrupt_member_is_named(tmp_path):
    root = write_folder(tmp_path / "own", levels=("train", "test"))
    (root / "train" / "cat" / "3.png").write_bytes(b"junk")
    with pytest.raises(DataError, match=r"a\.tar:\./train/cat/3\.png: not an image"):
        load_dataset(packed(root, tmp_path / "a.tar"))


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
def test_a_truncated_archive(tmp_path, name, kept):
    path = packed(write_folder(tmp_path / "own", size=(40, 40)), tmp_path / name)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data.rstrip(b"\0")) * kept)])
    with pytest.raises(DataError, match=f"{path}: (damaged or )?truncated "):
        load_dataset(path)


def test_not_class_folders(tmp_path):
    picture().save(tmp_path / "0.png")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "0.png", arcname="0.png")
    with pytest.raises(DataError, match=r"a\.tar: expected images as <class>/<image>"):
        load_dataset(tmp_path / "a.tar")


@pytest.mark.parametrize("place", ["", "cifar10-jpg", "cifar10/cifar10-jpg"])
def test_a_jpeg_copy_of_cifar10_is_found_and_says_so(tmp_path, place):
    root = write_folder(tmp_path / "own", levels=("train", "test"))
    (tmp_path / "root" / place).mkdir(parents=True)
    packed(root, tmp_path / "root" / place / "cifar10-jpg.tar.gz")
    assert load_dataset("cifar10", root=tmp_path / "root", cache_dir=tmp_path).name == "cifar10-jpg"


@pytest.mark.slow
@needs_shared("cifar10-jpg")
def test_the_jpeg_copy_of_cifar10_says_so():
    test = load_dataset("cifar10", "test", SHARED)
    assert test.name == "cifar10-jpg"
    assert test.labels.bincount().tolist() == [1000] * 10
    assert (test.img_size, test.in_chans) == ((32, 32), 3)
    assert test.classes[:3] == ("airplane", "automobile", "bird")
