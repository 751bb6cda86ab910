"""Files made to exhaust memory: refused in one line, before the memory is taken.

Each would take 64 MiB or more. More hostile files, and random damage to every format, are in
`tests/campaign`.
"""

import gzip
import io
import os
import struct
import tarfile
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest

from torchcaps.data import load_dataset, reading

from .makers import refusal, write_idx_set
from .mat_files import header

MIB = 1 << 20
BOMB = 64 * MIB
ZEROS = gzip.compress(bytes(MIB), 1) * 64
LABELS = np.arange(8) % 2
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
        archive.writestr("labels.npy", npy((8,), "<i8", LABELS.tobytes()))
    return folder / "a.npz"


@hostile
def npz_of_zeros(folder):
    np.savez_compressed(folder / "a.npz", images=np.zeros((8, MIB, 8), np.uint8), labels=LABELS)
    return folder / "a.npz"


@hostile
def npz_header_of_four_gib(folder):
    return zipped(folder, b"\x93NUMPY\2\0\xff\xff\xff\xff" + bytes(MIB))


@hostile
def npz_of_another_compression(folder):
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("images.npy", npy((8, 2, 2), contents=bytes(32)))
        archive.writestr("labels.npy", npy((8,), "<i8", LABELS.tobytes()))
    return folder / "a.npz"


@hostile
def npy_sparse(folder):
    (folder / "a.npy").write_bytes(npy((8, MIB, 8)))
    os.truncate(folder / "a.npy", BOMB + 128)
    np.save(folder / "a_labels.npy", LABELS)
    return folder / "a.npy"


@hostile
def idx_that_ends_before(folder):
    write_idx_set(folder)
    start = gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 64, 1 << 10, 1 << 10), mtime=0)
    (folder / "train-images-idx3-ubyte").write_bytes(start + ZEROS[:1000])
    return folder


@hostile
def mat_element_of_four_gib(folder):
    stream = zlib.compress(struct.pack("<II", 14, 0xFFFFFFF0) + bytes(MIB), 1)
    packed = header() + struct.pack("<II", 15, len(stream)) + stream
    (folder / "train_32x32.mat").write_bytes(packed)
    return folder


def tar_header(kind=tarfile.REGTYPE, size=BOMB, edit=lambda block: None):
    """The header of a member, edited by hand under a right checksum."""
    info = tarfile.TarInfo("cat/0.png")
    info.size, info.type = size, kind
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT)[:512])
    edit(block)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def packed_tar(folder, start, rest=ZEROS):
    (folder / "a.tar.gz").write_bytes(gzip.compress(start) + rest)
    return folder / "a.tar.gz"


@hostile
def tar_negative_size(folder):
    def edit(block):
        block[124:136] = b"\xff" * 10 + b"\xfc\0"

    stream = io.BytesIO()
    tarfile.open(fileobj=stream, mode="w").close()
    (folder / "a.tar").write_bytes(tar_header(size=0, edit=edit) + stream.getvalue())
    return folder / "a.tar"


@hostile
def tar_sparse_member(folder):
    (folder / "a.tar").write_bytes(tar_header(tarfile.GNUTYPE_SPARSE, 0) + bytes(1024))
    return folder / "a.tar"


@hostile
def tar_gz_member(folder):
    return packed_tar(folder, tar_header())


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_costs_little_and_gets_one_line(tmp_path, monkeypatch, name):
    path = FILES[name](tmp_path)
    monkeypatch.setattr(reading, "FLOOR", 2 * MIB)
    monkeypatch.setattr(reading, "RATIO", 1)
    tracemalloc.start()
    try:
        with refusal(str(tmp_path)):
            load_dataset(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 16 * MIB
