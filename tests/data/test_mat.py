import struct
import zlib

import numpy as np
import pytest
from scipy.io import savemat
from scipy.sparse import csc_matrix

from torchcaps.data import MemoryBudget, read_mat
from torchcaps.errors import DataError

from .mat_files import KINDS, element, header, mat_bytes, matrix


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("packed", [True, False])
def test_arrays_of_every_type_come_back(tmp_path, packed, order):
    shapes = [(1, 1), (2, 3), (3, 1, 2), (2, 1, 3, 2)]
    random = np.random.default_rng(0)
    content = {
        f"a{i}": random.integers(0, 100, shapes[i % 4]).astype(kind) for i, kind in enumerate(KINDS)
    }
    (tmp_path / "a.mat").write_bytes(mat_bytes(content, packed, order))
    arrays = read_mat(tmp_path / "a.mat")
    assert arrays.keys() == content.keys()
    for name, array in content.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(arrays[name], array)


def test_doubles_stored_in_bytes_are_doubles(tmp_path):
    values = np.arange(12.0).reshape(3, 4)
    (tmp_path / "a.mat").write_bytes(header() + matrix("a", values, stored="uint8"))
    found = read_mat(tmp_path / "a.mat")["a"]
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("order", ["<", ">"])
def test_structs_cells_and_text(tmp_path, order):
    content = {
        "s": {"words": "digits", "n": np.array([[7]], np.int32), "cells": [np.eye(2), "a"]},
        "empty": [],
    }
    (tmp_path / "a.mat").write_bytes(mat_bytes(content, order=order))
    found = read_mat(tmp_path / "a.mat")
    assert found["s"]["words"] == "digits"
    assert found["s"]["n"].item() == 7
    np.testing.assert_array_equal(found["s"]["cells"][0], np.eye(2))
    assert (found["s"]["cells"][1], found["empty"]) == ("a", [])


@pytest.mark.parametrize("length", [0, 100, 130, 150, 200, 300])
def test_a_truncation_is_one_sentence(tmp_path, length):
    content = {"a": np.arange(60, dtype=np.uint16).reshape(20, 3), "s": {"text": "abc"}}
    whole = mat_bytes(content, packed=False)
    assert length < len(whole) and length != 128 + len(matrix("a", content["a"]))
    (tmp_path / "a.mat").write_bytes(whole[:length])
    with pytest.raises(DataError, match=r"a\.mat: (truncated|damaged|not a) ") as caught:
        read_mat(tmp_path / "a.mat")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("packed", [True, False])
def test_wrong_bytes_never_lead_to_another_error_or_end_the_process(tmp_path, packed):
    content = {"a": np.arange(20, dtype=np.int32).reshape(4, 5), "s": {"x": "t"}}
    whole = mat_bytes(content, packed)
    random = np.random.default_rng(0)
    for _ in range(8):
        data = bytearray(whole)
        data[random.integers(128, len(data))] = random.integers(256)
        (tmp_path / "a.mat").write_bytes(data)
        try:
            read_mat(tmp_path / "a.mat")
        except DataError as error:
            assert str(error).startswith(f"{tmp_path / 'a.mat'}: ")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a MATLAB level-5 file"),
        (
            b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM",
            "a MATLAB 7.3 file, which is HDF5; save it again with -v7",
        ),
        (b"x" * 200, "not a MATLAB level-5 file"),
        (
            header() + struct.pack("<II", 15, 4) + b"abcd",
            "damaged or truncated MATLAB file .error: Error -3",
        ),
        (
            header() + struct.pack("<II", 15, 9) + zlib.compress(matrix("a", np.eye(9)))[:9],
            "damaged or truncated MATLAB file ",
        ),
    ],
)
def test_what_is_not_read(tmp_path, data, words):
    (tmp_path / "a.mat").write_bytes(data)
    with pytest.raises(DataError, match=words):
        read_mat(tmp_path / "a.mat")


def test_a_sparse_array_is_refused(tmp_path):
    savemat(tmp_path / "a.mat", {"a": csc_matrix(np.eye(3))})
    with pytest.raises(DataError, match="holds a csc_"):
        read_mat(tmp_path / "a.mat")


def test_what_it_expands_to_counts_in_the_budget(tmp_path):
    savemat(tmp_path / "a.mat", {"a": np.zeros(10_000, np.uint8)}, do_compression=True)
    assert read_mat(tmp_path / "a.mat", MemoryBudget(10_000))["a"].size == 10_000
    with pytest.raises(DataError, match="asks for more"):
        read_mat(tmp_path / "a.mat", MemoryBudget(9_999))


def test_no_such_file(tmp_path):
    with pytest.raises(DataError, match=r"none\.mat"):
        read_mat(tmp_path / "none.mat")


def test_nesting_that_would_end_the_process_is_refused(tmp_path):
    """scipy recurses in C: thirty thousand levels overflow its stack."""
    start = (
        element(6, struct.pack("<II", 1, 0))
        + element(5, struct.pack("<2i", 1, 1))
        + element(1, b"")
    )
    inner, tags, size = matrix("", np.eye(1)), [], len(matrix("", np.eye(1)))
    for _ in range(30_000):
        size += len(start)
        tags.append(struct.pack("<II", 14, size) + start)
        size += 8
    (tmp_path / "a.mat").write_bytes(header() + b"".join(reversed(tags)) + inner)
    with pytest.raises(DataError, match=r"damaged or truncated MATLAB file \("):
        read_mat(tmp_path / "a.mat")


def test_scipys_own_files_come_back(tmp_path):
    content = {
        "z": np.array([[1.5, 3]]),
        "s": {"words": "a", "n": np.eye(2)},
        "b": np.array([[True, False]]),
    }
    savemat(tmp_path / "a.mat", content, do_compression=True)
    found = read_mat(tmp_path / "a.mat")
    assert set(found) == {"z", "s", "b"}
    assert found["s"]["words"] == "a"
    for key in ("z", "b"):
        np.testing.assert_array_equal(found[key], content[key])
