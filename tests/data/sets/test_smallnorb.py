import gzip
import hashlib
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from torchcaps.data import load_dataset, read_matrix, read_norb
from torchcaps.data.sets.smallnorb import STEMS, matrix_bytes
from torchcaps.errors import UnknownNameError

from ..makers import assert_refused, class_members, refusal, write_norb

MAGIC = {
    "float32": 0x1E3D4C51,
    "float64": 0x1E3D4C53,
    "int32": 0x1E3D4C54,
    "uint8": 0x1E3D4C55,
    "int16": 0x1E3D4C56,
}
PACKED = 0x1E3D4C52
FACTORS = ("instance", "elevation", "azimuth", "lighting")
# Of all files of both splits with categories in turn: published by those who distribute the set.
CATEGORIES_MD5 = "fd5120d3f770ad57ebe620eb61a0b633"


def make_header(magic, shape):
    sizes = (*shape, 1, 1, 1)[: max(len(shape), 3)]
    return struct.pack(f"<Ii{len(sizes)}i", magic, len(shape), *sizes)


@settings(deadline=None, max_examples=50)
@given(
    array=st.sampled_from(sorted(MAGIC)).flatmap(
        lambda kind: arrays(kind, array_shapes(max_dims=5, max_side=4))
    ),
    is_packed=st.booleans(),
)
def test_every_type_comes_back(tmp_path_factory, array, is_packed):
    path = tmp_path_factory.mktemp("norb") / "a.mat"
    content = make_header(MAGIC[array.dtype.name], array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content, 1, mtime=0) if is_packed else content)
    matrix = read_matrix(path)
    assert matrix.dtype == array.dtype
    np.testing.assert_array_equal(matrix, array)
    assert matrix_bytes(array) == content


def test_files_are_as_published():
    assert len(matrix_bytes(np.zeros((1, 2, 96, 96), np.uint8))) == 24 + 2 * 96 * 96
    assert len(matrix_bytes(np.zeros((24_300, 4), np.int32))) == 388_820
    content = matrix_bytes((np.arange(24_300) % 5).astype(np.int32))
    assert hashlib.md5(content).hexdigest() == CATEGORIES_MD5


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            matrix_bytes(np.zeros(3, np.int32)) + b"x",
            r"its header \[3\] asks for a file of 32 bytes, got 33",
        ),
        (make_header(PACKED, (2, 2)) + b"1234", "that is not packed, got 0x1E3D4C52"),
        (
            struct.pack("<Ii3i", MAGIC["uint8"], 99, 1, 1, 1),
            "got 0x1E3D4C55 and 99 axes",
        ),
    ],
)
def test_damaged_matrices_are_refused(tmp_path, content, words):
    (tmp_path / "a.mat").write_bytes(content)
    with refusal(words):
        read_matrix(tmp_path / "a.mat")


def test_a_type_that_cannot_be_written():
    with refusal("array: expected one of float32, .* got int64", ValueError):
        matrix_bytes(np.zeros(3, np.int64))


def test_left_stays_left_and_right_stays_right(tmp_path):
    photographs, _ = write_norb(tmp_path, count=5)["train"]
    stereo = read_norb(tmp_path, halve=False)
    assert torch.equal(stereo.images, torch.from_numpy(photographs))
    for eye, name in enumerate(("left", "right")):
        images = stereo.images[:, eye, None]
        assert torch.equal(read_norb(tmp_path, eyes=name, halve=False).images, images)


def test_halving_is_the_mean_of_four_pixels(tmp_path):
    photographs, _ = write_norb(tmp_path, count=5)["test"]
    means = photographs.reshape(5, 2, 48, 2, 48, 2).astype(float).mean(axis=(3, 5))
    images = read_norb(tmp_path, "test").images.numpy()
    np.testing.assert_array_equal(images, np.floor(means + 0.5))


def test_a_photograph_has_its_category_and_codes(tmp_path):
    _, codes = write_norb(tmp_path, side=8)["train"]
    toys = read_norb(tmp_path)
    assert toys.labels.tolist() == [0, 1, 2, 3, 4] * 2
    assert toys.classes == ("animal", "human", "airplane", "truck", "car")
    for name, column in zip(FACTORS, codes.T, strict=True):
        assert toys.targets[name].tolist() == column.tolist()


def test_no_toy_is_in_both_splits_nor_on_both_sides_of_a_holdout(tmp_path):
    write_norb(tmp_path, count=100, side=8)
    train = read_norb(tmp_path)
    test = read_norb(tmp_path, "test")
    assert not set(train.targets["instance"].tolist()) & set(test.targets["instance"].tolist())
    training, validation = train.train_val_split(0.2)
    toys = class_members(validation, "instance")
    assert not class_members(training, "instance") & toys
    assert len(toys) == 5
    assert validation.labels.unique().tolist() == [0, 1, 2, 3, 4]


def test_other_sizes_stay_as_they_are(tmp_path):
    write_norb(tmp_path, side=48, eyes=1)
    assert read_norb(tmp_path).images.shape == (10, 1, 48, 48)


def test_by_name_gzipped_and_by_path(tmp_path):
    folder = tmp_path / "smallnorb"
    write_norb(folder, count=5)
    for path in list(folder.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
        path.unlink()
    toys = load_dataset("smallnorb", "test", tmp_path, cache_dir=tmp_path / "none")
    assert (toys.images.shape, toys.name) == ((5, 2, 48, 48), "smallnorb")
    assert len(load_dataset(folder)) == 5
    for path in folder.glob(f"{STEMS['train']}*"):
        path.unlink()
    assert len(load_dataset(folder, "test")) == 5
    # Another set in the same layout is not meant.
    assert_refused(
        "torchcaps data fetch synthnorb", "synthnorb", root=folder, cache_dir=tmp_path / "none"
    )


def test_an_absent_file_is_named(tmp_path):
    write_norb(tmp_path, side=8)
    (tmp_path / f"{STEMS['test']}-info.mat").unlink()
    with refusal(rf"no {STEMS['test']}-info\.mat"):
        read_norb(tmp_path, "test")


@pytest.mark.parametrize(
    ("kind", "matrix", "words"),
    [
        ("dat", np.zeros((10, 8, 8), np.uint8), r"expected photographs \[n, eyes, height, width\]"),
        ("cat", np.full(10, 5, np.int32), "label 5 of image 0"),
        ("info", np.zeros((10, 3), np.int32), r"codes \[n, 4\], .* \[10, 3\]"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(tmp_path, kind, matrix, words):
    write_norb(tmp_path, side=8)
    (tmp_path / f"{STEMS['train']}-{kind}.mat").write_bytes(matrix_bytes(matrix))
    with refusal(words):
        read_norb(tmp_path)


def test_other_eyes_are_refused(tmp_path):
    with refusal("unknown choice of eyes 'rihgt'; did you mean", UnknownNameError):
        read_norb(tmp_path, eyes="rihgt")
