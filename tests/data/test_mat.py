import struct

import numpy as np
import pytest

from torchcaps.data import read_mat

from .makers import refusal
from .mat_files import element, header, mat_bytes, matrix


@pytest.fixture
def read(tmp_path):
    """Reads a file of these bytes."""

    def read(contents):
        (tmp_path / "a.mat").write_bytes(contents)
        return read_mat(tmp_path / "a.mat")

    return read


@pytest.mark.usefixtures("mat_in_process")
@pytest.mark.parametrize("packed", [True, False])
def test_arrays_structs_cells_and_text(read, packed):
    random = np.random.default_rng(0)
    shapes = [(1, 1), (2, 3), (3, 1, 2), (2, 1, 3, 2)]
    arrays = {}
    for index, kind in enumerate("bBhHiIlLfd"):
        arrays[f"a{index}"] = random.integers(0, 100, shapes[index % 4]).astype(kind)
    cells = np.array([np.eye(2), "a"], dtype=object)

    variables = read(mat_bytes(arrays | {"s": {"words": "digits", "cells": cells}}, packed))
    for name, array in arrays.items():
        np.testing.assert_array_equal(variables[name], array.squeeze())
    assert variables["s"]["words"] == "digits"
    np.testing.assert_array_equal(variables["s"]["cells"][0], np.eye(2))
    assert variables["s"]["cells"][1] == "a"


@pytest.mark.usefixtures("mat_in_process")
@pytest.mark.parametrize(("order", "kind", "dtype"), [("<", 2, "u1"), (">", 9, ">f8")])
def test_doubles_are_doubles_in_either_byte_order_and_stored_in_bytes(read, order, kind, dtype):
    flags = element(6, struct.pack(f"{order}II", 6, 0), order)
    sizes = element(5, struct.pack(f"{order}2i", 1, 12), order)
    numbers = element(kind, np.arange(12).astype(dtype).tobytes(), order)
    contents = flags + sizes + element(1, b"a", order) + numbers
    array = read(header(order) + struct.pack(f"{order}II", 14, len(contents)) + contents)["a"]
    assert array.dtype.name == "float64"
    np.testing.assert_array_equal(array, np.arange(12))


UNREADABLE = {
    "empty": (b"", "not a MATLAB level-5 file"),
    "version 7.3": (
        b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM",
        "not a MATLAB level-5 file by its header; save it again with -v7",
    ),
    "bad stream": (
        header() + struct.pack("<II", 15, 4) + b"abcd",
        "damaged or truncated MATLAB file .*Error -3",
    ),
}


@pytest.mark.usefixtures("mat_in_process")
@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_file_gets_one_sentence(read, name):
    contents, message = UNREADABLE[name]
    with refusal(rf"a\.mat: {message}"):
        read(contents)


def test_nesting_that_would_end_the_process_is_refused(read):
    """scipy recurses in C: thirty thousand levels overflow its stack."""
    flags = element(6, struct.pack("<II", 1, 0))
    start = flags + element(5, struct.pack("<2i", 1, 1)) + element(1, b"")
    innermost = matrix("a", np.eye(1))
    size = len(innermost)
    tags = []
    for _ in range(30_000):
        size += len(start)
        tags.append(struct.pack("<II", 14, size) + start)
        size += 8
    with refusal(r"damaged or truncated MATLAB file \("):
        read(header() + b"".join(reversed(tags)) + innermost)
