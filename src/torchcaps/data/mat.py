"""MATLAB's level-5 files (`save -v6` and `-v7`), as far as data sets use them: numbers, text, cells and structs.

The format is described in MathWorks' "MAT-File Format": a header of 128 bytes, then elements of a type, a length and
data, padded to 8 bytes; an element may be a zlib stream that holds one element. Nothing in a file is executed.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from torchcaps.data.budget import Source, door
from torchcaps.errors import DataError

HEADER = 128
MATRIX, COMPRESSED = 14, 15
# Code of an element's type: numpy's type, without byte order.
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
TEXT = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
# Class of an array: the type that its values have in memory, whatever smaller type they are stored in.
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
CELL, STRUCT, CHARS = 1, 2, 4
COMPLEX = 0x08
PIECE = 1 << 14  # bytes of a compressed element taken at a time; they grow to a thousand times as many at most
COST = 512  # bytes that an element, a struct or a name takes in memory, besides its data
DEEPEST = 16  # structs and cells within each other
MOST_AXES = 32

Order = Literal["<", ">"]
Value = Any
"""An array; text; a list for a cell array; a dictionary for one struct, a list of them for several."""


@door
def read_mat(path: str | Path) -> dict[str, Value]:
    """The variables of a MATLAB level-5 file, by name.

    Arrays keep MATLAB's axes, so that an image is `[height, width]` and its column-major order costs nothing; a struct
    is a dictionary of its fields, text is str, and a cell array is a list in column-major order.

    Args:
        path: the `.mat` file; compressed or not, of either byte order.

    Raises:
        DataError: absent, truncated, damaged, of another version, or holding what is not read here (sparse and complex
            arrays, objects, functions).
    """
    path = Path(path)
    try:
        with Source(path) as source:
            data = bytearray()
            for piece in source.pieces():
                data += piece
            file = _File(_byte_order(memoryview(data)), source.claim)
            return dict(file.variables(memoryview(data)[HEADER:]))
    except _DamageError as error:
        raise DataError(f"{path}: {error}") from None


class _DamageError(Exception):
    """What is wrong with the bytes, without the path."""


def _byte_order(data: memoryview) -> Order:
    if len(data) < HEADER:
        raise _DamageError(f"truncated MATLAB file, {len(data)} bytes where the header takes {HEADER}")
    orders: dict[bytes, Order] = {b"IM": "<", b"MI": ">"}
    order = orders.get(bytes(data[126:128]))
    version = struct.unpack(f"{order or '<'}H", data[124:126])[0]
    if bytes(data[:10]) == b"MATLAB 7.3" or version == 0x0200:
        raise _DamageError("a MATLAB 7.3 file, which is HDF5; save it again with -v7")
    if order is None or version != 0x0100:
        raise _DamageError("not a MATLAB level-5 file, its header says neither version nor byte order")
    return order


@dataclass(frozen=True)
class _File:
    """What holds for a whole file: its byte order, and who counts the memory that it takes."""

    order: Order
    claim: Callable[[int], None]

    def variables(self, data: memoryview) -> Iterator[tuple[str, Value]]:
        """Name and value of each variable in a run of elements."""
        for kind, body in self.elements(data):
            if kind == COMPRESSED:
                kind, body = next(self.elements(self.inflated(body)))
            if kind == MATRIX:
                yield self.matrix(body, 0)

    def elements(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """(type, data) of each element, one after another."""
        at = 0
        while at < len(data):
            if len(data) - at < 8:
                raise _DamageError(f"truncated MATLAB file, {len(data) - at} bytes where a tag takes 8")
            kind, size = struct.unpack_from(f"{self.order}II", data, at)
            start = at + 8
            if kind >> 16:  # the small form: length and type in one word, up to 4 bytes of data in the other
                kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
                if size > 4:
                    raise _DamageError(f"damaged MATLAB file, a small element of {size} bytes")
                end = at + 8
            else:
                # Compressed elements are not padded.
                end = start + size + (0 if kind == COMPRESSED else -size % 8)
            if start + size > len(data):
                missing = start + size - len(data)
                raise _DamageError(f"truncated MATLAB file, an element ends {missing} bytes behind its end")
            self.claim(COST)
            yield kind, data[start : start + size]
            at = end

    def matrix(self, body: memoryview, depth: int) -> tuple[str, Value]:
        """Name and value of an array of any class."""
        if depth > DEEPEST:
            raise _DamageError(f"structs or cells nested more than {DEEPEST} deep")
        parts = list(self.elements(body))
        if not parts:  # an empty matrix may stand for nothing at all
            return "", np.zeros((0, 0))
        if len(parts) < 3 or parts[0][0] != 6 or len(parts[0][1]) < 8 or parts[1][0] != 5 or len(parts[1][1]) % 4:
            raise _DamageError("damaged MATLAB file, an array without its flags, sizes and name")
        flags = struct.unpack(f"{self.order}I", parts[0][1][:4])[0]
        kind, marks = flags & 0xFF, flags >> 8 & 0xFF
        shape = struct.unpack(f"{self.order}{len(parts[1][1]) // 4}i", parts[1][1])
        name = bytes(parts[2][1]).decode("ascii", "replace")
        if min(shape, default=0) < 0 or not 2 <= len(shape) <= MOST_AXES:
            raise _DamageError(f"damaged MATLAB file, {name or 'an array'} has the sizes {list(shape)}")
        if marks & COMPLEX:
            raise _DamageError(f"{name or 'an array'} is complex, which is not read here")
        return name, self.value(name, kind, shape, parts[3:], depth)

    def value(
        self, name: str, kind: int, shape: tuple[int, ...], parts: list[tuple[int, memoryview]], depth: int
    ) -> Value:
        """What the elements behind the name of an array of this class hold."""
        if kind in CLASSES:
            stored = self.numbers(name, shape, parts)
            self.claim(0 if stored.dtype == CLASSES[kind] else stored.size * np.dtype(CLASSES[kind]).itemsize)
            return stored.astype(CLASSES[kind], copy=False)
        if kind == CHARS:
            return self.text(name, shape, parts)
        if kind == CELL:
            return self.values(name, math.prod(shape), parts, depth)
        if kind == STRUCT:
            return self.structs(name, math.prod(shape), parts, depth)
        raise _DamageError(f"{name or 'an array'} is of class {kind}, which is not read here")

    def numbers(self, name: str, shape: tuple[int, ...], parts: list[tuple[int, memoryview]]) -> np.ndarray:
        """An array of numbers, in the type that it is stored in."""
        kind, data = parts[0] if parts else (0, memoryview(b""))
        if kind not in NUMBERS:
            raise _DamageError(f"damaged MATLAB file, no numbers of a known type in {name or 'an array'}")
        stored = np.dtype(NUMBERS[kind]).newbyteorder(self.order)
        if len(data) != math.prod(shape) * stored.itemsize:
            raise _DamageError(
                f"damaged MATLAB file, {len(data)} bytes for {name or 'an array'} {list(shape)} of {stored}"
            )
        found = np.frombuffer(data, stored).reshape(shape, order="F")
        return found.astype(stored.newbyteorder("="), copy=False)

    def text(self, name: str, shape: tuple[int, ...], parts: list[tuple[int, memoryview]]) -> str:
        """The characters of an array, column after column."""
        kind, data = parts[0] if parts else (2, memoryview(b""))
        if kind not in TEXT:
            raise _DamageError(f"damaged MATLAB file, no text of a known type in {name or 'an array'}")
        self.claim(4 * len(data))
        end = "" if kind in (1, 2, 16) else "-le" if self.order == "<" else "-be"
        text = bytes(data).decode(TEXT[kind] + end, "replace")
        if len(text) > math.prod(shape):
            raise _DamageError(f"damaged MATLAB file, {len(text)} characters for the sizes {list(shape)}")
        return text

    def values(self, name: str, count: int, parts: list[tuple[int, memoryview]], depth: int) -> list[Value]:
        """`count` arrays, one an element."""
        if len(parts) != count or any(kind != MATRIX for kind, _ in parts):
            raise _DamageError(f"damaged MATLAB file, {len(parts)} elements in {name or 'an array'} of {count}")
        return [self.matrix(body, depth + 1)[1] for _, body in parts]

    def structs(self, name: str, count: int, parts: list[tuple[int, memoryview]], depth: int) -> Value:
        """One dictionary, or a list of them when there is not exactly one."""
        if len(parts) < 2 or len(parts[0][1]) != 4:
            raise _DamageError(f"damaged MATLAB file, no names of fields in {name or 'a struct'}")
        width = struct.unpack(f"{self.order}i", parts[0][1])[0]
        packed = bytes(parts[1][1])
        if width < 1 or len(packed) % width:
            raise _DamageError(f"damaged MATLAB file, names of {width} bytes in {len(packed)} of {name or 'a struct'}")
        self.claim((len(packed) // width + count) * COST)
        starts = range(0, len(packed), width)
        names = [packed[at : at + width].split(b"\0")[0].decode("ascii", "replace") for at in starts]
        values = self.values(name, count * len(names), parts[2:], depth)
        made = [dict(zip(names, values[i * len(names) : (i + 1) * len(names)], strict=True)) for i in range(count)]
        return made[0] if count == 1 else made

    def inflated(self, data: memoryview) -> memoryview:
        """The array in a compressed element: its tag says how many bytes it has, and no more are inflated."""
        stream = zlib.decompressobj()
        try:
            found = bytearray(stream.decompress(data[:PIECE], 8))
            kind, size = struct.unpack(f"{self.order}II", found.ljust(8, b"\0"))
            if kind != MATRIX:
                raise _DamageError(f"damaged MATLAB file, a compressed element of type {kind}, which is no array")
            self.claim(size)
            most = 8 + size + -size % 8
            piece: Any
            for piece in (
                stream.unconsumed_tail,
                *(data[at : at + PIECE] for at in range(PIECE, len(data), PIECE)),
                b"",
            ):
                more = True
                while more and len(found) <= most and not stream.eof:
                    before = len(found)
                    found += stream.decompress(piece, most + 1 - before)
                    piece, more = stream.unconsumed_tail, len(found) > before
        except zlib.error as error:
            raise _DamageError(f"damaged MATLAB file, a compressed element cannot be read ({error})") from None
        if len(found) > most:
            raise _DamageError("damaged MATLAB file, a compressed element is larger than its tag says")
        if not stream.eof:
            raise _DamageError("truncated MATLAB file, a compressed element ends before its data does")
        return memoryview(found)
