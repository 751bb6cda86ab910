"""MATLAB's level-5 files (`save -v6` and `-v7`), read by scipy once their sizes and nesting have been checked.

A file is a header of 128 bytes, then elements: a type, a length, data padded to 8 bytes. An element may be a zlib
stream of one element. scipy trusts lengths and sizes, and deep nesting ends the process; so all is checked first.
"""

import io
import math
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchcaps.data.budget import Source, door, reading
from torchcaps.errors import DataError

HEADER = 128
SIZES, FLAGS, MATRIX, COMPRESSED = 5, 6, 14, 15
PIECE = (
    1 << 14
)  # bytes of a compressed element taken at a time; they grow to a thousand times as many at most
COST = 512  # bytes of memory that an element, a cell or a struct takes besides its data
CELL, STRUCT, CHARS = 1, 2, 4  # classes of arrays
NUMBERS, TEXT = (
    {1, 2, 3, 4, 5, 6, 7, 9, 12, 13},
    {1, 2, 4, 16, 17, 18},
)  # types of elements that they are stored as
# Class of an array (cell, struct, text, numbers): bytes of memory that a value takes.
WIDTHS = {
    CELL: COST,
    STRUCT: COST,
    CHARS: 8,
    6: 8,
    7: 4,
    8: 1,
    9: 1,
    10: 2,
    11: 2,
    12: 4,
    13: 4,
    14: 8,
    15: 8,
}
DEEPEST = 16  # structs and cells within each other
MOST_AXES = 32
COMPLEX = 0x800

Value = Any
"""An array; text; a list for a cell array; a dictionary for one struct, a list of them for several."""


@door
def read_mat(path: str | Path) -> dict[str, Value]:
    """The variables of a MATLAB level-5 file, compressed or not, of either byte order, by name.

    Arrays keep MATLAB's axes, so that an image is `[height, width]`. A struct is a dictionary of its fields, text is
    str, a cell array is a list in column-major order.

    DataError: absent, truncated, damaged, of another version, too large, or with what is not read here (sparse and
    complex arrays, objects, functions).
    """
    from scipy.io import loadmat

    path = Path(path)
    with Source(path) as source, reading(path, wrong="damaged or truncated MATLAB file"):
        data = memoryview(source.rest())
        if len(data) < HEADER:
            raise ValueError(f"{len(data)} bytes where the header takes {HEADER}")
        order = {b"IM": "<", b"MI": ">"}.get(bytes(data[126:128]))
        version = struct.unpack(f"{order or '<'}H", data[124:126])[0]
        if bytes(data[:10]) == b"MATLAB 7.3" or version == 0x0200:
            raise DataError(f"{path}: a MATLAB 7.3 file, which is HDF5; save it again with -v7")
        if order is None or version != 0x0100:
            raise DataError(
                f"{path}: not a MATLAB level-5 file; its header gives neither version nor byte order"
            )
        file, plain = _File(path, order, source.claim), io.BytesIO()
        # scipy tells versions apart by the text of the header too.
        plain.write(b"MATLAB 5.0 MAT-file".ljust(124) + data[124:HEADER])
        for body in file.matrices(data[HEADER:]):
            file.check(body, 0)
            plain.write(struct.pack(f"{file.order}II", MATRIX, len(body)) + body)
        del data
        with warnings.catch_warnings(
            action="ignore"
        ):  # of two variables of one name the last one counts
            found = loadmat(plain, mat_dtype=True)
        return {name: _simple(value) for name, value in found.items() if not name.startswith("__")}


@dataclass(frozen=True)
class _File:
    """The check of a file before scipy reads it; `claim` counts the memory that it takes."""

    path: Path
    order: str
    claim: Callable[[int], None]

    def matrices(self, data: memoryview) -> Iterator[memoryview]:
        """The body of each variable, decompressed."""
        for kind, body in self.elements(data):
            if kind == COMPRESSED:
                inside = list(self.elements(self.inflated(body)))
                if [kind for kind, _ in inside] != [MATRIX]:
                    raise ValueError("a compressed element is not one array")
                yield inside[0][1]
            elif kind == MATRIX:
                yield body

    def elements(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """(type, data) of each element, one after another."""
        at = 0
        while at < len(data):
            if len(data) - at < 8:
                raise ValueError(f"{len(data) - at} bytes where a tag takes 8")
            kind, size = struct.unpack_from(f"{self.order}II", data, at)
            # Compressed elements are not padded.
            start, end = at + 8, at + 8 + size + (0 if kind == COMPRESSED else -size % 8)
            if (
                kind >> 16
            ):  # the small form: length and type in one word, up to 4 bytes of data in the other
                kind, size, start, end = kind & 0xFFFF, kind >> 16, at + 4, at + 8
            if start + size > min(len(data), end):
                raise ValueError(f"an element of {size} bytes where {len(data) - start} are left")
            self.claim(COST)
            yield kind, data[start : start + size]
            at = end

    def check(self, body: memoryview, depth: int) -> None:
        """Claim what an array takes in memory, with all that is in it; ValueError where it is damaged."""
        if depth > DEEPEST:
            raise ValueError(f"structs or cells nested more than {DEEPEST} deep")
        parts = list(self.elements(body))
        if not parts:  # an empty array may be stored as nothing at all
            return
        if (
            len(parts) < 3
            or [kind for kind, _ in parts[:2]] != [FLAGS, SIZES]
            or len(parts[0][1]) != 8
        ):
            raise ValueError("an array without its flags, sizes and name")
        flags = struct.unpack(f"{self.order}I", parts[0][1][:4])[0]
        kind = flags & 0xFF
        shape = struct.unpack(f"{self.order}{len(parts[1][1]) // 4}i", parts[1][1])
        name, held = bytes(parts[2][1]).decode("ascii", "replace") or "an array", parts[3:]
        if kind not in WIDTHS or flags & COMPLEX:
            what = "complex" if flags & COMPLEX else f"of class {kind}"
            raise DataError(f"{self.path}: {name} is {what}, which is not read here")
        if min(shape, default=0) < 0 or not 2 <= len(shape) <= MOST_AXES:
            raise ValueError(f"{name} has the sizes {list(shape)}")
        count = math.prod(shape)
        self.claim(count * WIDTHS[kind])
        if kind == STRUCT:
            count, held = count * self.fields(name, held[:2]), held[2:]
        if kind in (CELL, STRUCT):
            good = len(held) == count and all(inner == MATRIX for inner, _ in held)
        else:
            good = len(held) == 1 and held[0][0] in (TEXT if kind == CHARS else NUMBERS)
        if not good:
            raise ValueError(
                f"{name} {list(shape)} of class {kind} holds other elements than it should"
            )
        for _, part in held if kind in (CELL, STRUCT) else ():
            self.check(part, depth + 1)

    def fields(self, name: str, parts: list[tuple[int, memoryview]]) -> int:
        """How many fields a struct has, from the two elements before its values: length of a name, names."""
        if [inner for inner, _ in parts] != [SIZES, 1] or len(parts[0][1]) != 4:
            raise ValueError(f"{name} does not name its fields")
        width = struct.unpack(f"{self.order}i", parts[0][1])[0]
        if width < 1 or len(parts[1][1]) % width:
            raise ValueError(f"{name} has names of {width} bytes in {len(parts[1][1])}")
        return len(parts[1][1]) // width

    def inflated(self, data: memoryview) -> memoryview:
        """The bytes of a compressed element."""
        stream, found = zlib.decompressobj(), bytearray()
        for at in range(0, len(data), PIECE):
            piece = stream.decompress(data[at : at + PIECE])
            self.claim(len(piece))
            found += piece
        if not stream.eof:
            raise ValueError("a compressed element ends before its data does")
        return memoryview(found)


def _simple(value: np.ndarray) -> Value:
    if value.dtype.names is not None:
        records = [
            {name: _simple(record[name]) for name in value.dtype.names}
            for record in value.ravel("F")
        ]
        return records[0] if len(records) == 1 else records
    if value.dtype == object:
        return [_simple(one) for one in value.ravel("F")]
    if value.dtype.kind == "U":
        return "\n".join(value.ravel())
    return value.astype(value.dtype.newbyteorder("="), copy=False)
