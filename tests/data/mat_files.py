"""MATLAB level-5 files written byte by byte from the format's description."""

from __future__ import annotations

import struct
import zlib

import numpy as np

# type of array: (class of the array, type of its element)
KINDS = {
    "int8": (8, 1),
    "uint8": (9, 2),
    "int16": (10, 3),
    "uint16": (11, 4),
    "int32": (12, 5),
    "uint32": (13, 6),
    "float32": (7, 7),
    "float64": (6, 9),
    "int64": (14, 12),
    "uint64": (15, 13),
}


def element(kind, contents, order="<"):
    """An element in the small form where it fits, as MATLAB writes it."""
    if 0 < len(contents) <= 4:
        return struct.pack(f"{order}I", len(contents) << 16 | kind) + contents.ljust(4, b"\0")
    padding = b"\0" * (-len(contents) % 8)
    return struct.pack(f"{order}II", kind, len(contents)) + contents + padding


def matrix(name, value, order="<", stored=None):
    """An array, text, a struct (dict) or a cell array (list).

    `stored` is a smaller type to keep the numbers of an array in.
    """
    if isinstance(value, dict):
        array_class = 2
        shape = (1, 1)
        width = 32
        names = b"".join(field.encode().ljust(width, b"\0") for field in value)
        body = element(5, struct.pack(f"{order}i", width), order) + element(1, names, order)
        body += b"".join(matrix("", field, order) for field in value.values())
    elif isinstance(value, list):
        array_class = 1
        shape = (1, len(value))
        body = b"".join(matrix("", cell, order) for cell in value)
    elif isinstance(value, str):
        array_class = 4
        shape = (1, len(value))
        body = element(4, value.encode("utf-16-be" if order == ">" else "utf-16-le"), order)
    else:
        array = np.atleast_2d(value)
        array_class, _ = KINDS[array.dtype.name]
        shape = array.shape
        array = array.astype(stored or array.dtype)
        _, kind = KINDS[array.dtype.name]
        body = element(kind, array.astype(array.dtype.newbyteorder(order)).tobytes("F"), order)
    flags = element(6, struct.pack(f"{order}II", array_class, 0), order)
    sizes = element(5, struct.pack(f"{order}{len(shape)}i", *shape), order)
    contents = flags + sizes + element(1, name.encode(), order) + body
    return struct.pack(f"{order}II", 14, len(contents)) + contents


def header(order="<"):
    text = b"MATLAB 5.0 MAT-file, Platform: GLNXA64"
    version = struct.pack(f"{order}H", 0x0100)
    return text.ljust(124, b" ") + version + (b"IM" if order == "<" else b"MI")


def mat_bytes(variables, packed=True, order="<"):
    """A file of these variables; `packed` as `save -v7` does: one zlib stream a variable."""
    parts = []
    for name, value in variables.items():
        part = matrix(name, value, order)
        if packed:
            stream = zlib.compress(part)
            part = struct.pack(f"{order}II", 15, len(stream)) + stream
        parts.append(part)
    return header(order) + b"".join(parts)
