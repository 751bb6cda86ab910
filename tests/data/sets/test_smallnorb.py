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
from torchcaps.errors import DataError, UnknownNameError

MAGIC = {
    "float32": 0x1E3D4C51,
    "float64": 0x1E3D4C53,
    "int32": 0x1E3D4C54,
    "uint8": 0x1E3D4C55,
    "int16": 0x1E3D4C56,
}
PACKED = 0x1E3D4C52
TOYS = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}
# Of all files of both splits with categories in turn: published by those who distribute the set.
CATEGORIES_MD5 = "fd5120d3f770ad57ebe620eb61a0b633"


def header(magic, shape):
    sizes = (*shape, 1, 1, 1)[: max(len(shape), 3)]
    return struct.pack(f"<Ii{len(sizes)}i", magic, len(shape), *sizes)


def write_norb(folder, count=10, side=96, eyes=2, stems=STEMS):
    """Both splits with `count` scenes; returns the photographs by split."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for split, stem in stems.items():
        random = np.random.default_rng(len(stem))
        photographs = random.integers(0, 256, (count, eyes, side, side), dtype=np.uint8)
        toys = np.array(TOYS[split])[np.arange(count) // 5 % 5]
        view = random.integers(0, [9, 18, 6], (count, 3))
        info = np.stack([toys, view[:, 0], 2 * view[:, 1], view[:, 2]], axis=1)
        for kind, values in (("dat", photographs), ("cat", np.arange(count) % 5), ("info", info)):
            values = values if kind == "dat" else values.astype(np.int32)
            data = header(MAGIC[values.dtype.name], values.shape) + values.tobytes()
            (folder / f"{stem}-{kind}.mat").write_bytes(data)
        written[split] = photographs, info
    return written


@settings(deadline=None)
@given(
    array=st.sampled_from(sorted(MAGIC)).flatmap(
        lambda kind: arrays(kind, array_shapes(max_dims=5, max_side=4))
    ),
    packed=st.booleans(),
)
def test_every_type_comes_back(tmp_path_factory, array, packed):
    path = tmp_path_factory.mktemp("norb") / "a.mat"
    data = header(MAGIC[array.dtype.name], array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(data, 1, mtime=0) if packed else data)
    found = read_matrix(path)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)
    assert matrix_bytes(array) == data


def test_headers_are_as_long_as_published():
    assert len(matrix_bytes(np.zeros((1, 2, 96, 96), np.uint8))) == 24 + 2 * 96 * 96
    assert len(matrix_bytes(np.zeros(24_300, np.int32))) == 97_220
    assert len(matrix_bytes(np.zeros((24_300, 4), np.int32))) == 388_820


def test_the_published_categories_are_in_turn(tmp_path):
    data = header(0x1E3D4C54, (24_300,)) + (np.arange(24_300) % 5).astype("<i4").tobytes()
    assert hashlib.md5(data).hexdigest() == CATEGORIES_MD5
    (tmp_path / "cat.mat").write_bytes(data)
    assert np.bincount(read_matrix(tmp_path / "cat.mat")).tolist() == [4860] * 5
    assert (
        hashlib.md5(matrix_bytes((np.arange(24_300) % 5).astype(np.int32))).hexdigest()
        == CATEGORIES_MD5
    )


def test_the_sixth_type_is_named(tmp_path):
    (tmp_path / "a.mat").write_bytes(header(PACKED, (2, 2)) + b"1234")
    with pytest.raises(DataError, match="got packed, which is not read here"):
        read_matrix(tmp_path / "a.mat")


def test_every_truncation_is_one_sentence(tmp_path):
    whole = matrix_bytes(np.arange(6, dtype=np.int32).reshape(2, 3))
    for length in range(len(whole)):
        (tmp_path / "a.mat").write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"a\.mat: truncated") as caught:
            read_matrix(tmp_path / "a.mat")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            matrix_bytes(np.zeros(3, np.int32)) + b"x",
            r"too long, the header \[3\] asks for 12 bytes of data, got 13",
        ),
        (
            header(0x1E3D4C99, (3,)) + b"x" * 12,
            r"expected the magic number of a binary matrix .*, got 0x1E3D4C99",
        ),
        (
            header(MAGIC["uint8"], (-3, 1)) + b"x" * 12,
            r"damaged, the header \[-3, 1\] has a size below 1",
        ),
        (struct.pack("<Ii3i", MAGIC["uint8"], 99, 1, 1, 1), "header of a binary matrix of 99 axes"),
    ],
)
def test_damaged_matrices(tmp_path, data, words):
    (tmp_path / "a.mat").write_bytes(data)
    with pytest.raises(DataError, match=words):
        read_matrix(tmp_path / "a.mat")


def test_a_type_that_cannot_be_written():
    with pytest.raises(ValueError, match="got int64"):
        matrix_bytes(np.zeros(3, np.int64))


def test_left_stays_left_and_right_stays_right(tmp_path):
    photographs, _ = write_norb(tmp_path)["train"]
    both = read_norb(tmp_path, halve=False)
    torch.testing.assert_close(both.images, torch.from_numpy(photographs))
    for side, eyes in enumerate(("left", "right")):
        torch.testing.assert_close(
            read_norb(tmp_path, eyes=eyes, halve=False).images, both.images[:, side, None]
        )
        small = read_norb(tmp_path, eyes=eyes).images
        torch.testing.assert_close(small, read_norb(tmp_path).images[:, side, None])
    each = read_norb(tmp_path, eyes="each", halve=False)
    torch.testing.assert_close(each.images[0::2], both.images[:, 0, None])
    torch.testing.assert_close(each.images[1::2], both.images[:, 1, None])
    assert each.factors["eye"].tolist() == [0, 1] * 10
    assert each.labels.tolist() == both.labels.repeat_interleave(2).tolist()
    assert each.factors["azimuth"].tolist() == both.factors["azimuth"].repeat_interleave(2).tolist()


def test_halving_is_the_mean_of_four_pixels(tmp_path):
    photographs, _ = write_norb(tmp_path)["test"]
    found = read_norb(tmp_path, "test").images
    mean = photographs.reshape(10, 2, 48, 2, 48, 2).astype(float).mean(axis=(3, 5))
    np.testing.assert_array_equal(found.numpy(), np.floor(mean + 0.5))


def test_what_is_known_of_each_photograph(tmp_path):
    _, info = write_norb(tmp_path)["train"]
    found = read_norb(tmp_path)
    for i, name in enumerate(("instance", "elevation", "azimuth", "lighting")):
        assert found.factors[name].tolist() == info[:, i].tolist()
    assert found.labels.tolist() == [0, 1, 2, 3, 4] * 2
    assert found.classes == ("animal", "human", "airplane", "truck", "car")


def test_no_toy_is_in_both_splits_nor_on_both_sides_of_a_holdout(tmp_path):
    write_norb(tmp_path, count=100, side=8)
    train, test = read_norb(tmp_path), read_norb(tmp_path, "test")
    assert not set(train.factors["instance"].tolist()) & set(test.factors["instance"].tolist())
    kept, held = train.train_val_split(0.2)
    toys = [
        set(zip(part.labels.tolist(), part.factors["instance"].tolist(), strict=True))
        for part in (kept, held)
    ]
    assert not toys[0] & toys[1]
    assert sorted(label for label, _ in toys[1]) == [0, 1, 2, 3, 4]


def test_other_sizes_stay_as_they_are(tmp_path):
    write_norb(tmp_path, side=48, eyes=1)
    assert read_norb(tmp_path).images.shape == (10, 1, 48, 48)


def test_by_name_gzipped_and_by_path(tmp_path):
    write_norb(tmp_path / "smallnorb", count=5)
    for path in list((tmp_path / "smallnorb").iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
        path.unlink()
    found = load_dataset("smallnorb", "test", tmp_path, cache_dir=tmp_path / "none")
    assert (found.images.shape, found.name) == ((5, 2, 48, 48), "smallnorb")
    assert len(load_dataset(tmp_path / "smallnorb")) == 5
    with pytest.raises(
        DataError, match="torchcaps data fetch synthnorb"
    ):  # another set in the same layout
        load_dataset("synthnorb", root=tmp_path / "smallnorb", cache_dir=tmp_path / "none")


def test_an_absent_file_is_named(tmp_path):
    write_norb(tmp_path)
    (tmp_path / f"{STEMS['test']}-info.mat").unlink()
    with pytest.raises(DataError, match=rf"no {STEMS['test']}-info\.mat"):
        read_norb(tmp_path, "test")


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        (
            "dat",
            np.zeros((10, 96, 96), np.uint8),
            r"expected photographs \[n, eyes, height, width\] of uint8, got",
        ),
        ("dat", np.zeros((10, 2, 8, 8), np.int16), "got .* of int16"),
        (
            "cat",
            np.zeros(9, np.int32),
            r"expected a category for each of 10 photographs, got \[9\] of int32",
        ),
        ("cat", np.full(10, 5, np.int32), "5"),
        (
            "info",
            np.zeros((10, 3), np.int32),
            "expected instance, elevation, azimuth, lighting for each of 10",
        ),
    ],
)
def test_shapes_that_do_not_fit(tmp_path, kind, values, words):
    write_norb(tmp_path)
    (tmp_path / f"{STEMS['train']}-{kind}.mat").write_bytes(matrix_bytes(values))
    with pytest.raises(DataError, match=words):
        read_norb(tmp_path)


def test_other_eyes(tmp_path):
    with pytest.raises(
        UnknownNameError, match="unknown choice of eyes 'rihgt'; did you mean 'right'"
    ):
        read_norb(tmp_path, eyes="rihgt")
