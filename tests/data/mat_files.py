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


def element(kind, data, order="<"):
    """An element in the small form where it fits, as MATLAB writes it."""
    if 0 < len(data) <= 4:
        word = len(data) << 16 | kind
        return struct.pack(f"{order}I", word) + data.ljust(4, b"\0")
    return struct.pack(f"{order}II", kind, len(data)) + data + b"\0" * (-len(data) % 8)


def matrix(name, value, order="<", marks=0, stored=None):
    """An array, text, a struct (dict) or a cell array (list); `stored` is a smaller type to keep its values in."""
    if isinstance(value, dict):
        width = 32
        names = b"".join(field.encode().ljust(width, b"\0") for field in value)
        body = element(5, struct.pack(f"{order}i", width), order) + element(1, names, order)
        body += b"".join(matrix("", inner, order) for inner in value.values())
        kind, shape = 2, (1, 1)
    elif isinstance(value, list):
        body, kind, shape = (
            b"".join(matrix("", inner, order) for inner in value),
            1,
            (1, len(value)),
        )
    elif isinstance(value, str):
        body, kind, shape = (
            element(4, value.encode("utf-16-be" if order == ">" else "utf-16-le"), order),
            4,
            None,
        )
        shape = (1, len(value))
    else:
        value = np.asarray(value)
        kind, _ = KINDS[value.dtype.name]
        kept = value.astype(stored or value.dtype)
        shape = value.shape if value.ndim > 1 else (1, *value.shape)
        body = element(
            KINDS[kept.dtype.name][1],
            kept.astype(kept.dtype.newbyteorder(order)).tobytes("F"),
            order,
        )
    flags = element(6, struct.pack(f"{order}II", marks << 8 | kind, 0), order)
    sizes = element(5, struct.pack(f"{order}{len(shape)}i", *shape), order)
    inner = flags + sizes + element(1, name.encode(), order) + body
    return struct.pack(f"{order}II", 14, len(inner)) + inner


def header(order="<", text=b"MATLAB 5.0 MAT-file, Platform: GLNXA64"):
    version = struct.pack(f"{order}H", 0x0100)
    return text.ljust(124, b" ") + version + (b"IM" if order == "<" else b"MI")


def mat_bytes(variables, packed=True, order="<"):
    """A file of these variables; `packed` as `save -v7` does, every variable in a zlib stream of its own."""
    parts = [matrix(name, value, order) for name, value in variables.items()]
    if packed:
        streams = [zlib.compress(part) for part in parts]
        parts = [struct.pack(f"{order}II", 15, len(stream)) + stream for stream in streams]
    return header(order) + b"".join(parts)
