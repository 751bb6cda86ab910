"""Files made to exhaust memory or time; each takes milliseconds to write.

`python -m tests.data.hostile FILE...` reads each in this process, and prints the outcome as JSON.
More hostile files, and random damage to every format, are in `tests/campaign`.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import struct
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np

from .makers import write_idx_set
from .mat_files import element, header

GIB = 1 << 30
MIB = 1 << 20
FILES = {}


def hostile(make):
    FILES[make.__name__] = make
    return make


def npy(shape, dtype="|u1", contents=b""):
    text = str({"descr": dtype, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + contents


def zipped(folder, images):
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", images)
        archive.writestr("labels.npy", npy((8,), "<i8", np.arange(8).tobytes()))
    return folder / "a.npz"


@hostile
def npz_text_labels(folder):
    np.savez_compressed(
        folder / "a.npz", images=np.zeros((4, 8, 8), np.uint8), labels=np.zeros(5_000_000, "U1")
    )
    return folder / "a.npz"


@hostile
def npz_member_that_says_eight_gib(folder):
    member = npy((8, 1 << 14, 1 << 14))
    path = zipped(folder, member)
    size = struct.pack("<I", len(member))
    path.write_bytes(path.read_bytes().replace(size, struct.pack("<I", 0xFFFFFFF0)))
    return path


@hostile
def npz_header_of_four_gib(folder):
    return zipped(folder, b"\x93NUMPY\2\0\xff\xff\xff\xff" + bytes(MIB))


@hostile
def npz_header_of_brackets(folder):
    return zipped(folder, b"\x93NUMPY\1\0" + struct.pack("<H", 9000) + b"[" * 9000)


@hostile
def npy_sparse(folder):
    (folder / "a.npy").write_bytes(npy((8, 1 << 15, 1 << 15)))
    os.truncate(folder / "a.npy", 8 * GIB + 128)
    np.save(folder / "a_labels.npy", np.arange(8))
    return folder / "a.npy"


@hostile
def csv_sparse(folder):
    (folder / "a.csv").write_text("file,label\n")
    os.truncate(folder / "a.csv", 8 * GIB)
    return folder / "a.csv"


@hostile
def idx_that_ends_before(folder):
    write_idx_set(folder)
    start = gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 50, 1 << 10, 1 << 10), mtime=0)
    zeros = gzip.compress(bytes(MIB)) * 20
    (folder / "train-images-idx3-ubyte").write_bytes(start + zeros)
    return folder


# MATLAB files.


def svhn(folder, elements):
    """A file whose elements are compressed together."""
    stream = zlib.compress(elements, 1)
    packed = header() + struct.pack("<II", 15, len(stream)) + stream
    (folder / "train_32x32.mat").write_bytes(packed)
    return folder


def mat_array(array_class, num_columns, contents):
    flags = element(6, struct.pack("<II", array_class, 0))
    sizes = element(5, struct.pack("<2i", 1, num_columns))
    body = flags + sizes + element(1, b"name5") + contents
    return struct.pack("<II", 14, len(body)) + body


@hostile
def mat_element_of_four_gib(folder):
    return svhn(folder, struct.pack("<II", 14, 0xFFFFFFF0) + bytes(MIB))


@hostile
def mat_bytes_stored_for_doubles(folder):
    return svhn(folder, mat_array(6, 4 * MIB, element(2, bytes(4 * MIB))))


# Archives.


def tar_header(info, edit=lambda block: None):
    """The header of a member, edited by hand under a right checksum."""
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT)[:512])
    edit(block)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def write_tar(folder, *members):
    with tarfile.open(folder / "a.tar", "w") as archive:
        for name, contents in members:
            info = tarfile.TarInfo(name)
            info.size = len(contents)
            archive.addfile(info, io.BytesIO(contents))
    return folder / "a.tar"


def write_packed_tar(folder, *parts):
    (folder / "a.tar.gz").write_bytes(b"".join(parts))
    return folder / "a.tar.gz"


@hostile
def tar_negative_size(folder):
    def edit(block):
        block[124:136] = b"\xff" * 10 + b"\xfc\0"

    path = write_tar(folder, ("zebra/0.png", b""))
    first = tar_header(tarfile.TarInfo("cat/0.png"), edit)
    path.write_bytes(first + path.read_bytes())
    return path


@hostile
def tar_gz_member_of_five_gib(folder):
    info = tarfile.TarInfo("cat/0.png")
    info.size = 5 * GIB
    return write_packed_tar(
        folder, gzip.compress(tar_header(info)), gzip.compress(bytes(MIB)) * 5120
    )


@hostile
def tar_gz_name_of_five_gib(folder):
    info = tarfile.TarInfo("cat/0.png")
    info.size = 5 * GIB
    info.type = tarfile.GNUTYPE_LONGNAME
    return write_packed_tar(
        folder, gzip.compress(tar_header(info)), gzip.compress(bytes(MIB)) * 5120
    )


@hostile
def tar_gz_many_members(folder):
    members = tarfile.TarInfo("cat/0.png").tobuf() * 1024
    return write_packed_tar(folder, gzip.compress(members) * 30)


def read_all(paths):
    """Print the outcome of each file: kind, message, and the growth of the memory peak in MiB."""
    from torchcaps.data import load_dataset, reading

    reading.FLOOR = 16 * MIB  # smaller than in use, so that refusals come sooner
    load_dataset("digits")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path in paths:
        try:
            outcome = ["set", repr(load_dataset(path))]
        except BaseException as error:
            outcome = [type(error).__name__, str(error)]
        growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(json.dumps([*outcome, growth]), flush=True)


if __name__ == "__main__":
    # A reader that fails this test takes no machine with it.
    resource.setrlimit(resource.RLIMIT_AS, (6 * GIB, 6 * GIB))
    read_all([Path(name) for name in sys.argv[1:]])
