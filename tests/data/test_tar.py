"""Archives read as the folder that they hold, without extracting anything."""

import pytest
import torch

from torchcaps.data import load_dataset

from .makers import assert_refused, pack, picture, write_folder


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


def test_hidden_files_are_skipped_and_images_resized(tmp_path):
    root = write_folder(tmp_path / "own")
    (root / "cat" / "._0.png").write_bytes(b"junk")
    (root / ".git" / "cat").mkdir(parents=True)
    (root / ".git" / "cat" / "a.png").write_bytes(b"junk")
    images = load_dataset(pack(root, tmp_path / "a.tar"), img_size=(4, 5)).images
    assert images.shape == (8, 3, 4, 5)


def test_an_archive_without_class_folders_is_refused(tmp_path):
    picture().save(tmp_path / "0.png")
    path = pack(tmp_path / "0.png", tmp_path / "a.tar", "0.png")
    assert_refused(r"a\.tar: no class folders with images", path)


@pytest.mark.parametrize("folder", ["", "cifar10-jpg", "cifar10/cifar10-jpg"])
def test_a_jpeg_copy_of_cifar10_is_found_and_says_so(tmp_path, folder):
    root = write_folder(tmp_path / "own", levels=("train", "test"))
    place = tmp_path / "root" / folder
    place.mkdir(parents=True)
    pack(root, place / "cifar10-jpg.tar.gz")
    assert load_dataset("cifar10", root=tmp_path / "root", cache_dir=tmp_path).name == "cifar10-jpg"
