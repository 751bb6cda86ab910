"""MATLAB level-5 files, and their elements byte by byte from the format's description."""

import io
import struct

from scipy.io import savemat


def element(kind, contents, order="<"):
    """An element in the small form where it fits, as MATLAB writes it."""
    if 0 < len(contents) <= 4:
        return struct.pack(f"{order}I", len(contents) << 16 | kind) + contents.ljust(4, b"\0")
    padding = b"\0" * (-len(contents) % 8)
    return struct.pack(f"{order}II", kind, len(contents)) + contents + padding


def header(order="<"):
    text = b"MATLAB 5.0 MAT-file, Platform: GLNXA64"
    version = struct.pack(f"{order}H", 0x0100)
    return text.ljust(124, b" ") + version + (b"IM" if order == "<" else b"MI")


def mat_bytes(variables, packed=True):
    """A file of these variables; `packed` as `save -v7` does: one zlib stream a variable."""
    stream = io.BytesIO()
    savemat(stream, variables, do_compression=packed)
    return stream.getvalue()


def matrix(name, value):
    """The element of a variable."""
    return mat_bytes({name: value}, packed=False)[len(header()) :]
