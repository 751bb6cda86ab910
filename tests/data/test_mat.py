import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.io import savemat

from torchcaps.data import read_mat
from torchcaps.errors import DataError

from .mat_files import KINDS, element, header, mat_bytes, matrix

NUMBERS = st.sampled_from(sorted(KINDS)).flatmap(
    lambda kind: arrays(kind, array_shapes(min_dims=2, max_dims=4, max_side=4))
)


@settings(deadline=None)
@given(array=NUMBERS, packed=st.booleans(), order=st.sampled_from("<>"))
def test_arrays_of_every_type_come_back(tmp_path_factory, array, packed, order):
    path = tmp_path_factory.mktemp("mat") / "a.mat"
    path.write_bytes(mat_bytes({"a": array}, packed, order))
    found = read_mat(path)["a"]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)


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


def test_every_truncation_is_one_sentence(tmp_path):
    whole = mat_bytes(
        {"a": np.arange(6, dtype=np.uint16).reshape(2, 3), "s": {"text": "abc"}}, packed=False
    )
    boundaries = {128, 128 + len(matrix("a", np.arange(6, dtype=np.uint16).reshape(2, 3)))}
    for length in range(len(whole)):
        (tmp_path / "a.mat").write_bytes(whole[:length])
        if length in boundaries:  # a file of fewer variables
            assert set(read_mat(tmp_path / "a.mat")) <= {"a"}
            continue
        with pytest.raises(DataError, match=r"a\.mat: (truncated|damaged) ") as caught:
            read_mat(tmp_path / "a.mat")
        assert "\n" not in str(caught.value)


@settings(deadline=None, max_examples=200)
@given(at=st.integers(0, 10_000), byte=st.integers(0, 255), packed=st.booleans())
def test_a_wrong_byte_never_leads_to_another_error_or_ends_the_process(
    tmp_path_factory, at, byte, packed
):
    data = bytearray(
        mat_bytes({"a": np.arange(20, dtype=np.int32).reshape(4, 5), "s": {"x": "t"}}, packed)
    )
    data[at % len(data)] = byte
    path = tmp_path_factory.mktemp("mat") / "a.mat"
    path.write_bytes(data)
    try:
        read_mat(path)
    except DataError as error:
        assert str(error).startswith(f"{path}: ")


def nested(depth):
    value = np.eye(1)
    for _ in range(depth):
        value = [value]
    return value


def of_class(number):
    data = bytearray(matrix("s", np.eye(2)))
    data[16] = number
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "truncated MATLAB file .0 bytes where the header takes 128"),
        (
            b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM",
            "a MATLAB 7.3 file, which is HDF5; save it again with -v7",
        ),
        (b"x" * 200, "not a MATLAB level-5 file"),
        (header() + matrix("z", np.eye(2), marks=0x08), "z is complex, which is not read here"),
        (header() + of_class(5), "s is of class 5, which is not read here"),
        (
            header() + struct.pack("<II", 15, 4) + b"abcd",
            "damaged or truncated MATLAB file .error: Error -3",
        ),
        (
            header() + struct.pack("<II", 15, 9) + zlib.compress(matrix("a", np.eye(9)))[:9],
            "truncated MATLAB file .a compressed element ends",
        ),
        (mat_bytes({"deep": nested(20)}), "nested more than 16 deep"),
    ],
)
def test_what_is_not_read(tmp_path, data, words):
    (tmp_path / "a.mat").write_bytes(data)
    with pytest.raises(DataError, match=words):
        read_mat(tmp_path / "a.mat")


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
    with pytest.raises(DataError, match="nested more than 16 deep"):
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
