import gzip

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from torchcaps.data import load_dataset, read_idx

from .makers import assert_refused, idx_bytes, refusal, write_idx_set

ARRAYS = arrays(np.uint8, array_shapes(min_dims=1, max_dims=4, max_side=6))


@settings(deadline=None, max_examples=50)
@given(array=ARRAYS, packed=st.booleans())
def test_an_array_is_read_as_it_was_written(tmp_path_factory, array, packed):
    data = idx_bytes(array)
    path = tmp_path_factory.mktemp("idx") / "any-name"
    path.write_bytes(gzip.compress(data, mtime=0) if packed else data)
    assert np.array_equal(read_idx(path).numpy(), array)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"\x00\x00\x08\x01\x00\x00\x00\x02ab!",
            r"its header \[2\] asks for a file of 10 bytes, got 11",
        ),
        (
            b"\x00\x00\x0d\x01\x00\x00\x00\x01abcd",
            "wrong magic number 0x00000d01, expected 0x000008",
        ),
        (bytes([0, 1, 8, 1, 0, 0, 0, 2, 3, 4]), "wrong magic number 0x00010801"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x00", "asks for a file of 8 bytes, got 8"),
        (
            b"\x00\x00\x08\x03\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00",
            "truncated or damaged",
        ),
        (b"", "truncated or no IDX file"),
    ],
)
def test_damaged_files_name_their_path(tmp_path, data, message):
    path = tmp_path / "file"
    path.write_bytes(data)
    with refusal(f"{path}: .*{message}"):
        read_idx(path)


@pytest.mark.parametrize("gz", [False, True])
def test_a_folder_of_four_files_is_a_set(tmp_path, gz):
    arrays = write_idx_set(tmp_path / "own", gz=gz)
    for split, stem in (("train", "train"), ("test", "t10k")):
        images = load_dataset(tmp_path / "own", split)
        assert np.array_equal(images.images[:, 0].numpy(), arrays[f"{stem}-images-idx3-ubyte"])
        assert np.array_equal(images.labels.numpy(), arrays[f"{stem}-labels-idx1-ubyte"])
        assert images.classes == tuple("0123456789")
        assert images.name == "own"


def test_names_may_have_a_dot(tmp_path):
    write_idx_set(tmp_path)
    for path in list(tmp_path.iterdir()):
        path.rename(tmp_path / path.name.replace("-idx", ".idx"))
    assert len(load_dataset(tmp_path)) == 20


def test_images_of_four_axes_have_channels(tmp_path):
    write_idx_set(tmp_path)
    color = np.random.default_rng(1).integers(0, 256, (20, 3, 4, 5), dtype=np.uint8)
    (tmp_path / "train-images-idx3-ubyte").unlink()
    (tmp_path / "train-images-idx4-ubyte").write_bytes(idx_bytes(color))
    assert np.array_equal(load_dataset(tmp_path).images.numpy(), color)


def test_a_label_outside_the_training_classes_is_refused(tmp_path):
    write_idx_set(tmp_path, classes=4)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(
        idx_bytes(np.array([0] * 9 + [4], dtype=np.uint8))
    )
    message = "t10k-labels-idx1-ubyte: label 4 of image 9 lies outside the 4 classes"
    assert_refused(message, tmp_path, "test")


@pytest.mark.parametrize(
    ("file", "count", "message"),
    [
        ("labels-idx1", 19, r"got \[19\] for \[20, 6, 5\]"),
        ("images-idx3", 20, r"for images of 3 or 4 axes, got \[20\] for \[20\]"),
    ],
)
def test_labels_that_do_not_fit_the_images_are_refused(tmp_path, file, count, message):
    write_idx_set(tmp_path)
    (tmp_path / f"train-{file}-ubyte").write_bytes(idx_bytes(np.arange(count, dtype=np.uint8)))
    assert_refused(message, tmp_path)


@pytest.mark.parametrize("kind", ["images", "labels"])
def test_a_missing_file_is_named(tmp_path, kind):
    write_idx_set(tmp_path)
    next(tmp_path.glob(f"t10k-{kind}*")).unlink()
    assert_refused(f"no t10k-{kind}-idx", tmp_path, "test")


def test_images_can_be_written_to(tmp_path):
    write_idx_set(tmp_path)
    images = load_dataset(tmp_path).images
    images += 1
    assert torch.equal(images, load_dataset(tmp_path).images + 1)
