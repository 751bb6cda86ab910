"""Files made to exhaust memory or time, or to bring out an error of a parser; each takes milliseconds to write.

`python -m tests.data.hostile FILE...` reads each in this process, and prints what came of it as JSON.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import os
import resource
import struct
import sys
import tarfile
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from .makers import _gtsrb, idx_bytes, picture, write_idx_set
from .mat_files import element, header, mat_bytes, matrix

GIB = 1 << 30
MIB = 1 << 20
FILES = {}


def hostile(make):
    FILES[make.__name__] = make
    return make


def zeros(count, start=b""):
    """gzip of `start` and `count` MiB of zeros, in as many parts."""
    return gzip.compress(start, mtime=0) + gzip.compress(bytes(MIB)) * count


def npy(shape, dtype="|u1", data=b""):
    text = str({"descr": dtype, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + data


def zipped(folder, images, method=zipfile.ZIP_DEFLATED, name="images.npy", edit=lambda data: data):
    with zipfile.ZipFile(folder / "a.npz", "w", method) as archive:
        archive.writestr(name, images)
        archive.writestr("labels.npy", npy((8,), "<i8", np.arange(8).tobytes()))
    (folder / "a.npz").write_bytes(edit((folder / "a.npz").read_bytes()))
    return folder / "a.npz"


def arrays(folder, images, labels):
    np.savez_compressed(folder / "a.npz", images=images, labels=labels)
    return folder / "a.npz"


def images_of_idx(folder, data):
    write_idx_set(folder)
    (folder / "train-images-idx3-ubyte").write_bytes(data)
    return folder


def svhn(folder, data):
    (folder / "train_32x32.mat").write_bytes(data)
    return folder


def packed(stream):
    return header() + struct.pack("<II", 15, len(stream)) + stream


def mat_array(kind, shape, data):
    flags, sizes = (
        element(6, struct.pack("<II", kind, 0)),
        element(5, struct.pack(f"<{len(shape)}i", *shape)),
    )
    body = flags + sizes + element(1, b"name5") + data
    return struct.pack("<II", 14, len(body)) + body


def batches(folder, data):
    for i in range(1, 6):
        (folder / f"data_batch_{i}").write_bytes(data)
    return folder


def tarred(folder, *members, ending=".tar"):
    """Members as (name or TarInfo, bytes), and a class of pictures."""
    place = folder / f"a{ending}"
    with tarfile.open(place, "w:gz" if ending.endswith("gz") else "w") as archive:
        for member, data in (*members, *((f"zebra/{i}.png", png()) for i in range(3))):
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return place


def first_header(folder, info, ending=".tar", behind=b"", edit=lambda data: None):
    """An archive whose first header is edited by hand."""
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT)[:512])
    edit(block)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    rest = tarred(folder).read_bytes()
    place = folder / f"a{ending}"
    place.write_bytes(gzip.compress(bytes(block)) + behind if behind else bytes(block) + rest)
    return place


def png(size=(6, 6)):
    stream = io.BytesIO()
    picture(size).save(stream, "PNG")
    return stream.getvalue()


# What costs memory or time.


@hostile
def npz_label_of_a_billion(folder):
    return arrays(folder, np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 2, 10**9]))


@hostile
def npz_text_labels(folder):
    return arrays(folder, np.zeros((4, 8, 8), np.uint8), np.zeros(20_000_000, "U1"))


@hostile
def npz_images_of_eight_gib(folder):
    return zipped(folder, npy((8, 1 << 15, 1 << 15)) + bytes(MIB))


@hostile
def npz_member_that_says_eight_gib(folder):
    size = struct.pack("<I", 0xFFFFFFF0)
    data = npy((8, 1 << 14, 1 << 14))
    return zipped(folder, data, edit=lambda file: file.replace(struct.pack("<I", len(data)), size))


@hostile
def npz_header_of_four_gib(folder):
    return zipped(folder, b"\x93NUMPY\2\0\xff\xff\xff\xff" + bytes(MIB))


@hostile
def npz_bzip2(folder):
    return zipped(folder, npy((8, 1 << 10, 1 << 10), data=bytes(8 * MIB)), zipfile.ZIP_BZIP2)


@hostile
def npz_header_of_brackets(folder):
    return zipped(folder, b"\x93NUMPY\1\0" + struct.pack("<H", 9000) + b"[" * 9000)


@hostile
def npz_header_of_minus_signs(folder):
    return zipped(folder, b"\x93NUMPY\1\0" + struct.pack("<H", 9000) + b"-" * 8999 + b"1")


@hostile
def npy_sparse(folder):
    (folder / "a.npy").write_bytes(npy((8, 1 << 15, 1 << 15)))
    os.truncate(folder / "a.npy", 8 * GIB + 128)
    np.save(folder / "a_labels.npy", np.arange(8))
    return folder / "a.npy"


@hostile
def npy_huge_shape(folder):
    (folder / "a.npy").write_bytes(npy((10**6, 10**6, 10**6)))
    np.save(folder / "a_labels.npy", np.arange(8))
    return folder / "a.npy"


@hostile
def idx_longer_than_it_says(folder):
    return images_of_idx(folder, zeros(5120, idx_bytes(np.zeros((20, 6, 5), np.uint8))))


@hostile
def idx_of_five_gib(folder):
    return images_of_idx(folder, zeros(5120, struct.pack(">HBB3I", 0, 8, 3, 20, 1 << 14, 1 << 14)))


@hostile
def idx_that_ends_before(folder):
    return images_of_idx(folder, zeros(100, struct.pack(">HBB3I", 0, 8, 3, 200, 1 << 10, 1 << 10)))


@hostile
def mat_in_gzip(folder):
    return svhn(folder, zeros(5120, header()))


@hostile
def mat_element_of_four_gib(folder):
    return svhn(folder, packed(zlib.compress(struct.pack("<II", 14, 0xFFFFFFF0) + bytes(MIB))))


@hostile
def mat_element_longer_than_its_tag(folder):
    return svhn(folder, packed(zlib.compress(struct.pack("<II", 14, 64) + bytes(64 * MIB), 1)))


@hostile
def mat_struct_of_2_to_the_62(folder):
    return svhn(
        folder,
        header() + mat_array(2, (2**31 - 1,) * 2, element(5, b"\10\0\0\0") + element(1, b"")),
    )


@hostile
def mat_many_cells(folder):
    cells = mat_array(1, (1, 2_000_000), struct.pack("<II", 14, 0) * 2_000_000)
    return svhn(folder, packed(zlib.compress(cells, 1)))


@hostile
def mat_bytes_stored_for_doubles(folder):
    return svhn(
        folder, packed(zlib.compress(mat_array(6, (1, 40 * MIB), element(2, bytes(40 * MIB))), 1))
    )


@hostile
def mat_text(folder):
    return svhn(
        folder, packed(zlib.compress(mat_array(4, (1, 64 * MIB), element(2, bytes(64 * MIB))), 1))
    )


@hostile
def mat_70_axes(folder):
    return svhn(folder, header() + mat_array(9, (1,) * 70, element(2, b"\0" * 8)))


@hostile
def mat_compressed_in_compressed(folder):
    inner = matrix("X", np.eye(2))
    for _ in range(2000):
        stream = zlib.compress(inner)
        inner = struct.pack("<II", 15, len(stream)) + stream
    return svhn(folder, header() + inner)


@hostile
def tar_sparse_member(folder):
    def edit(block):
        block[156:157], block[257:265] = b"S", b"ustar  \0"
        block[386:410], block[482:495] = (
            b"00000000000\0" * 2,
            b"\0\x80" + (8 * GIB).to_bytes(11, "big"),
        )

    return first_header(folder, tarfile.TarInfo("cat/0.png"), edit=edit)


@hostile
def tar_negative_size(folder):
    def edit(block):
        block[124:136] = b"\xff" * 10 + b"\xfc\0"

    return first_header(folder, tarfile.TarInfo("cat/0.png"), edit=edit)


@hostile
def tar_gz_member_of_five_gib(folder):
    info = tarfile.TarInfo("cat/0.png")
    info.size = 5 * GIB
    return first_header(folder, info, ".tar.gz", gzip.compress(bytes(MIB)) * 5120)


@hostile
def tar_gz_name_of_five_gib(folder):
    info = tarfile.TarInfo("cat/0.png")
    info.size, info.type = 5 * GIB, tarfile.GNUTYPE_LONGNAME
    return first_header(folder, info, ".tar.gz", gzip.compress(bytes(MIB)) * 5120)


@hostile
def tar_gz_many_members(folder):
    block = tarfile.TarInfo("cat/0.png").tobuf() * 1024
    (folder / "a.tar.gz").write_bytes(gzip.compress(block, mtime=0) * 500)
    return folder / "a.tar.gz"


@hostile
def tar_bad_sparse_map(folder):
    info = tarfile.TarInfo("cat/0.png")
    info.pax_headers = {"GNU.sparse.map": "0,x", "GNU.sparse.size": "9"}
    with tarfile.open(folder / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info)
    return folder / "a.tar"


@hostile
def tar_names_of_5000_digits(folder):
    return tarred(folder, (f"{'1' * 5000}/{'2' * 5000}.png", png()), ("cat/0.png", png()))


@hostile
def tar_member_of_many_pixels(folder):
    return tarred(folder, *((f"cat/{i}.png", flat_png()) for i in range(6)))


@hostile
def six_large_pictures(folder):
    for name in ("cat", "dog"):
        (folder / name).mkdir()
        for i in range(3):
            (folder / name / f"{i}.png").write_bytes(flat_png())
    return folder


@functools.cache
def flat_png(side=9400):
    """One color, in a stream of repeated blocks: written in no time."""
    small = io.BytesIO()
    Image.new("RGB", (8, 8)).save(small, "PNG")
    rows = 1 + 3 * side
    stream = zlib.compress(bytes(rows * side), 1)

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    size = struct.pack(">II", side, side) + small.getvalue()[24:29]
    return (
        small.getvalue()[:8] + chunk(b"IHDR", size) + chunk(b"IDAT", stream) + chunk(b"IEND", b"")
    )


@hostile
def cifar_memo(folder):
    return batches(folder, b"\x80\x02Nr\0\0\0\x10.")


@hostile
def cifar_bytearray(folder):
    return batches(folder, b"\x80\x05\x96" + struct.pack("<Q", 4 * GIB) + b".")


@hostile
def cifar_bytes(folder):
    return batches(folder, b"\x80\x04\x8e" + struct.pack("<Q", 4 * GIB) + b".")


@hostile
def cifar_marks(folder):
    return batches(folder, gzip.compress(b"\x80\x02", mtime=0) + gzip.compress(b"(" * MIB) * 200)


@hostile
def cifar_lists_of_lists(folder):
    lists = b"".join(
        b"]q" + bytes([i]) + b"(" + (b"h" + bytes([i - 1])) * 10 + b"e0" for i in range(1, 30)
    )
    return batches(folder, b"\x80\x02}U\6labels]q\0(K\1K\1e0" + lists + b"h\x1dsU\4dataNs.")


@hostile
def cifar_copies_of_text(folder):
    text = b"X" + struct.pack("<I", MIB) + b"a" * MIB + b"q\0"
    start = b"\x80\x02]" + text + b"0c_codecs\nencode\nq\1" + b"0X\6\0\0\0latin1q\2" + b"0("
    return batches(folder, start + b"h\1h\0h\2\x86R" * 20_000 + b"e.")


@hostile
def csv_sparse(folder):
    (folder / "a.csv").write_text("file,label\n")
    os.truncate(folder / "a.csv", 8 * GIB)
    return folder / "a.csv"


# What parsers stumble over.


@hostile
def npz_without_npy(folder):
    return zipped(folder, b"no array", name="images")


@hostile
def npz_encrypted(folder):
    marked = b"PK\1\2\x14\3\x14\0\1"  # the first bit of the flags of a member
    data = npy((8, 4, 4), data=bytes(128))
    return zipped(folder, data, edit=lambda file: file.replace(b"PK\1\2\x14\3\x14\0\0", marked))


@hostile
def npy_named_npz(folder):
    np.save(folder / "a.npy", np.zeros((8, 4, 4), np.uint8))
    return (folder / "a.npy").rename(folder / "a.npz")


@hostile
def npz_unfinished_header(folder):
    return zipped(
        folder,
        b"\x93NUMPY\1\0"
        + struct.pack("<H", 64)
        + b"{'descr': '|u1', 'shape': (8, 4,".ljust(63)
        + b"\n",
    )


@hostile
def npz_uint16_without_pixels(folder):
    return arrays(folder, np.zeros((8, 0, 4), np.uint16), np.arange(8))


@hostile
def csv_of_5000_digits(folder):
    (folder / "a.png").write_bytes(png())
    (folder / "a.csv").write_text("file,label\n" + f"a.png,{'1' * 5000}\na.png,{'2' * 5000}\n" * 5)
    return folder / "a.csv"


@hostile
def csv_of_control_characters(folder):
    (folder / "a.csv").write_text('file,label\n"a\x1b[31m\nb\u202e.png",cat\n')
    return folder / "a.csv"


@hostile
def gtsrb_track_of_30_digits(folder):
    _gtsrb(folder)
    place = folder / "Final_Training" / "Images" / "00000"
    (place / "00000_00000.ppm").rename(place / f"{'9' * 30}_00000.ppm")
    table = place / "GT-00000.csv"
    table.write_text(table.read_text().replace("00000_00000", f"{'9' * 30}_00000"))
    return folder


@hostile
def mat_deep_struct(folder):
    value = 1.0
    for _ in range(300):
        value = [value]
    return svhn(folder, mat_bytes({"X": value}))


def fifo(name, *others):
    def make(folder):
        os.mkfifo(folder / name)
        for other in others:
            np.save(folder / other, np.arange(8))
        return folder / name if "." in name and not name.endswith((".mat", ".bin")) else folder

    FILES[f"fifo_{name}"] = make


for name in ("a.npz", "a.csv", "a.tar", "a.tar.gz", "data_batch_1.bin", "data_batch_1"):
    fifo(name)
fifo("a.npy", "a_labels.npy")


@hostile
def fifo_idx(folder):
    write_idx_set(folder)
    (folder / "train-images-idx3-ubyte").unlink()
    os.mkfifo(folder / "train-images-idx3-ubyte")
    return folder


def read_all(paths):
    """What comes of each file: kind of result, words, MiB of memory above what the process had before, seconds."""
    from torchcaps.data import load_dataset

    load_dataset("digits")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path in paths:
        start = time.process_time()
        try:
            kind, words = "set", repr(load_dataset(path))
        except BaseException as error:
            kind, words = type(error).__name__, str(error)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(json.dumps([kind, words, grown, time.process_time() - start]), flush=True)


if __name__ == "__main__":
    resource.setrlimit(
        resource.RLIMIT_AS, (6 * GIB, 6 * GIB)
    )  # a reader that fails this test takes no machine with it
    read_all([Path(name) for name in sys.argv[1:]])
