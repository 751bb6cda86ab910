"""Sizes that are checked before memory is taken, errors of one sentence, only regular files."""

import os
import struct
import zipfile

import numpy as np
import pytest

from torchcaps import load
from torchcaps.data import decode_image, entries, load_dataset, read_idx, reading
from torchcaps.errors import DataError, TorchcapsError
from torchcaps.training import Run

from .makers import SETS, assert_refused, picture, refusal, write_folder


@pytest.fixture
def small_floor(monkeypatch):
    """A file may take 1 MiB, or as much as it has, so that tests stay small."""
    monkeypatch.setattr(reading, "FLOOR", 1 << 20)
    monkeypatch.setattr(reading, "RATIO", 1)


@pytest.mark.usefixtures("small_floor")
@pytest.mark.parametrize("kind", SETS)
def test_a_small_set_of_every_format_fits_and_has_the_name_of_its_file(tmp_path, kind):
    (tmp_path / kind).mkdir()
    path = SETS[kind](tmp_path / kind)
    assert load_dataset(path).name == path.name.split(".")[0]


IMAGE_FILES = {  # by format, where they differ from all files of bytes
    "idx": "*/train*",
    "idx-gz": "*/train*",
    "tar": "own.tar",
    "tar-gz": "own.tar.gz",
    "cifar": "data*",
    "norb": "*training*",
    "svhn": "train*",
    "affnist": "*/training*/*",
}


@pytest.mark.usefixtures("mat_in_process")
@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("kind", SETS)
def test_a_truncated_file_of_every_format_is_named(tmp_path, kind, share):
    path = SETS[kind](tmp_path)
    load_dataset(path)  # whole, it is read
    files = sorted(
        file
        for file in tmp_path.rglob(IMAGE_FILES.get(kind, "*.[np]*"))
        if file.suffix != ".csv" and file.is_file()
    )
    for file in (files[0], files[-1]):
        contents = file.read_bytes()
        end = len(contents.rstrip(b"\0"))  # an archive ends with blocks of zeros
        file.write_bytes(contents[: int(end * share)])
        with refusal(str(file)):
            for split in ("train", "test"):
                load_dataset(path, split)
        file.write_bytes(contents)


@pytest.mark.usefixtures("small_floor")
def test_the_error_tells_how_to_go_on(tmp_path):
    arrays = {"images": np.zeros((400, 64, 64), np.uint8), "labels": np.arange(400) % 2}
    path = tmp_path / "own.npz"
    np.savez_compressed(path, **arrays)
    with pytest.raises(DataError) as caught:
        load_dataset(path)
    assert str(caught.value) == (
        f"{path}: it asks for 2 MiB of memory, more than 1 times its size on disk; "
        "if that is right, save it without compression"
    )
    np.savez(path, **arrays)
    images = load_dataset(path)
    assert len(images) == 320
    images.images.add_(1)  # not a view of a file


def test_the_limit_itself_is_allowed_and_one_byte_more_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "FLOOR", 1000)
    (tmp_path / "a").touch()
    reading.check_memory(tmp_path / "a", 1000)
    with refusal("a: it asks for"):
        reading.check_memory(tmp_path / "a", 1001)


def test_decoded_images_count_together(tmp_path):
    root = write_folder(tmp_path / "own", count=5, size=(8, 8))
    num_bytes = 8 * 3 * 64 * 64
    assert len(load_dataset(root, img_size=64, max_bytes=num_bytes)) == 8
    assert_refused(
        r"own: its images ask for .*--max-bytes.*--storage",
        root,
        img_size=64,
        max_bytes=num_bytes - 1,
    )
    for path in (SETS["npz"](tmp_path), root):
        with refusal("max_bytes: expected at least 1", ValueError):
            load_dataset(path, max_bytes=0)


@pytest.mark.parametrize("kind", ["folder", "tar", "tar-gz"])
def test_images_far_larger_than_their_files_are_refused(tmp_path, monkeypatch, kind):
    path = SETS[kind](tmp_path)
    monkeypatch.setattr(entries, "FLOOR", 1000)
    assert len(load_dataset(path, img_size=20)) == 4
    assert_refused("its images ask for", path, img_size=200)


def test_masks_count_together(tmp_path):
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        for index in range(4):
            picture((8, 6), color=False).point(lambda value: value % 2).save(
                tmp_path / kind / f"{index}.png"
            )
    assert len(load_dataset(tmp_path, max_bytes=4 * 48)) == 3
    assert_refused("its images ask for", tmp_path, max_bytes=4 * 48 - 1)


def test_ten_thousand_classes_are_enough(tmp_path):
    path = tmp_path / "own.npz"
    for count, dtype in ((10_000, int), (10_001, int), (10_001, str)):
        labels = np.arange(count).astype(dtype)
        np.savez(path, x_train=np.zeros((count, 1, 1), np.uint8), y_train=labels)
        if count == 10_000:
            assert load_dataset(path).num_classes == count
        else:
            assert_refused("expected at most 10,000 classes, got 10,001", path)


# Errors.


def test_the_cause_is_kept(tmp_path):
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
        header = b"{'shape': (".ljust(20)
        archive.writestr("images.npy", b"\x93NUMPY\1\0" + struct.pack("<H", 20) + header)
        archive.writestr("labels.npy", b"")
    message = r"cannot be read as an \.npz of plain arrays \(TokenError"
    with pytest.raises(DataError, match=message) as caught:
        load_dataset(tmp_path / "own.npz")
    assert type(caught.value.__cause__).__name__ == "TokenError"


@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError("deep"), OverflowError("big"), OSError(5, "I/O error")]
)
def test_errors_of_every_kind_are_one_sentence(error):
    with (
        refusal(r"^a\.bin: cannot be read \(.+\)$"),
        reading.read_errors("a.bin"),
    ):
        raise error


# Only regular files.


@pytest.mark.parametrize("name", ["run/config.json", "model.safetensors", "photo.png", "a.idx"])
def test_a_fifo_is_never_read(tmp_path, name):
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / name)
    readers = {
        "run/config.json": lambda path: Run.open(path.parent).config,
        "model.safetensors": load,
        "photo.png": decode_image,
        "a.idx": read_idx,
    }
    with refusal("expected a regular file, got a FIFO or a device", TorchcapsError):
        readers[name](tmp_path / name)
